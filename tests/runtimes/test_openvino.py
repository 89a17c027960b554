"""OpenVINO: its files and its options."""

from __future__ import annotations

import re
import sys
import weakref
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock.errors import ModelError
from penstock.runtimes.model import Model
from penstock.runtimes.openvino import OpenvinoRuntime, model_file, option_problems, properties_for
from penstock.runtimes.runtime import ModelOptions, model_problems, open_session
from tests.models.networks import answers, feed_of
from tests.runtimes.forms import needs

with_openvino = needs("openvino")
NET = '<?xml version="1.0"?>\n<net name="m" version="11">'


@pytest.fixture
def runtime() -> OpenvinoRuntime:
    return OpenvinoRuntime()


def put(folder: Path, *names: str, text: str = NET) -> None:
    for name in names:
        (folder / f"{name}.xml").write_text(text)
        (folder / f"{name}.bin").touch()


def test_a_folder_must_have_model_xml_or_exactly_one_model(
    tmp_path: Path, runtime: OpenvinoRuntime
) -> None:
    put(tmp_path, "pom", text="<project/>")
    assert not runtime.can_open(tmp_path)
    assert not runtime.can_open(tmp_path / "pom.xml")
    put(tmp_path, "a")
    assert runtime.can_open(tmp_path)
    assert model_file(tmp_path) == model_file(tmp_path / "a.xml") == tmp_path / "a.xml"
    put(tmp_path, "b")
    with pytest.raises(ModelError, match=r"model\.xml or exactly one .*, found a\.xml, b\.xml"):
        model_file(tmp_path)
    put(tmp_path, "model")
    assert model_file(tmp_path) == tmp_path / "model.xml"
    (tmp_path / "model.bin").unlink()
    with pytest.raises(ModelError, match=r"needs its weights, model\.bin"):
        model_file(tmp_path)


def test_without_openvino_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "model")
    monkeypatch.setitem(sys.modules, "openvino", None)
    options = ModelOptions(path=str(tmp_path))
    with pytest.raises(ModelError, match=r"install 'penstock-serving\[openvino\]'"):
        open_session(options)
    assert "install 'penstock-serving[openvino]'" in str(model_problems(options)[0])


@with_openvino
def test_truncated_files_raise_model_error(networks: Path, tmp_path: Path) -> None:
    source = networks / "regression/openvino"
    for number, (name, size) in enumerate((("model.xml", 2000), ("model.bin", 60))):
        folder = copytree(source, tmp_path / str(number))
        (folder / name).write_bytes((folder / name).read_bytes()[:size])
        with pytest.raises(ModelError, match=r"OpenVINO cannot open .*model\.xml'"):
            open_session(ModelOptions(path=str(folder)))


@pytest.mark.parametrize(
    ("options", "capabilities", "key", "pattern"),
    [
        ({"thread_num": 0}, ["FP32"], "thread_num", "0 is below 1"),
        ({"precision": "int8"}, ["FP32", "INT8"], "precision", "int8 is not available with Open"),
        ({"precision": "BF16"}, ["FP32"], "precision", "BF16 is not available on this CPU"),
        ({"precision": "fp16"}, ["FP32"], "precision", "fp16 is not available on this CPU"),
        ({"use_calib": True}, None, "use_calib", "not available"),
        ({"devices": ("0",)}, None, "devices", "card 0 .* on the CPU only"),
        ({"device_type": 1}, None, "device_type", r"1 \(GPU\) is not available .* use 0 \(CPU\)"),
        ({"device_type": 5}, None, "device_type", "Ascend 310"),
    ],
)
def test_an_unsupported_option_is_a_problem_with_its_key(
    options: dict, capabilities: list[str] | None, key: str, pattern: str
) -> None:
    (problem,) = option_problems(ModelOptions(path="/m", **options), capabilities)
    assert problem.key == key
    assert re.search(pattern, problem.text)


def test_options_become_properties() -> None:
    assert properties_for(ModelOptions(path="/m", thread_num=3)) == {
        "INFERENCE_NUM_THREADS": 3,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,
    }
    bf16 = properties_for(ModelOptions(path="/m", precision="BF16"))
    assert bf16["INFERENCE_PRECISION_HINT"] == "bf16"


@with_openvino
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_model_runs_with_the_configured_precision(networks: Path, precision: str) -> None:
    path = str(networks / "regression/openvino")
    requested = ModelOptions(path=path, precision=precision)
    if OpenvinoRuntime().problems(Path(path), requested):
        pytest.skip(f"this CPU has no {precision}")
    feed = feed_of("regression", 5)
    plain = Model.open(ModelOptions(path=path)).run(feed)["price"]
    got = Model.open(requested).run(feed)["price"]
    assert np.abs(got - plain).max() > 1e-6
    np.testing.assert_allclose(got, plain, rtol=0, atol=0.05)


@with_openvino
def test_keys_without_effect_are_noted(networks: Path) -> None:
    path = str(networks / "regression/openvino")
    session = open_session(ModelOptions(path=path, ir_optim=False, use_mkldnn=True))
    assert session.notes == (
        "local_service_conf.ir_optim has no effect with OpenVINO",
        "local_service_conf.use_mkldnn has no effect with OpenVINO",
    )
    assert not session.thread_safe
    assert not session.holds_gil


@with_openvino
def test_copies_of_inputs_are_kept_until_the_run_ends(
    networks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = OpenvinoRuntime().open(networks / "sequence/openvino", ModelOptions(path="m"))
    tensor, copied = session._library.Tensor, []

    def shared(value: Any, *, shared_memory: bool) -> Any:
        copied.append(weakref.ref(value))
        return tensor(value, shared_memory=shared_memory)

    class Request:
        """Forwards attributes, and checks that inputs are alive when the run begins."""

        def __init__(self, request: Any) -> None:
            self._request = request

        def __getattr__(self, name: str) -> Any:
            return getattr(self._request, name)

        def start_async(self) -> None:
            assert [each() is None for each in copied] == [False, False]
            self._request.start_async()

    monkeypatch.setattr(session, "_library", SimpleNamespace(Tensor=shared))
    monkeypatch.setattr(session, "_request", Request(session._request))
    feed = feed_of("sequence", 2, 5, 1)
    for value in feed.values():
        value.flags.writeable = False
    (scores,) = session.run(feed, ["scores"])
    np.testing.assert_allclose(scores, answers("sequence", feed)["scores"], atol=1e-5)
