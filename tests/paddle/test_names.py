"""All names that the original's scripts import exist, and importing them is fast."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import penstock
from penstock.config.op import OpConfig
from penstock.config.schema import ServiceConfig
from penstock.config.section import Section, keys_of
from penstock.protocols import pb
from tests.documents import ROOT, rows_of, section

PIPELINE = {
    "paddle_serving_server.web_service": ["Op", "WebService"],
    "paddle_serving_server.pipeline": [
        "Analyst",
        "LocalServiceHandler",
        "Op",
        "PipelineClient",
        "PipelineServer",
        "RequestOp",
        "ResponseOp",
    ],
    "paddle_serving_server.pipeline.analyse": ["Analyst", "OpAnalyst"],
    "paddle_serving_server.pipeline.channel": [
        "ChannelData",
        "ChannelDataEcode",
        "ChannelDataErrcode",
        "ChannelDataType",
    ],
    "paddle_serving_server.pipeline.dag": [],
    "paddle_serving_server.pipeline.error_catch": [
        "CustomException",
        "CustomExceptionCode",
        "ProductErrCode",
    ],
    "paddle_serving_server.pipeline.local_service_handler": ["LocalServiceHandler"],
    "paddle_serving_server.pipeline.logger": [],
    "paddle_serving_server.pipeline.operator": ["Op", "RequestOp", "ResponseOp"],
    "paddle_serving_server.pipeline.pipeline_client": ["PipelineClient", "PipelinePredictFuture"],
    "paddle_serving_server.pipeline.pipeline_server": ["PipelineServer"],
    "paddle_serving_server.pipeline.profiler": [],
    "paddle_serving_server.pipeline.proto": ["pipeline_service_pb2", "pipeline_service_pb2_grpc"],
    "paddle_serving_server.pipeline.proto.pipeline_service_pb2": ["Request", "Response", "Tensor"],
    "paddle_serving_server.pipeline.proto.pipeline_service_pb2_grpc": [
        "PipelineServiceServicer",
        "PipelineServiceStub",
        "add_PipelineServiceServicer_to_server",
    ],
    "paddle_serving_server.pipeline.util": [],
    "paddle_serving_server.dag": [],
    "paddle_serving_server.monitor": [],
    "paddle_serving_server.serve": [],
    "paddle_serving_server.server": [],
    "paddle_serving_server.util": ["ArgsParser"],
    "paddle_serving_server.version": ["module_proto_version", "serving_server_version"],
}
NAMES = {
    **PIPELINE,
    **{
        module.replace("paddle_serving_server", "paddle_serving_server_gpu", 1): names
        for module, names in PIPELINE.items()
    },
    "paddle_serving_client": ["Client", "HttpClient"],
    "paddle_serving_client.client": ["Client"],
    "paddle_serving_client.convert": [],
    "paddle_serving_client.httpclient": ["HttpClient"],
    "paddle_serving_client.io": [
        "inference_model_to_serving",
        "save_dygraph_model",
        "save_model",
    ],
    "paddle_serving_client.metric": ["acc", "auc"],
    "paddle_serving_client.metric.acc": ["acc"],
    "paddle_serving_client.metric.auc": ["auc"],
    "paddle_serving_client.pipeline": ["PipelineClient"],
    "paddle_serving_client.utils": ["MultiThreadRunner", "benchmark_args", "show_latency"],
    "paddle_serving_client.version": ["module_proto_version", "serving_client_version"],
    "paddle_serving_app": [],
    "paddle_serving_app.local_predict": ["LocalPredictor"],
    "paddle_serving_app.package": [],
    "paddle_serving_app.trace": [],
    "paddle_serving_app.version": ["module_proto_version", "serving_app_version"],
}
HEAVY = {
    "PIL",
    "cv2",
    "grpc",
    "onnxruntime",
    "paddle",
    "pyclipper",
    "pydantic",
    "requests",
    "sentencepiece",
    "shapely",
    "uvloop",
}

IMPORTS = [
    f"from {module} import {', '.join(names)}" if names else f"import {module}"
    for module, names in NAMES.items()
]


@pytest.mark.parametrize("line", IMPORTS)
def test_every_name_can_be_imported(line: str) -> None:
    exec(line)


@pytest.mark.parametrize("module", [module for module, names in NAMES.items() if names])
def test_import_star_has_every_name(module: str) -> None:
    found: dict[str, object] = {}
    exec(f"from {module} import *", found)
    modules = {name for name in NAMES[module] if f"{module}.{name}" in NAMES}
    assert {*NAMES[module]} - modules <= {*found}


def test_importing_all_modules_imports_no_large_library_and_changes_no_state(
    tmp_path: Path,
) -> None:
    state = (
        "[threading.active_count(), logging.getLogger().handlers, logging.getLogger().level,"
        " str(numpy.get_printoptions()), sorted(os.environ), os.listdir()]"
    )
    lines = [
        "import json, logging, os, sys, threading, numpy",
        f"before = {state}",
        *IMPORTS,
        f"assert {state} == before",
        f"print(json.dumps(sorted({HEAVY!r} & {{*sys.modules}})))",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        cwd=tmp_path,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout) == []


def test_the_names_are_penstocks_classes() -> None:
    from paddle_serving_server.pipeline import Op, PipelineServer
    from paddle_serving_server.pipeline.channel import ChannelDataErrcode
    from paddle_serving_server.pipeline.proto import pipeline_service_pb2
    from paddle_serving_server.web_service import WebService

    assert Op is penstock.Op
    assert ChannelDataErrcode is penstock.CustomExceptionCode
    assert pipeline_service_pb2.Response is pb.Response
    assert issubclass(WebService, penstock.WebService)
    assert issubclass(PipelineServer, penstock.PipelineServer)


def test_services_have_the_originals_defaults() -> None:
    from paddle_serving_server.pipeline import PipelineServer
    from paddle_serving_server.web_service import WebService

    for each in (PipelineServer, WebService):
        assert each.legacy
        assert each.defaults == {"host": "0.0.0.0", "missing_device": "cpu"}


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("from paddle_serving_server import OpSeqMaker", "paddle_serving_server.serve"),
        ("from paddle_serving_server.server import Server", "paddle_serving_server.serve"),
        ("from paddle_serving_server.dag import OpMaker", "paddle_serving_server.serve"),
        ("from paddle_serving_server.monitor import Monitor", "python -m paddle_serving_server"),
        ("from paddle_serving_server.pipeline.dag import DAGExecutor", "make the graph"),
        ("from paddle_serving_server.pipeline.channel import ThreadChannel", "channel_size"),
        ("from paddle_serving_server.pipeline.profiler import TimeProfiler", "penstock trace"),
        ("from paddle_serving_server.pipeline.util import NameGenerator", "inside"),
        ("from paddle_serving_server.pipeline.error_catch import ErrorCatch", "CustomException"),
    ],
)
def test_the_error_for_a_missing_name_names_the_replacement(line: str, instead: str) -> None:
    with pytest.raises(ImportError, match=instead):
        exec(line)


@pytest.mark.parametrize("package", ["server", "server_gpu", "client", "app"])
def test_the_version_is_that_of_the_original_s_names(package: str) -> None:
    assert import_module(f"paddle_serving_{package}").__version__ == "0.9.0"


def test_an_unknown_name_is_an_import_error() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from paddle_serving_server.pipeline.channel import Nothing")
    assert not hasattr(import_module("paddle_serving_server"), "Nothing")


def test_the_error_for_a_missing_method_of_web_service_names_the_replacement() -> None:
    from paddle_serving_server.web_service import WebService

    service = WebService(name="uci")
    for name in ("load_model_config", "run_rpc_service"):
        with pytest.raises(AttributeError, match=r"paddle_serving_server\.serve"):
            getattr(service, name)
    with pytest.raises(AttributeError, match="'WebService' object has no attribute 'nothing'"):
        _ = service.nothing


# The guide to migration


def test_the_guide_to_migration_lists_every_name() -> None:
    table = rows_of(section((ROOT / "docs/migration.md").read_text(), "Names"))
    listed = {word for row in table for word in re.findall(r"`([\w.]+)`", row[0])}
    documented = {module: names for module, names in NAMES.items() if "_gpu" not in module}
    assert {*documented} <= listed
    assert {name for names in documented.values() for name in names} <= listed


def test_the_guide_to_migration_lists_existing_keys() -> None:
    table = rows_of(section((ROOT / "docs/migration.md").read_text(), "Configuration keys"))
    listed = [word for row in table for word in re.findall(r"`([\w.]+)`", row[0])]
    assert len(listed) == len({*listed}) == 41
    for key in listed:
        section_of: type[Section] = ServiceConfig
        *outer, last = key.split(".")
        for name in outer:
            inner = keys_of(section_of)[name]
            section_of = OpConfig if name == "op" else inner
        assert last in keys_of(section_of), key
