"""The recogniser of the OCR example changes its model while the service reads pictures."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper, numpy_helper

from tests.examples.ocr_judge import EXAMPLE, example
from tests.examples.test_ocr_service import SCRIPT, over_grpc, over_http
from tests.services.process import ServiceProcess, running
from tests.services.repository import alive, index, models, until, workers

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PICTURE = example().pictures.SCAN
THREE = {"PENSTOCK_BUILD_DAG_EACH_WORKER": "true", "PENSTOCK_WORKER_NUM": "3"}
LESS = 0.9
"""By what the second version of the recogniser multiplies its confidence."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The example, with a folder for each version of the recogniser."""
    folder = tmp_path / "ocr"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    example().models.install_models(folder / "models")
    rec = folder / "recogniser"
    (rec / "1").mkdir(parents=True)
    shutil.copy(folder / "models" / "rec" / "model.onnx", rec / "1")
    text = (folder / "config.yml").read_text()
    assert "model_config: models/rec\n" in text
    text = text.replace("model_config: models/rec\n", "model_config: recogniser\n")
    text = text.replace("    rec:\n", "    rec:\n        versions: latest\n")
    (folder / "config.yml").write_text(text)
    return folder


def less_certain(source: Path, made: Path) -> None:
    """A model of the same inputs and outputs, whose outputs are ``LESS`` times as large."""
    model = onnx.load(str(source))
    (output,) = model.graph.output
    for node in model.graph.node:
        node.output[:] = ["inner" if each == output.name else each for each in node.output]
    factor = numpy_helper.from_array(numpy_helper.np.float32(LESS), "less")
    model.graph.initializer.append(factor)
    model.graph.node.append(helper.make_node("Mul", ["inner", "less"], [output.name]))
    made.mkdir()
    onnx.save(model, str(made / "model.onnx"))


class Readers:
    """Callers that read one picture over and over, over both protocols."""

    def __init__(self, server: ServiceProcess, picture: bytes) -> None:
        self.answers: list[list[tuple[str, float]]] = []
        self.failures: list[Any] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._read, args=(send, server, picture))
            for send in (over_http, over_grpc)
        ]
        for each in self._threads:
            each.start()

    def _read(self, send: Any, server: ServiceProcess, picture: bytes) -> None:
        while not self._stop.is_set():
            try:
                number, text, values = send(server, picture)
            except Exception as error:
                self.failures.append(repr(error))
                continue
            if number:
                self.failures.append((number, text))
                continue
            lines = json.loads(values["result"])
            self.answers.append([(each["text"], each["confidence"]) for each in lines])

    def stop(self) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()


@contextmanager
def readers(server: ServiceProcess, picture: bytes) -> Iterator[Readers]:
    made = Readers(server, picture)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="process"),
        pytest.param({"PENSTOCK_OP__REC__EXECUTOR": "thread"}, id="thread", marks=pytest.mark.long),
        pytest.param(THREE, id="three engines", marks=pytest.mark.long),
    ],
)
def test_one_op_changes_its_model_while_it_reads(
    project: Path, folder: Path, environment: dict[str, str]
) -> None:
    picture = (folder / PICTURE).read_bytes()
    variables = {
        "XDG_CACHE_HOME": str(project.parent / "cache"),
        "PENSTOCK_REPOSITORY_POLL_SECS": "0.5",
        **environment,
    }
    with running(project / SCRIPT.name, environment=variables) as server:
        with readers(server, picture) as callers:
            until(lambda: len(callers.answers) > 2)
            old = workers(server, "1", "ocr")
            first = callers.answers[0]
            broken = project.parent / "broken"
            broken.mkdir()
            shutil.copy(project / "models" / "det" / "model.onnx", broken)  # another model's
            broken.rename(project / "recogniser" / "2")
            until(
                lambda: "another signature" in index(server, "rec").get("2", {}).get("reason", "")
            )
            made = project.parent / "made"
            less_certain(project / "recogniser" / "1" / "model.onnx", made)
            made.rename(project / "recogniser" / "3")
            until(lambda: callers.answers[-1][0][1] < first[0][1] * (LESS + 0.02), 120)
        assert callers.failures == []
        second = callers.answers[-1]
        for answer in callers.answers:  # each is of one version, whole
            same = [pytest.approx(each[1], rel=1e-3) for each in answer]
            expected = first if answer[0][1] == same_as(first[0][1]) else second
            assert [each[1] for each in expected] == same
            assert [each[0] for each in answer] == [each[0] for each in expected]
        assert [each[1] / LESS for each in second] == [same_as(each[1]) for each in first]
        until(lambda: not alive(old))
        assert models(server, "rollback", "rec").returncode == 0
        number, _, values = over_http(server, picture)
        assert number == 0
        assert json.loads(values["result"])[0]["confidence"] == same_as(first[0][1])
        assert server.stop() == 0
        assert server.leftovers() == []


def same_as(confidence: float) -> Any:
    return pytest.approx(confidence, rel=1e-3)
