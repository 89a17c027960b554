"""The short form as a program, whose length is guaranteed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock import RequestOp
from penstock.errors import ConfigError
from penstock.service.blueprint import Blueprint, deploy
from penstock.service.server import prepared
from tests.kit.onnx_models import scale
from tests.service.scripts import PENSTOCK, PYTHON, post
from tests.services.process import running

PROGRAM = """\
from penstock import Model, Service, op

left = Model("left.onnx")
right = Model("right.onnx")


@op(left, right)
def combine(left, right):
    return {"mean": (left["y"] + right["y"]) / 2}


service = Service("ensemble", combine)
service.run()
"""


def test_two_models_joined_by_a_function_need_at_most_twenty_lines() -> None:
    assert len(PROGRAM.splitlines()) <= 20


@pytest.mark.real
@pytest.mark.parametrize(
    ("way", "last_line"),
    [
        (PYTHON, "service.run()"),
        (PENSTOCK, "service.run()"),
        (PENSTOCK, ""),
        (PYTHON, "service.run_service()"),
    ],
    ids=["python", "penstock run", "penstock run of a script that runs nothing", "run_service"],
)
def test_two_models_and_a_function_are_served_without_configuration(
    way: tuple[str, ...], last_line: str, tmp_path: Path
) -> None:
    scale(tmp_path / "left.onnx", 10)
    scale(tmp_path / "right.onnx", 100)
    path = tmp_path / "ensemble.py"
    path.write_text(PROGRAM.replace("service.run()", last_line))
    with running(path, command=way) as server:
        answer = post(server, "ensemble", x="[[1, 2, 3], [4, 5, 6]]").json
        assert answer["err_no"] == 0
        assert answer["value"] == [
            "array([[ 55., 110., 165.],\n       [220., 275., 330.]], dtype=float32)"
        ]
        wrong = post(server, "ensemble", x="no array").json
        assert wrong["err_no"] != 0
        assert "'x' is no array" in wrong["err_msg"] or "x is no array" in wrong["err_msg"]
        assert server.stop() == 0


@pytest.mark.parametrize("http_port", [None, 9480])
def test_without_configured_ports_the_documented_defaults_are_used(http_port: int | None) -> None:
    from penstock import App, Service, op

    @op()
    def echo(request: dict[str, str]) -> dict[str, str]:
        return request

    def echo_typed(text: str) -> str:
        return text

    given = {} if http_port is None else {"http_port": http_port}
    app = App("typed", **given)
    app.route("/echo")(echo_typed)
    service = Service("echo", echo, **given)
    for each in (service, *app.services):
        each.prepare_beside({})
        drawn = each.blueprint()
        assert (drawn.config.http_port, drawn.config.rpc_port) == (http_port or 8080, None)
        assert drawn.one_port  # gRPC shares it


def test_gRPC_gets_its_port_where_a_file_or_a_class_of_services_defines_the_service(
    tmp_path: Path,
) -> None:
    from penstock import Op, Service, WebService
    from penstock.service.blueprint import deploy

    class Echo(WebService):
        def get_pipeline_response(self, read_op: RequestOp) -> Op:
            return Op("echo", [read_op])

    file = tmp_path / "config.yml"
    file.write_text("http_port: 18080\n")
    of_class, of_file, short = Echo("a"), Service("b", Op("b")), Service("c", Op("c"))
    of_class.prepare_pipeline_config(file)
    of_file.prepare_pipeline_config(file)
    short.prepare_beside({"http_port": 18080})
    drawn = [each.blueprint() for each in (of_class, of_file, short)]
    assert [deploy([each]).one_port for each in drawn] == [False, False, True]
    assert not deploy(drawn).one_port  # clients of the first two expect it


def test_a_file_overrides_single_keys_of_a_service_s_constructor(tmp_path: Path) -> None:
    from penstock import Op, Service

    keys = {"executor": "process", "concurrency": 2}
    service = Service("s", Op("net.v1"), deadline=2, http_port=0, op={"net.v1": keys})
    file = tmp_path / "config.yml"
    file.write_text("rpc_port: 0\nop: {net.v1: {concurrency: 3}}\n")
    service.prepare_pipeline_config(file)
    config = service.blueprint().config
    assert (config.deadline, config.http_port, config.rpc_port) == (2, 0, 0)
    op = config.op["net.v1"]  # a dot in a name does not divide the key
    assert (op.executor, op.concurrency) == ("process", 3)


def test_the_constructor_s_keys_may_have_names_with_dots() -> None:
    from penstock import Op, Service

    pad = {"inputs": {"input.1": ["n", "w"]}}
    service = Service("net.v1", Op("net.v1"), op={"net.v1": {"concurrency": 2, "pad": pad}})
    service.prepare_beside({})
    assert service.blueprint().config.op["net.v1"].pad.inputs == {"input.1": ("n", "w")}


@pytest.mark.parametrize(
    ("of_app", "of_service", "ports"),
    [
        ({}, {"http_port": 9000}, (9000, None)),
        ({"http_port": 9000}, {}, (9000, None)),
        ({"rpc_port": 9001}, {"http_port": 9000}, (9000, 9001)),
        ({}, {}, (8080, None)),
    ],
)
def test_an_app_and_a_service_together_have_the_ports_that_one_of_them_sets(
    of_app: dict[str, Any], of_service: dict[str, Any], ports: tuple[int, int | None]
) -> None:
    made = deploy(app_and_service(of_app, of_service))
    assert (made.config.http_port, made.config.rpc_port) == ports


def test_a_conflict_of_an_app_and_a_service_names_both_with_their_values() -> None:
    with pytest.raises(ConfigError) as caught:
        deploy(app_and_service({"http_port": 9000}, {"http_port": 9001}))
    assert caught.value.problems == [
        "http_port: App('texts') sets 9000 and shout 9001, but they share one door: set it once, or"
        " to the same value"
    ]


def one(text: str) -> str:
    return text


def two(text: str) -> str:
    return text


def app_and_service(of_app: dict[str, Any], of_service: dict[str, Any]) -> list[Blueprint]:
    """An app with two routes and a service, prepared as ``penstock.run`` does."""
    from penstock import App, Service, op

    app = App("texts", **of_app)
    app.route("/one")(one)
    app.route("/two")(two)
    shout = op()(lambda request: request)
    graphs, _ = prepared([app, Service("shout", shout, **of_service)])
    return [each.blueprint() for each in graphs]


IN_PROCESSES = """\
import os
import subprocess
from pathlib import Path
from penstock import Service, op

