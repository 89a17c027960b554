from __future__ import annotations

import io
import logging
import sys
from typing import Any

import pytest

from penstock import Op
from penstock.observe.logs import LogOptions
from penstock.service.banner import (
    Addresses,
    address_lines,
    announce,
    check_report,
    configured,
    route_lines,
)
from penstock.service.blueprint import Deployment, deploy
from tests.service.in_process import blueprint_of, root


def banner(deployment: Deployment, at: Addresses) -> str:
    lines = route_lines(deployment, configured(deployment), [])
    return "\n".join([*address_lines(deployment, at), *lines])


def test_the_banner_shows_services_addresses_and_ops() -> None:
    source = root()
    left, right = (Op(name, input_ops=[source]) for name in ("left", "right"))
    last = type("Join", (Op,), {"preprocess": lambda self, x: x})(
        "join", input_ops=[left, right], concurrency=3, batch_size=4, auto_batching_timeout=2.5
    )
    text = banner(
        deploy([blueprint_of(last, name="uci")]),
        Addresses(host="127.0.0.1", rpc_port=8001, http_port=8000),
    )
    assert text.splitlines() == [
        "penstock serves uci to this machine only",
        "  http  http://127.0.0.1:8000   GET /docs /ui /livez /readyz",
        "  grpc  127.0.0.1:8001   PipelineService, health, reflection",
        "  POST  /uci   with JSON, or /uci/{method} as the pipeline protocol",
        "  op    left   after request  1 thread",
        "  op    right  after request  1 thread",
        "  op    join   after left and right  3 threads, batches of 4 within 2.5 ms",
    ]


async def coroutine_process(self: Op, feed_batch: list[Any]) -> Any:
    return feed_batch[0]


@pytest.mark.parametrize(
    ("hooks", "yaml", "shown"),
    [
        ({"process": coroutine_process}, {}, "2 coroutines"),
        ({"process": coroutine_process}, {"executor": "process"}, "2 coroutines"),
        ({}, {"executor": "inline"}, "inline"),
        ({}, {"executor": "process"}, "2 processes"),
        ({}, {"executor": "ray"}, "2 ray workers"),
        ({}, {}, "2 threads"),
    ],
)
def test_the_report_shows_an_op_s_executor_and_number_of_workers(
    hooks: dict[str, Any], yaml: dict[str, Any], shown: str
) -> None:
    op = type("Own", (Op,), hooks)("a", input_ops=[root()], concurrency=2)
    assert (
        f"  op    a  after request  {shown}"
        in check_report(blueprint_of(op, {"op": {"a": yaml}})).splitlines()
    )


def test_the_banner_of_a_public_service_without_http_has_no_http_line() -> None:
    lines = banner(
        deploy([blueprint_of(Op("a", input_ops=[root()]))]),
        Addresses(host="0.0.0.0", rpc_port=8001),
    ).splitlines()
    assert lines[0] == "penstock serves every name to every machine that can reach this one"
    assert not any("http" in line for line in lines)


def test_an_ipv6_address_is_in_brackets() -> None:
    lines = banner(
        deploy([blueprint_of(Op("a", input_ops=[root()]))]),
        Addresses(host="::1", rpc_port=8001, http_port=8000),
    ).splitlines()
    assert "http://[::1]:8000 " in lines[1]
    assert lines[2].startswith("  grpc  [::1]:8001 ")


@pytest.mark.parametrize("closed", ["none", "pipe", "closed", "ascii"])
def test_an_unwritable_standard_output_is_a_warning(
    closed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Pipe(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError("nobody reads")

    done = io.StringIO()
    done.close()
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    output = {"none": None, "pipe": Pipe(), "closed": done, "ascii": ascii_only}[closed]
    monkeypatch.setattr(sys, "stdout", output)
    with caplog.at_level(logging.WARNING):
        announce(["grüß dich"], LogOptions(format="text"))
    assert len(caplog.records) == (0 if closed == "none" else 1)


@pytest.mark.parametrize("engines", [1, 3])
def test_the_banner_shows_several_engines(engines: int) -> None:
    config = {"build_dag_each_worker": True, "worker_num": engines}
    drawing = deploy([blueprint_of(Op("a", input_ops=[root()]), config)])
    lines = banner(drawing, Addresses(host="127.0.0.1", rpc_port=8001)).splitlines()
    assert ("  with  3 engines, each with all of these ops" in lines) == (engines == 3)
