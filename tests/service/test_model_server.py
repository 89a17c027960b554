"""``penstock serve``: saved models over every protocol, without code."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from penstock import PipelineClient
from penstock.client import response_arrays
from penstock.errors import StartupError
from penstock.protocols.standard_messages import GENERAL_MODEL
from penstock.service.flags import Flags, using
from penstock.service.serve_flags import parse
from tests.kit import one_write
from tests.kit.onnx_models import plus_one, save, scale
from tests.services.process import ServiceProcess, running

SERVE = (sys.executable, "-m", "penstock", "serve", "--model")
CONF = """
feed_var { name: "x" alias_name: "x" feed_type: 1 shape: 3 }
fetch_var { name: "y" alias_name: "doubled" fetch_type: 1 shape: 3 }
"""
ROW = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("models")
    double = scale(folder / "double.onnx", 2.0)
    triple = scale(folder / "triple.onnx", 3.0)
    first = folder / "first"
    first.mkdir()
    scale(first / "model.onnx", 2.0)
    (first / "serving_server_conf.prototxt").write_text(CONF)
    more = ("--model", f"row={first}", str(triple), "--runtime_thread_num", "2")
    with running(double, *more, command=SERVE, timeout=60) as server:
        yield server


TENSORS = "x float32[?, 3] -> y float32[?, 3], twice float32[?, 3]"


@pytest.mark.real
def test_the_banner_shows_models_addresses_and_ops(service: ServiceProcess) -> None:
    lines = service.log().splitlines()
    assert lines[0] == "penstock serves double and row to this machine only"
    assert lines[1].startswith(f"  http  {service.http_url} ")
    assert lines[2].startswith(f"  grpc  {service.rpc_endpoint} ")
    assert any(re.match(r"  op    row_1  after row_0 +2 threads, batches of 32,", x) for x in lines)
    assert f"  model double  version 1, onnx: {TENSORS}" in lines
    named = "x float32[?, 3] -> doubled float32[?, 3]"
    assert f"  model row_0   version 1, onnx: {named}" in lines
    assert f"  model row_1   version 1, onnx: {TENSORS}" in lines


def infer(service: ServiceProcess, model: str, body: Any = ROW) -> tuple[int, Any]:
    reply = httpx.post(f"{service.http_url}/v2/models/{model}/infer", json=body)
    return reply.status_code, reply.json()


@pytest.mark.real
def test_each_model_is_called_by_its_name(service: ServiceProcess) -> None:
    status, reply = infer(service, "double")
    assert status == 200
    assert reply["model_name"] == "double"
    outputs = {each["name"]: each["data"] for each in reply["outputs"]}
    assert outputs == {"y": [2, 4, 6], "twice": [4, 8, 12]}
    plain = httpx.post(f"{service.http_url}/double", json={"x": [[1, 2, 3]]}).json()
    assert plain == {"y": [[2, 4, 6]], "twice": [[4, 8, 12]]}


@pytest.mark.real
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/models"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/logging"),
    ],
)
def test_a_path_that_the_protocol_lacks_is_answered_in_its_form(
    service: ServiceProcess, method: str, path: str
) -> None:
    answer = httpx.request(method, f"{service.http_url}{path}")
    assert (answer.status_code, answer.json()) == (404, {"error": f"there is no route {path}"})


@pytest.mark.real
@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_the_server_s_metadata_has_its_name_and_extensions(
    service: ServiceProcess, path: str
) -> None:
    metadata = httpx.get(f"{service.http_url}{path}").json()
    assert metadata["name"] == "penstock"
    assert "binary_tensor_data" in metadata["extensions"]


@pytest.mark.real
def test_a_model_s_configuration_has_its_inputs_and_outputs(service: ServiceProcess) -> None:
    url = f"{service.http_url}/v2/models/row"
    metadata, found = httpx.get(url).json(), httpx.get(f"{url}/versions/1/config").json()
    assert (found["name"], found["max_batch_size"]) == ("row", 0)
    for kind in ("input", "output"):
        assert found[kind] == [
            {"name": each["name"], "data_type": f"TYPE_{each['datatype']}", "dims": each["shape"]}
            for each in metadata[f"{kind}s"]
        ]
    assert httpx.get(f"{service.http_url}/v2/models/nope/config").status_code == 404


@pytest.mark.real
def test_the_output_of_a_model_is_the_input_of_the_next(service: ServiceProcess) -> None:
    status, reply = infer(service, "row", {**ROW, "outputs": [{"name": "y"}]})
    assert status == 200
    (output,) = reply["outputs"]
    assert output["data"] == [6, 12, 18]


@pytest.mark.real
def test_invalid_requests_get_a_status_and_an_error(service: ServiceProcess) -> None:
    wrong = {"inputs": [{**ROW["inputs"][0], "datatype": "FP64"}]}
    assert infer(service, "double", wrong) == (400, {"error": "input 'x' is FP32, got FP64"})
    assert infer(service, "nope") == (404, {"error": "there is no model 'nope'"})
    url = f"{service.http_url}/v2/models/double"
    assert httpx.post(f"{url}/versions/2/infer", json=ROW).status_code == 404
    assert httpx.get(f"{url}/versions/1").json()["versions"] == ["1"]
    path, soon = "/v2/models/double/infer", {"penstock-timeout": "0.0000001"}
    assert one_write.post(service.http_port, path, ROW, soon)[0] == 504
    assert httpx.get(f"{url}/infer").status_code == 405
    header = {"inference-header-content-length": "x"}
    assert httpx.post(f"{url}/infer", json=ROW, headers=header).status_code == 400


MODEL = ["--model", "."]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "You must specify your serving model: --model PATH"),
        (["--model", "nowhere"], "--model nowhere: no such file or folder"),
        (["nowhere"], "--model nowhere: no such file or folder"),
        (["--prot", "1"], "unrecognized arguments: --prot"),
        (["--model-control-mode", "x"], "argument --model-control-mode: invalid choice: 'x'"),
        (["--use", "1"], "ambiguous option: --use could match --use_calib, --use_mkl"),
        (["--port", "x"], "argument --port/--http-port: invalid int value: 'x'"),
        (["stop"], "stop: penstock serve has no such command: end the service with SIGTERM"),
        (["kill"], "kill: penstock serve has no such command: end the service with SIGKILL"),
        (["check"], "check: penstock serve has no such command: start the service and request"),
        (["status"], "status: penstock serve has no such command: use penstock status"),
        (["--thread", "0"], "--thread: must be at least 1, got 0"),
        (["--runtime_thread_num", "-1"], "--runtime_thread_num: must be at least 0, got -1"),
        (["--runtime_thread_num", "1", "2"], "--runtime_thread_num has 2 values, but there is 1"),
        (["--batch_infer_size", "0"], "--batch_infer_size: must be at least 1, got 0"),
        (["--cpu_math_thread_num", "0"], "--cpu_math_thread_num: must be at least 1, got 0"),
        (["--max_body_size", "-1"], "--max_body_size: must be at least 1, got -1"),
        (["--gpu_ids=-1,0"], "--gpu_ids -1,0: write ids of cards such as 0 or 0,1; or -1 alone"),
        (["--precision", "fp8"], "argument --precision: invalid choice: 'fp8' (choose from"),
        (["--gpu_ids", "a"], "--gpu_ids a: write ids of cards"),
        (["--use_trt"], "--use_trt: TensorRT needs a card: give --gpu_ids"),
        (["--use_trt", "--gpu_ids", "-1"], "--use_trt: TensorRT needs a card: give --gpu_ids"),
        (["--use_xpu"], "--use_xpu: Kunlun XPU is not available here"),
        (["--use_ascend_cl"], "--use_ascend_cl: Ascend is not available here"),
        (["--use_ipu", "true"], "--use_ipu: Graphcore IPU is not available here"),
        (
            ["--ir_optim", "x"],
            "argument --ir_optim: write true, false or nothing after it, got 'x'",
        ),
        (["--use_encryption_model"], "--use_encryption_model: give --encryption_key"),
        (["--use_dist_model"], "--use_dist_model: serving one model by several servers is not"),
        (["--dist_master_serving"], "--dist_master_serving: serving one model by several"),
        (["--dist_carrier_id", "x"], "--dist_carrier_id: serving one model by several servers is"),
        (["--dist_cfg_file", "x"], "--dist_cfg_file: serving one model by several servers is not"),
        (["--dist_endpoints", "x"], "--dist_endpoints: serving one model by several servers is"),
        (["--dist_nranks", "2"], "--dist_nranks: serving one model by several servers is not"),
        (["--dist_subgraph_index", "0"], "--dist_subgraph_index: serving one model by several"),
        (["--dist_worker_serving_endpoints", "x"], "--dist_worker_serving_endpoints: serving one"),
        (
            ["--name", "uci"],
            "--name: a web service without a graph (--model NAME=PATH names the model) is not",
        ),
        (["--use_multilang"], "--use_multilang: the protocol of MultiLangClient is not available"),
    ],
)
def test_invalid_flags_are_refused_with_one_sentence(arguments: list[str], text: str) -> None:
    if arguments and "--model" not in arguments:
        arguments = [*arguments, *MODEL]
    with pytest.raises(StartupError) as raised:
        parse(arguments)
    assert str(raised.value).startswith(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["a.onnx"], ["a"]),
        (["start", "a.onnx"], ["a"]),
        (["--port", "9", "first=a.onnx", "--thread", "2", "b.onnx"], ["first", "b"]),
        (["a.onnx", "--model", "b.onnx"], ["a", "b"]),
    ],
)
def test_models_need_no_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], names: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.onnx", "b.onnx"):
        scale(tmp_path / name, 2.0)
    server, _ = parse(arguments)
    assert [each.name for each in server.workflows] == names


def test_an_unknown_command_is_the_only_problem() -> None:
    with pytest.raises(StartupError) as raised:
        parse(["stop"])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            ["--gpu_ids", "0"],
            "--gpu_ids 0: card 0 was requested, but the installed ONNX Runtime has no CUDA",
        ),
        (
            ["--gpu_ids", "0", "--use_trt"],
            "--use_trt: 2 (GPU with TensorRT) is not available with ONNX",
        ),
        (
            ["--precision", "int8"],
            "--precision int8: int8 is not available with ONNX Runtime, only fp32",
        ),
        (["--use_calib"], "--use_calib: int8 calibration is not available with ONNX Runtime"),
    ],
)
def test_options_that_a_runtime_lacks_are_refused_with_one_sentence(
    tmp_path: Path, flags: list[str], text: str
) -> None:
    server, _ = parse(["--model", str(scale(tmp_path / "m.onnx", 2.0)), *flags])
    with using(Flags(check_only=True)), pytest.raises(StartupError) as raised:
        server.run()
    assert str(raised.value).startswith(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("value", "is_on"),
    [((), True), (("True",), True), (("false",), False), (("1",), True), (("0",), False)],
)
def test_flags_without_a_value_may_have_one(
    tmp_path: Path, value: tuple[str, ...], is_on: bool
) -> None:
    model = str(scale(tmp_path / "m.onnx", 2.0))
    server, _ = parse(["--use_mkl", *value, "--ir_optim", *value, "--model", model])
    conf = server.workflows[0].nodes[0].options["local_service_conf"]
    assert conf["use_mkldnn"] is is_on
    assert conf.get("ir_optim", False) is is_on


@pytest.mark.parametrize("flag", ["--use_lite", "--gpu_multi_stream", "--request_cache_size=9"])
def test_flags_that_change_no_answer_are_a_warning(tmp_path: Path, flag: str) -> None:
    server, _ = parse(["--model", str(scale(tmp_path / "m.onnx", 2.0)), flag])
    (text,) = server.warnings
    assert text.startswith(f"{flag.partition('=')[0]} has no effect: ")


OF_THE_ORIGINAL = {"host": "0.0.0.0", "missing_device": "cpu"}


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (
            ["--gpu_ids", "0"],
            ["op 'm' runs on the CPU, as missing_device: cpu allows: --gpu_ids 0: "],
        ),
        (
            ["--gpu_ids", "0", "--use_trt", "--precision", "int8"],
            ["op 'm' runs on the CPU in fp32, as missing_device: cpu allows: "],
        ),
        (
            ["--use_lite", "--use_xpu", "--ir_optim"],
            ["--use_lite has no effect: ", "--use_xpu: Kunlun XPU is not available here; it has"],
        ),
        (["--use_trt"], ["--use_trt: TensorRT needs a card: give --gpu_ids; it has no effect"]),
    ],
)
def test_with_missing_device_cpu_absent_hardware_is_a_warning(
    tmp_path: Path, flags: list[str], texts: list[str]
) -> None:
    server, _ = parse(["--model", str(scale(tmp_path / "m.onnx", 2.0)), *flags], OF_THE_ORIGINAL)
    checked = Flags(check_only=True)
    with using(checked):
        server.run()
    lines = [line for report in checked.reports for line in report.splitlines()]
    found = [each.split(maxsplit=1)[1] for each in lines if each.split()[:1] == ["warning"]]
    assert len(found) == len(texts)
    assert all(any(each.startswith(text) for each in found) for text in texts)


def test_a_file_overrides_the_defaults_of_the_command(tmp_path: Path) -> None:
    scale(tmp_path / "m.onnx", 2.0)
    file = tmp_path / "models.yml"
    file.write_text(f"models: {{m: {{path: {tmp_path}/m.onnx}}}}\nserver: {{host: 127.0.0.1}}\n")
    config = parse(["--config", str(file)], OF_THE_ORIGINAL)[0].config
    assert (config["host"], config["missing_device"]) == ("127.0.0.1", "cpu")


def test_instruments_and_applications_of_a_file_are_made_once(tmp_path: Path) -> None:
    scale(tmp_path / "m.onnx", 2.0)
    file = tmp_path / "models.yml"
    file.write_text(
        f"models: {{a: {tmp_path}/m.onnx, b: {tmp_path}/m.onnx}}\n"
        "server: {instruments: [theirs:Counts], applications: [theirs:Page]}\n"
    )
    first, second = (each.config for each in parse(["--config", str(file)])[0].services)
    assert (first["instruments"], first["applications"]) == (["theirs:Counts"], ["theirs:Page"])
    assert not {"instruments", "applications"} & second.keys()


def test_the_original_s_ocr_of_two_models_is_refused(tmp_path: Path) -> None:
    for name in ("ocr_det_model", "ocr_rec_model"):
        (tmp_path / name).mkdir()
    models = ["--model", *(str(tmp_path / name) for name in ("ocr_det_model", "ocr_rec_model"))]
    with pytest.raises(StartupError, match="GeneralDetectionOp, which is not available here"):
        parse(models, OF_THE_ORIGINAL)


def test_every_flag_of_the_original_is_accepted(tmp_path: Path) -> None:
    flags = [
        *("start", "--model", str(scale(tmp_path / "m.onnx", 2.0))),
        *(
            "--thread",
            "8",
            "--port",
            "9292",
            "--workdir",
            "w",
            "--gpu_ids",
            "-1",
            "--device",
            "cpu",
        ),
        *("--runtime_thread_num", "2", "--batch_infer_size", "16", "--use_mkl", "--mem_optim_off"),
        *("--ir_optim", "--max_body_size", "1000000", "--product_name", "p", "--container_id", "c"),
        *("--enable_prometheus", "--prometheus_port", "0", "--min_subgraph_size", "x"),
        *(
            "--gpu_memory_mb",
            "50",
            "--cpu_math_thread_num",
            "2",
            "--trt_workspace_size",
            "33554432",
        ),
        *("--trt_use_static", "--request_cache_size", "0", "--encryption_rpc_port", "12000"),
        *("--dist_subgraph_index", "-1", "--dist_nranks", "0", "--precision", "fp32"),
    ]
    server, keys = parse(flags)
    assert keys["max_message_bytes"] == 1000000
    (workflow,) = server.workflows
    (node,) = workflow.nodes
    assert node.options["concurrency"] == 2
    assert node.options["local_service_conf"]["thread_num"] == 2


def test_the_ports_have_the_flags_of_penstock_run_as_well() -> None:
    _, run = parse([*MODEL, "--http-port", "8001", "--rpc-port", "8002"])
    _, serve = parse([*MODEL, "--port", "8001", "--grpc_port", "8002"])
    assert run == serve
    assert (run["http_port"], run["rpc_port"]) == (8001, 8002)


def test_the_flags_of_the_first_releases_for_batches_are_those_of_the_last() -> None:
    old, _ = parse([*MODEL, "--op_num", "2", "--op_max_batch", "8"])
    new, _ = parse([*MODEL, "--runtime_thread_num", "2", "--batch_infer_size", "8"])
    assert old.workflows == new.workflows


def test_flags_with_fewer_values_than_models_are_repeated(tmp_path: Path) -> None:
    files = [str(scale(tmp_path / f"m{index}.onnx", 2.0)) for index in range(3)]
    server, keys = parse(
        ["--model", *files, "--runtime_thread_num", "2", "0", "--batch_infer_size", "8"]
    )
    assert keys == {}
    (row,) = server.workflows
    options = [each.options for each in row.nodes]
    assert row.name == "m2"
    assert [each["concurrency"] for each in options] == [2, 4, 2]
    assert [each["batch_size"] for each in options] == [8, 1, 8]
    server, _ = parse(["--model", files[0], "--model", files[0]])
    with pytest.raises(StartupError, match=r"write --model NAME=PATH"):
        server.services  # noqa: B018
    assert json.dumps(server.workflows[0].nodes[0].options)


def test_folders_of_versions_are_models_named_by_the_folders_above(tmp_path: Path) -> None:
    folders = [tmp_path / "encoder" / "1", tmp_path / "head" / "2"]
    for each in folders:
        each.mkdir(parents=True)
    server, _ = parse([*map(str, folders)])
    assert [each.name for each in server.workflows] == ["encoder", "head"]


@pytest.mark.real
def test_a_size_of_batches_without_workers_that_run_batches_is_one_warning(
    tmp_path: Path,
) -> None:
    files = [str(scale(tmp_path / f"m{index}.onnx", 2.0)) for index in range(2)]
    models = ["--model", files[0], "--model", files[1], "--batch_infer_size", "8"]

    def warnings_of(*threads: str) -> list[str]:
        server, _ = parse([*models, "--runtime_thread_num", *threads])
        flags = Flags(check_only=True)
        with using(flags):
            server.run()
        lines = [line for report in flags.reports for line in report.splitlines()]
        return [each.split(maxsplit=1)[1] for each in lines if each.split()[:1] == ["warning"]]

    (text,) = warnings_of("0")
    assert text.startswith("--batch_infer_size has no effect without --runtime_thread_num")
    assert warnings_of("0", "2") == []


def test_the_original_s_metrics_have_their_own_port(tmp_path: Path) -> None:
    model = scale(tmp_path / "twice.onnx", 2.0)
    assert parse(["--model", str(model), "--enable_prometheus"])[1] == {
        "dag.enable_prometheus": True,
        "dag.prometheus_port": 19393,
    }
    flags = ("--enable_prometheus", "--prometheus_port", "0")
    with running(model, *flags, command=SERVE, timeout=60) as server:
        assert infer(server, "twice", ROW)[0] == 200
        (url,) = re.findall(r"(http://\S+) +GET /metrics alone", server.log())
        for text in (
            httpx.get(f"{url}/metrics").text,
            httpx.get(f"{server.http_url}/metrics").text,
        ):
            labels = 'model="twice",op="twice",service="twice",version="1"'
            assert f"pd_inference_count_total{{{labels}}} 1.0" in text
        assert httpx.get(f"{url}/v2/models/twice").status_code == 404


@pytest.mark.real
@pytest.mark.parametrize("flags", [(), ("--pad",)])
def test_requests_of_many_shapes_get_correct_results(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    model = plus_one(tmp_path / "plus.onnx")
    more = ("--runtime_thread_num", "2", "--batch_infer_size", "8", *flags)
    shapes = [(1 + i % 19, 20 + 7 * i % 23, 3 + i % 2) for i in range(60)]
    with running(model, *more, command=SERVE, timeout=60) as server:

        def is_correct(shape: tuple[int, int, int]) -> bool:
            x = np.random.default_rng(shape[0]).random(shape, np.float32)
            tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": x.ravel().tolist()}
            body = {"inputs": [tensor], "outputs": [{"name": "y"}]}
            status, found = infer(server, "plus", body)
            (output,) = found["outputs"]
            y = np.array(output["data"], "f4").reshape(output["shape"])
            return status == 200 and y.shape == shape and bool(np.allclose(y, x + 1))

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(is_correct, shapes))
        statistics = httpx.get(f"{server.http_url}/v2/models/plus/stats").json()
        (found,) = statistics["model_stats"]
        assert found["inference_count"] == sum(shape[0] for shape in shapes)
        assert found["inference_stats"]["success"]["count"] == 60
        (graph,) = httpx.get(f"{server.http_url}/status").json()["graphs"]
        (op,) = graph["ops"]
        assert (op["elements"] > 0) == (flags == ("--pad",))


OPS = [
    "GeneralReaderOp",
    "GeneralInferOp",
    "GeneralCopyOp:0",
    "GeneralInferOp:0",
    "GeneralResponseOp",
]


def test_redundant_op_flags_are_accepted_and_others_refused(tmp_path: Path) -> None:
    files = [str(scale(tmp_path / f"m{index}.onnx", 2.0)) for index in range(2)]
    server, _ = parse(["--model", *files, "--op", *OPS])
    (row,) = server.workflows
    assert [(each.name, each.reads) for each in row.nodes] == [("m1_0", None), ("m1_1", "m1_0")]
    for arguments, text in (
        (["--model", *files, "--op", "GeneralInferOp"], "has GeneralInferOp 1 time, but there are"),
        (["--model", *files, "--op", *OPS, "MyOp"], "--op MyOp is not available here"),
        (["--model", files[0], "--model", files[1], "--op", *OPS], "give that flag once"),
        (["--model", *files, "--config", "x"], "leave out --model and --op"),
    ):
        with pytest.raises(StartupError, match=text):
            parse(arguments)


FILE = """
models:
  two: {two}
  first: {first}
  six: {{path: {six}, concurrency: 2, batch_size: 8, executor: process}}