@op(executor="process", workers=2, batch=4, wait=1)
class Count:
    def load(self):
        self.pid = os.getpid()

    def predict(self, requests):
        assert self.pid == os.getpid() != PARENT
        return [{"n": each["n"] + "!"} for each in requests]

    def close(self):
        Path(f"closed-{self.pid}").touch()

PARENT = os.getpid()
service = Service("count", Count, http_port=0)
service.run()
"""


@pytest.mark.real
def test_a_class_in_worker_processes_is_loaded_and_closed_in_each(tmp_path: Path) -> None:
    script = tmp_path / "count.py"
    script.write_text(IN_PROCESSES)
    with running(script, command=PYTHON, cwd=tmp_path) as server:
        for n in range(6):
            assert post(server, "count", n=str(n)).json["value"] == [f"{n}!"]
        assert "op    Count  after request  2 processes, batches of 4 within 1 ms" in server.log()
        assert server.stop() == 0
    assert len([*tmp_path.glob("closed-*")]) == 2


@pytest.mark.real
def test_check_says_that_only_the_last_op_may_yield(tmp_path: Path) -> None:
    path = tmp_path / "letters.py"
    path.write_text(
        "from penstock import Service, op\n\n"
        "@op()\ndef spell(request):\n    yield from ({'letter': each} for each in 'ab')\n\n"
        "@op(spell)\ndef shout(piece):\n    return piece\n\n"
        "service = Service('letters', shout)\n"
    )
    check = [*PENSTOCK[:-1], "check", str(path)]
    done = subprocess.run(check, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "op 'spell': spell is a generator" in done.stderr
    assert "only the last op of a graph may be one" in done.stderr
