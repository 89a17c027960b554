"""The public classes of a script: names, order of calls, refused arguments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import Op, PipelineServer, RequestOp, ResponseOp, WebService
from penstock.errors import ConfigError, GraphError, StartupError
from penstock.service import flags, run
from penstock.service.blueprint import Deployment


class Echo(WebService):
    def get_pipeline_response(self, read_op: RequestOp) -> Op:
        return Op("echo", input_ops=[read_op])


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Deployment]:
    """The deployments that would have been served; nothing is served."""
    calls: list[Deployment] = []
    monkeypatch.setattr(run, "run_deployment", calls.append)
    return calls


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_NAME", "PENSTOCK_RPC_PORT", "PENSTOCK_HTTP_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def importing() -> Iterator[None]:
    with flags.using(flags.Flags(importing=True)):
        yield


def prepared(name: str | None = None, /, **config: Any) -> PipelineServer:
    server = PipelineServer(name)
    server.set_response_op(ResponseOp(input_ops=[Op("echo", input_ops=[RequestOp()])]))
    server.prepare_server(yml_dict={"rpc_port": 0, **config})
    return server


@pytest.mark.parametrize("given", [{}, {"yml_file": "a.yml", "yml_dict": {}}])
@pytest.mark.parametrize("kind", [PipelineServer, Echo])
def test_prepare_requires_either_a_file_or_a_dict(kind: type[Any], given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="prepare_server: give either yml_file or yml_dict"):
        kind().prepare_pipeline_config(**given)


def test_prepare_pipeline_config_is_the_same_call_as_prepare_server() -> None:
    assert PipelineServer.prepare_pipeline_config is PipelineServer.prepare_server


@pytest.mark.parametrize(
    ("kind", "missing"), [(PipelineServer, "set_response_op"), (Echo, "prepare_pipeline_config")]
)
def test_run_before_prepare_is_refused(kind: type[Any], missing: str) -> None:
    server = kind()
    start = server.run_server if kind is PipelineServer else server.run_service
    with pytest.raises(StartupError, match=f"call {missing} before running"):
        start()


def test_a_relative_path_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yml").write_text("rpc_port: 0\n")
    monkeypatch.chdir(tmp_path)
    server = PipelineServer()
    server.prepare_server("config.yml")
    assert server.is_prepared


def test_a_web_service_serves_its_graph_under_its_name(served: list[Any]) -> None:
    service = Echo("uci")
    assert not service.is_prepared
    service.prepare_pipeline_config(yml_dict={"rpc_port": 0})
    assert service.is_prepared
    service.run_service()
    ((graph,),) = (each.graphs for each in served)
    assert (graph.name, graph.graph.plan.names) == ("uci", ("echo",))


@pytest.mark.parametrize("returned", [None, [Op("a")], "op"])
def test_a_graph_that_does_not_end_in_an_op_is_a_value_error(returned: Any) -> None:
    class Wrong(WebService):
        def get_pipeline_response(self, read_op: RequestOp) -> Op:
            return returned  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match=r"Wrong.get_pipeline_response must return the last op"):
        Wrong().prepare_pipeline_config(yml_dict={"rpc_port": 0})
    with pytest.raises(GraphError):
        Wrong().prepare_pipeline_config(yml_dict={"rpc_port": 0})


def test_a_web_service_without_a_graph_is_an_error_with_the_method_to_override() -> None:
    with pytest.raises(StartupError, match="WebService has no get_pipeline_response: override it"):
        WebService().prepare_pipeline_config(yml_dict={"rpc_port": 0})


def test_a_service_class_may_define_its_own_defaults(served: list[Any]) -> None:
    class Old(Echo):
        defaults: ClassVar[dict[str, object]] = {"max_requests": 7, "name": "ours"}
        legacy = True

    for given, most in (({}, 7), ({"max_requests": 9}, 9)):
        service = Old()
        service.prepare_pipeline_config(yml_dict={"rpc_port": 0, **given})
        service.run_service()
        assert (served[-1].config.max_requests, served[-1].legacy) == (most, True)
        assert served[-1].graphs[0].name == "ours"


# The name


@pytest.mark.parametrize(
    ("flag", "environment", "constructor", "yaml", "name"),
    [
        (None, None, None, None, None),
        (None, None, None, "yaml", "yaml"),
        (None, None, "code", "yaml", "code"),
        (None, "env", "code", "yaml", "env"),
        ("flag", "env", "code", "yaml", "flag"),
    ],
)
def test_a_name_comes_from_flag_environment_constructor_or_yaml_in_this_order(
    flag: str | None,
    environment: str | None,
    constructor: str | None,
    yaml: str | None,
    name: str | None,
    served: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if environment:
        monkeypatch.setenv("PENSTOCK_NAME", environment)
    with flags.using(flags.Flags(overrides={"name": flag} if flag else {})):
        prepared(constructor, **({"name": yaml} if yaml else {})).run_server()
    assert served[0].graphs[0].name == name


@pytest.mark.parametrize(("yaml", "name"), [(None, "default_service"), ("yaml", "yaml")])
def test_a_web_service_s_default_name_has_the_lowest_priority(
    yaml: str | None, name: str, served: list[Any]
) -> None:
    service = Echo()
    service.prepare_pipeline_config(yml_dict={"rpc_port": 0, **({"name": yaml} if yaml else {})})
    service.run_service()
    assert served[0].graphs[0].name == name


@pytest.mark.parametrize("name", ["", "a/b", "a\nb"])
def test_a_name_that_cannot_be_part_of_a_url_is_refused(name: str, served: list[Any]) -> None:
    with pytest.raises(StartupError, match="cannot be part of a URL"):
        prepared(name).run_server()
    assert served == []


# A script that is imported for its definitions


@pytest.mark.usefixtures("importing")
def test_an_imported_script_prepares_and_serves_nothing(served: list[Any]) -> None:
    service = Echo("uci")
    service.prepare_pipeline_config("no such file.yml")
    service.run_service()
    server = PipelineServer()
    server.prepare_server("no such file.yml")
    server.run_server()
    assert served == []
    assert not service.is_prepared


def test_a_check_reports_and_serves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with flags.using(flags.Flags(check_only=True)) as current_flags:
        prepared("uci").run_server()
    assert current_flags.served == ["uci"]
    assert current_flags.reports == [
        "uci: the configuration and the graph are good\n  op    echo  after request  1 thread"
    ]
    assert capsys.readouterr().out == ""