workflows:
  row: [first, six]
  both: {{two: request, six: request}}
services:
  Twelve: row
  Chosen: {{a: row, b: both}}
server: {{max_requests: 100}}
"""


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("models")
    file = folder / "serve.yml"
    two, six = scale(folder / "two.onnx", 2.0), scale(folder / "six.onnx", 6.0)
    first = folder / "first"
    first.mkdir()
    scale(first / "model.onnx", 2.0)
    (first / "serving_server_conf.prototxt").write_text(CONF)
    file.write_text(FILE.format(two=two, six=six, first=first))
    with running(file, command=(*SERVE[:-1], "--config"), timeout=60) as server:
        yield server


@pytest.mark.real
def test_workflows_and_services_of_a_file_are_served(configured: ServiceProcess) -> None:
    tensor = {"name": "x", "elem_type": 1, "shape": [1, 3], "float_data": [1, 2, 3]}
    body = {"tensor": [tensor], "fetch_var_names": ["y"]}

    def infer_over(path: str, **more: Any) -> Any:
        reply = httpx.post(f"{configured.http_url}/{path}/inference", json={**body, **more})
        if reply.status_code != 200:
            return reply.status_code, reply.json()["err_msg"]
        return {
            each["engine_name"]: [one["float_data"] for one in each["tensor"]]
            for each in reply.json()["outputs"]
        }

    assert infer_over("Twelve") == infer_over("Chosen", model="a") == {"six": [[12, 24, 36]]}
    both = {"two": [[2, 4, 6]], "six": [[6, 12, 18]]}
    assert infer_over("Chosen", model="b") == both
    assert (
        infer_over("GeneralModelService/both")
        == infer_over("GeneralModelService", model="both")
        == both
    )
    everything = infer_over("GeneralModelService", model="both", fetch_var_names=[])
    assert everything == {
        "two": [[2, 4, 6], [4, 8, 12]],
        "six": [[6, 12, 18], [12, 24, 36]],
    }
    assert (
        f"  model six    version 1, onnx: {TENSORS}" in configured.log()
    )  # loaded in another process
    assert infer_over("Chosen") == (404, "`model` is one of 'a', 'b', got ''")


@pytest.mark.real
def test_an_ensemble_is_served_over_the_other_protocols(configured: ServiceProcess) -> None:
    metadata = httpx.get(f"{configured.http_url}/v2/models/both").json()
    assert [each["name"] for each in metadata["inputs"]] == ["x"]
    assert [each["name"] for each in metadata["outputs"]] == [
        "two/y",
        "two/twice",
        "six/y",
        "six/twice",
    ]
    status, reply = infer(configured, "both", {**ROW, "outputs": [{"name": "six/y"}]})
    assert (status, reply["outputs"][0]["data"]) == (200, [6, 12, 18])
    plain = httpx.post(f"{configured.http_url}/both", json={"x": [[1, 2, 3]]}).json()
    assert plain["two/y"] == [[2, 4, 6]]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("models: {}", ["file:1: models: must be a mapping of at least one name to a path, or"]),
        ("workflows: {a: [b]}", ["file: models: must be a mapping of at least one name"]),
        ("models: {a: {pth: x}}", ["file:1: models.a: needs `path`, the model's folder or file"]),
        ("models: {a: 1}", ["file:1: models.a: must be a path, or a mapping", ", got 1"]),
        ("models: {a: }", ["file:1: models.a: must be a path", ", got nothing"]),
        ("models: {a b: x}", ["file:1: models: the name 'a b' must have 1 to 64 letters, digits"]),
        ("models: {1: x}", ["file:1: models: the key 1 is not text: put it in quotes"]),
        ("models: {a: x}\nmodel: {}", ["file:2: model: is not a known key; did you mean models?"]),
        (
            "models:\n  a: {path: x, concurrencyy: 2}",
            ["file:2: models.a.concurrencyy: is not a known key; did you mean concurrency?"],
        ),
        (
            "models:\n  a: {path: x, local_service_conf: {devices: 0, model_config: y}}",
            [
                'models.a.local_service_conf.devices: must be text, got 0: put it in quotes, "0"',
                "models.a.local_service_conf.model_config: `path` says which model",
            ],
        ),
        (
            "models: {a: x}\nserver: {http_prt: 80, name: x, op: {}}",
            [
                "file:2: server.http_prt: is not a known key; did you mean http_port?",
                "file:2: server.name: does not belong here: the names are those of the workflows",
                "file:2: server.op: does not belong here: keys of an op belong under models",
            ],
        ),
        ("models: {a: x}\nserver: []", ["file:2: server: must be a mapping of keys of a service"]),
        (
            "models: {a: x}\nworkflows: {w: a}",
            ["file:2: workflows.w: must be a list of models, or"],
        ),
        (
            "models: {a: x}\nservices: {S: 1}",
            ["file:2: services.S: must be a workflow, or", "got 1"],
        ),
        ("a: [", ["file:1: is not valid YAML"]),
        ("- a", ["file:1: the top of the file must be a mapping of keys"]),
        ("models: {a: x}\nworkflows: {w: [a, b]}", ["file:2: workflows.w: there is no model 'b'"]),
        ("models: {a: x}\nworkflows: {w: []}", ["file:2: workflows.w: has no model"]),
        ("models: {a: x}\nworkflows: {w: [a, a]}", ["file:2: workflows.w: has a model twice"]),
        (
            "models: {a: x}\nworkflows: {w: {a: b}}",
            ["'a' reads 'b', which is neither one of its models nor"],
        ),
        (
            "models: {a: x, b: y}\nworkflows: {w: {a: b, b: a}}",
            ["file:2: workflows.w: 'a' reads its own output"],
        ),
        ("models: {a: x}\nservices: {S: w}", ["file:2: services.S: there is no workflow 'w'"]),
        ("models: {a: nowhere}", ["nowhere: no such file or folder"]),
    ],
)
def test_errors_in_a_file_have_line_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problems: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text(text)
    with pytest.raises(StartupError) as raised:
        parse(["--config", "file"])
    for problem in problems:
        assert problem in str(raised.value)
    lines = str(raised.value).splitlines()
    assert len(lines) == len({*lines})
    with pytest.raises(StartupError, match=r"^nofile: cannot be read: No such file"):
        parse(["--config", "nofile"])


@pytest.mark.real
def test_an_unknown_path_is_404_with_the_nearest_route(tmp_path: Path) -> None:
    model = scale(tmp_path / "doubles.onnx", 2.0)
    pairs = {"key": ["x"], "value": ["[[1, 2, 3]]"]}
    with running(model, command=SERVE, timeout=60) as server:
        with httpx.Client(base_url=server.http_url) as http:
            for path, hint in (
                ("/v1/completions", "; /docs lists them"),
                ("/v1/models/doubles:predict", ""),
                ("/doubls", "; did you mean /doubles?"),
                ("/doubls/prediction", ""),
                ("/nothing/prediction", "; /docs lists them"),
            ):
                for answer in (http.post(path, json=pairs), http.get(path)):
                    assert answer.status_code == 404
                    assert answer.headers["content-type"] == "application/json"
                    assert answer.json()["error"] == "unknown_service"
                    assert answer.json()["message"].startswith(f"there is no route {path}{hint}")
            for path in ("/doubles/prediction", "/doubl%65s/any"):
                reply = http.post(path, json=pairs).json()
                assert (reply["err_no"], reply["key"]) == (0, ["y", "twice"]), reply
            assert "error" in http.post("/v2/nothing", json=pairs).json()


@pytest.mark.real
def test_a_body_over_the_limit_is_counted_once_by_every_protocol(tmp_path: Path) -> None:
    model = scale(tmp_path / "m.onnx", 2.0)
    routes = ("v2/models/m/infer", "m", "GeneralModelService/m/inference", "m/prediction")
    methods = ("inference.GRPCInferenceService/ModelInfer", f"{GENERAL_MODEL}/inference")
    large = b" " * 3000
    with running(model, "--max_body_size", "2000", command=SERVE, timeout=60) as server:

        def too_large() -> int:
            count = httpx.get(f"{server.http_url}/status").json()["door"]["bodies_too_large"]
            return int(count)

        expected = 0
        for route in routes:
            for body in (large, iter([large]), iter([large[:1500], large])):
                reply = httpx.post(f"{server.http_url}/{route}", content=body)
                expected += 1
                assert (reply.status_code, too_large()) == (413, expected)
        with grpc.insecure_channel(server.rpc_endpoint) as channel:
            for method in methods:
                with pytest.raises(grpc.RpcError):
                    channel.unary_unary(f"/{method}")(large, timeout=30)
                expected += 1
                assert too_large() == expected


@pytest.mark.real
def test_models_with_a_fixed_number_of_rows_run_one_request_at_a_time(tmp_path: Path) -> None:
    for rows in (1, 4):
        text = f"(float[{rows}, 3] x) => (float[{rows}, 3] y) {{ y = Add(x, x) }}"
        save(tmp_path / f"m{rows}.onnx", text)
    files = (tmp_path / "m1.onnx", "--model", str(tmp_path / "m4.onnx"))
    with running(*files, "--runtime_thread_num", "2", command=SERVE, timeout=60) as server:
        with PipelineClient() as client:
            client.connect([server.rpc_endpoint])

            def predict(model: str, rows: int) -> list[Any]:
                feed = {"x": np.full((rows, 3), rows, np.float32)}
                more: dict[str, Any] = {"asyn": True, "pack_tensor_format": True, "timeout": 30}
                futures = [client.predict(feed, name=model, **more) for _ in range(16)]
                return [each.result() for each in futures]

            for model, rows in (
                ("m1", 1),
                ("m4", 4),
                ("m1", 3),
                ("m4", 8),
            ):  # two of them are split into pieces
                for reply in predict(model, rows):
                    y = response_arrays(reply)["y"]
                    np.testing.assert_array_equal(y, np.full((rows, 3), 2 * rows, np.float32))
            for reply in predict("m4", 2):
                assert "expected the shape [4, 3], got [2, 3]" in reply.err_msg
        (stage,) = httpx.get(f"{server.http_url}/status").json()["graphs"][0]["ops"]
        assert stage["batches"] == stage["samples"]
    other = (*files, "--runtime_thread_num", "2", "--batch_infer_size", "8")
    with running(*other, command=SERVE, timeout=60) as server:
        why = "batch_size: 8 has no effect, since its model takes exactly 4 rows a run: write 4"
        assert f"op 'm4/m4': {why}" in server.log()
        assert re.search(r"  op    m4 .* batches of 4\b", server.log())
        assert re.search(r"  op    m1 .* not batched", server.log())


@pytest.mark.real
def test_a_model_s_fetch_list_applies_to_replies_and_to_next_models(tmp_path: Path) -> None:
    file = tmp_path / "serve.yml"
    two, six = scale(tmp_path / "two.onnx", 2.0), scale(tmp_path / "six.onnx", 6.0)
    conf = {"local_service_conf": {"fetch_list": ["y"]}}
    models = {"two": {"path": str(two), **conf}, "six": {"path": str(six), **conf}}
    file.write_text(json.dumps({"models": models, "workflows": {"row": ["two", "six"]}}))
    with running(file, command=(*SERVE[:-1], "--config"), timeout=60) as server:
        plain = httpx.post(f"{server.http_url}/row", json={"x": [[1, 2, 3]]}).json()
        assert plain == {"y": [[12, 24, 36]]}
