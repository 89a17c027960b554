"""``penstock serve --model-repository``: its models over the Open Inference Protocol."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from penstock.batching.queue_policy import QueuePolicy
from penstock.errors import StartupError
from penstock.service.build import queue_policies_of
from penstock.service.flags import Flags, using
from penstock.service.serve_flags import parse
from penstock.service.server import prepared
from tests.kit.repositories import (
    ENCODER,
    HEAD,
    MEAN,
    MEAN_CONFIG,
    RANK_CONFIG,
    make_repository,
    model,
)
from tests.services.process import ServiceProcess, running

SERVE = (sys.executable, "-m", "penstock", "serve")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    root = make_repository(tmp_path_factory.mktemp("models"))
    (root / "README.md").write_text("no model")
    with running(root, cwd=root.parent, command=(*SERVE, "--model-repository")) as server:
        yield server


def get(service: ServiceProcess, path: str) -> Any:
    return httpx.get(f"{service.http_url}/v2/models/{path}").json()


def infer(
    service: ServiceProcess, path: str, name: str, shape: list[int], data: Sequence[float]
) -> Any:
    body = {"inputs": [{"name": name, "datatype": "FP32", "shape": shape, "data": [*data]}]}
    reply = httpx.post(f"{service.http_url}/v2/models/{path}/infer", json=body).json()
    if "error" in reply:
        return reply["error"]
    return {each["name"]: (each["shape"], each["data"]) for each in reply["outputs"]}


ROW = ([1, 3], [1.0, 2.0, 3.0])


@pytest.mark.real
def test_models_that_do_not_change_have_an_index_and_no_other_call(service: ServiceProcess) -> None:
    url = f"{service.http_url}/v2/repository"
    rows = httpx.post(f"{url}/index").json()
    found = {each["name"]: (each["version"], each["state"], each["reason"]) for each in rows}
    assert found["encoder"] == ("2", "READY", "")
    assert len(found) == 8
    refused = httpx.post(f"{url}/models/rank/unload")
    assert (refused.status_code, "control mode is none" in refused.text) == (503, True)
    assert infer(service, "served", "pixels", *ROW) == {"features": ([1, 3], [2, 4, 6])}


@pytest.mark.real
def test_models_of_all_layouts_are_served_with_their_names_and_versions(
    service: ServiceProcess,
) -> None:
    first = service.log().splitlines()[0]
    assert "penstock serves both, encoder, flat, head, rank, served, triple and uci" in first
    versions = {
        name: get(service, name)["versions"]
        for name in ("encoder", "flat", "head", "rank", "served", "triple", "uci")
    }
    ones = {name: ["1"] for name in ("flat", "head", "rank", "triple", "uci")}
    assert versions == {"encoder": ["2"], "served": ["7"], **ones}
    assert infer(service, "encoder", "pixels", *ROW) == {"features": ([1, 3], [3, 6, 9])}
    assert infer(service, "encoder/versions/2", "pixels", *ROW) == {"features": ([1, 3], [3, 6, 9])}
    assert infer(service, "served", "pixels", *ROW) == {"features": ([1, 3], [2, 4, 6])}
    assert infer(service, "uci", "rows", *ROW) == {"doubled": ([1, 3], [2, 4, 6])}
    assert infer(service, "triple", "x", *ROW)["y"] == ([1, 3], [3, 6, 9])


@pytest.mark.real
def test_several_versions_of_a_model_are_served_and_the_newest_is_the_default(
    service: ServiceProcess,
) -> None:
    assert get(service, "both")["versions"] == ["9", "10"]
    assert infer(service, "both", "pixels", *ROW) == {"features": ([1, 3], [3, 6, 9])}
    assert infer(service, "both/versions/9", "pixels", *ROW) == {"features": ([1, 3], [2, 4, 6])}
    assert (
        infer(service, "both/versions/8", "pixels", *ROW) == "there is no model 'both', version '8'"
    )
    lines = service.log().splitlines()
    at = lines.index("  with  version 9 of both")
    assert [each.split()[:2] for each in lines[at - 2 : at + 2]] == [
        ["POST", "/both"],
        ["op", "both"],
        ["with", "version"],
        ["op", "both"],
    ]


@pytest.mark.real
def test_a_model_whose_answers_change_in_batches_is_served_without_them(tmp_path: Path) -> None:
    model(tmp_path / "mean", MEAN, MEAN_CONFIG)
    with running(tmp_path, command=(*SERVE, "--model-repository")) as server:
        assert "op 'mean': its requests run one at a time: the probe got other" in server.log()
        assert infer(server, "mean", "x", [2, 3], [1, 2, 3, 3, 2, 1])["y"] == ([1, 3], [2, 2, 2])


@pytest.mark.real
def test_an_ensemble_renames_tensors_and_answers_with_those_of_several_steps(
    service: ServiceProcess,
) -> None:
    line = (
        "version 1, ensemble: PIXELS float32[?, 3] -> SCORES float32[?, 3], FEATURES float32[?, 3]"
    )
    assert f"  model rank     {line}" in service.log()
    found = infer(service, "rank", "PIXELS", [2, 3], [1, 1, 1, 2, 2, 2])
    assert found["FEATURES"] == ([2, 3], [3, 3, 3, 6, 6, 6])
    assert found["SCORES"] == ([2, 3], [pytest.approx(1 / 3)] * 6)
    metadata = get(service, "rank")
    assert metadata["platform"] == "ensemble"
    assert metadata["inputs"] == [{"name": "PIXELS", "datatype": "FP32", "shape": [-1, 3]}]
    assert [each["name"] for each in metadata["outputs"]] == ["SCORES", "FEATURES"]


@pytest.mark.real
def test_reshaped_tensors_have_the_declared_shapes(service: ServiceProcess) -> None:
    assert get(service, "flat")["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [4]}]
    assert infer(service, "flat", "x", [4], [1, 2, 3, 4]) == {"y": ([4], [2, 4, 6, 8])}
    assert (
        infer(service, "flat", "x", [2, 2], [1, 2, 3, 4])
        == "input 'x' has the shape [4], got [2, 2]"
    )


@pytest.mark.real
def test_the_configuration_is_the_file_s(service: ServiceProcess) -> None:
    found = get(service, "encoder/config")
    assert found["name"] == "encoder"
    assert found["platform"] == "onnxruntime_onnx"
    assert found["max_batch_size"] == 16
    assert found["input"] == [{"name": "pixels", "data_type": "TYPE_FP32", "dims": [3]}]
    assert found["instance_group"] == [{"count": 2, "kind": "KIND_CPU"}]
    assert found["dynamic_batching"]["max_queue_delay_microseconds"] == 1000
    head = get(service, "head/config")
    assert head["input"] == [{"name": "embedding", "data_type": "TYPE_FP32", "dims": [3]}]


@pytest.mark.real
def test_workers_and_batches_are_those_of_the_configuration(service: ServiceProcess) -> None:
    log = service.log()
    assert re.search(r"  op    encoder +after request +2 threads, batches of 8 within 1 ms,", log)
    assert re.search(r"  op    head +after request +4 threads, \S+/head/1", log)


QUEUE = """
max_batch_size: 4
dynamic_batching {
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { default_timeout_microseconds: 500000 max_queue_size: 7 }
  priority_queue_policy { key: 1 value: { timeout_action: DELAY } }
}
"""


def test_queues_of_a_model_are_limited_as_its_configuration_says(tmp_path: Path) -> None:
    model(tmp_path / "m", ENCODER, QUEUE)
    model(tmp_path / "n", ENCODER, QUEUE.replace("levels: 3", "levels: 2"))
    model(tmp_path / "o", ENCODER)
    server, keys = parse(["--model-repository", str(tmp_path)])
    with using(Flags(check_only=True, overrides=keys)):
        first, second, third = prepared([server])[0]
        blueprints = [each.blueprint() for each in (first, second, third)]
    config = blueprints[0].config
    assert (config.priority.levels, config.priority.routes) == (3, {"m": 2, "n": 2})
    assert [each.config.dag.channel_size for each in blueprints] == [7, 7, None]
    assert [queue_policies_of(config, each.queue) for each in blueprints] == [
        (QueuePolicy(delay=True), QueuePolicy(timeout=0.5), QueuePolicy(timeout=0.5)),
        (QueuePolicy(delay=True), QueuePolicy(timeout=0.5), QueuePolicy(timeout=0.5)),
        (),
    ]


# Repositories that cannot be served.


def report(*arguments: str, opens: bool = False) -> str:
    """What a check of the service prints."""
    server, keys = parse(arguments)
    checked = Flags(check_only=True, opens=opens, overrides=keys)
    with using(checked):
        server.run()
    return "\n".join(checked.reports)


def refused(root: Path, *more: str, opens: bool = False) -> str:
    with pytest.raises(StartupError) as raised:
        report("--model-repository", str(root), *more, opens=opens)
    return str(raised.value)


def test_all_problems_of_a_repository_are_reported_at_once(tmp_path: Path) -> None:
    model(tmp_path / "a", ENCODER, "sequence_batching { }")
    model(tmp_path / "b", ENCODER, 'name: "c"')
    model(tmp_path / "d", ENCODER, "version_policy { specific { versions: [ 1, 3 ] } }")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "config.pbtxt").write_text(RANK_CONFIG.replace('"rank"', '"e"'))
    (tmp_path / "f" / "v1").mkdir(parents=True)
    (tmp_path / "f" / "v1" / "model.onnx").touch()
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "config.pbtxt").write_text("max_batch_size: 2")
    assert sorted(refused(tmp_path).replace(f"{tmp_path}/", "").splitlines()) == [
        "a/config.pbtxt:1: sequence_batching: sequences are not supported",
        "b/config.pbtxt: name: 'c' is not the name of the folder, 'b'",
        "d: version_policy: there is no version 3",
        "e: ensemble_scheduling: there is no model 'encoder'",
        "f: it has no version: folders of versions have numbers as names; ignored: v1",
        "g: it has no version",
    ]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ('backend: "python"', "m/config.pbtxt: the backend 'python' is not available here"),
        ('platform: "tensorrt_plan"', "m/config.pbtxt: the backend 'tensorrt' is not available"),
        (
            "instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU } ]",
            "m/config.pbtxt: instance_group: workers on CPUs and on GPUs in one model are not",
        ),
        (
            'max_batch_size: 2\nmodel_warmup { name: "w" batch_size: 4 }',
            "m/config.pbtxt: model_warmup 'w': batch_size is 4, above max_batch_size, which is 2",
        ),
        (
            'model_warmup { name: "w" inputs { key: "x" value {'
            ' data_type: TYPE_FP32 dims: 3 input_data_file: "x" } } }',
            "m/config.pbtxt: model_warmup 'w': input 'x': ",
        ),
        (
            "instance_group { kind: KIND_GPU }",
            "m/config.pbtxt: instance_group: card 0 was requested, but the installed ONNX Runtime",
        ),
        (
            'parameters { key: "penstock.executor" value: { string_value: "nowhere" } }',
            "m/config.pbtxt: parameters: penstock.executor: ",
        ),
        (
            'parameters { key: "intra_op_thread_count" value: { string_value: "x" } }',
            "m/config.pbtxt: parameters: intra_op_thread_count: ",
        ),
    ],
)
def test_what_a_model_cannot_have_here_is_refused(tmp_path: Path, config: str, text: str) -> None:
    model(tmp_path / "m", ENCODER, config)
    assert refused(tmp_path).startswith(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [("shape", "request 1 for warm-up: "), ("bytes", r"the example .*1\.npz cannot be read: ")],
)
def test_a_version_must_run_on_its_examples(tmp_path: Path, name: str, text: str) -> None:
    model(tmp_path / "m", ENCODER)
    examples = tmp_path / "m" / "1" / "examples"
    examples.mkdir()
    np.savez(examples / "1.npz", pixels=np.ones((1, 3), np.float32))
    report("--model-repository", str(tmp_path), opens=True)
    if name == "shape":
        np.savez(examples / "1.npz", pixels=np.ones((1, 2), np.float32))
    else:
        (examples / "1.npz").write_bytes(b"none")
    assert re.search(text, refused(tmp_path, opens=True))


def test_an_ensemble_cannot_run_itself_nor_versions_that_are_not_served(tmp_path: Path) -> None:
    model(tmp_path / "encoder", ENCODER)
    model(tmp_path / "head", HEAD)
    rank = tmp_path / "rank"
    rank.mkdir()
    (rank / "config.pbtxt").write_text(RANK_CONFIG.replace("model_version: -1", "model_version: 2"))
    text = "ensemble_scheduling: version 2 of 'encoder' is not served, only 1"
    assert refused(tmp_path) == f"{rank}: {text}"
    (rank / "config.pbtxt").write_text(RANK_CONFIG.replace('"head"', '"rank"'))
    assert refused(tmp_path) == f"{rank}: ensemble_scheduling: 'rank' runs itself"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('"pixels"', '"pixel"', "op 'encoder': its model takes ['pixels'], and gets ['pixel']"),
        ('"scores"', '"score"', "op 'head' has no output 'score', only ['scores']"),
        (
            '"PIXELS" data_type: TYPE_FP32 dims: [ 3 ]',
            '"PIXELS" data_type: TYPE_FP32 dims: [ 4 ]',
            "op 'encoder': its model's input pixels float32[?, 3] can never take"
            " PIXELS float32[?, 4]",
        ),
        (
            '"SCORES" data_type: TYPE_FP32',
            '"SCORES" data_type: TYPE_INT32',
            "output SCORES int32[?, 3] is declared, and scores float32[?, 3] made",
        ),
    ],
)
def test_an_ensemble_whose_tensors_do_not_fit_its_models_is_refused(
    tmp_path: Path, old: str, new: str, text: str
) -> None:
    model(tmp_path / "encoder", ENCODER)
    model(tmp_path / "head", HEAD)
    rank = tmp_path / "rank"
    rank.mkdir()
    (rank / "config.pbtxt").write_text(RANK_CONFIG.replace(old, new))
    server, keys = parse(["--model-repository", str(tmp_path)])
    opened = Flags(check_only=True, opens=True, overrides=keys)
    with using(opened), pytest.raises(StartupError) as raised:
        server.run()
    assert str(raised.value) == text


def test_a_repository_must_be_there_and_have_models(tmp_path: Path) -> None:
    assert refused(tmp_path) == f"no model in {tmp_path}"
    nowhere = tmp_path / "nowhere"
    assert refused(nowhere) == f"model repository {nowhere}: no such folder"
    model(tmp_path / "m", ENCODER)
    assert refused(tmp_path / "m").startswith(f"model repository {tmp_path}/m: it holds versions")


def test_two_repositories_may_not_have_models_of_one_name(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for root in (first, second):
        model(root / "m", ENCODER)
    text = f"two repositories have a model 'm': {first}, {second}"
    assert refused(first, "--model-repository", str(second)) == text
    other = model(tmp_path / "other", ENCODER, file="m.onnx")
    assert refused(first, "--model", str(other)).startswith("two models are called 'm'")


def test_a_link_that_leaves_the_repository_is_refused(tmp_path: Path) -> None:
    secret = model(tmp_path / "secret", ENCODER)
    root = tmp_path / "models"
    model(root / "m", ENCODER)
    (root / "n").symlink_to(secret.parent.parent)
    assert refused(root) == f"model repository {root}: the link n leaves it"


def test_fields_without_effect_are_warnings_with_their_lines(tmp_path: Path) -> None:
    config = 'optimization { }\nparameters { key: "other" value: { string_value: "1" } }'
    model(tmp_path / "m", ENCODER, config)
    model(tmp_path / "m", ENCODER, file="old/model.onnx")
    found = report("--model-repository", str(tmp_path))
    for text in (
        f"{tmp_path}/m/config.pbtxt:1: optimization has no effect: the library decides how",
        f"{tmp_path}/m/config.pbtxt: parameters: other has no effect",
        f"{tmp_path}/m: folders of versions have numbers as names; ignored: old",
    ):
        assert text in found


def test_the_repository_may_come_from_the_environment_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(tmp_path / "models" / "m", ENCODER)
    model(tmp_path / "other" / "n", ENCODER)
    file = tmp_path / "serve.yml"
    file.write_text(f"server: {{model_repository: {tmp_path}/models}}")
    assert report("--config", str(file)).startswith("m: the configuration and the graph are good")
    monkeypatch.setenv("PENSTOCK_MODEL_REPOSITORY", f"{tmp_path}/models,{tmp_path}/other")
    names = [each.name for each in parse([])[0].services]
    assert names == ["m", "n"]
