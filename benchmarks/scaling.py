"""What a second core brings: two engines against one, two workers for pure Python against one.

Server and client have the same two cores. Where requests are small the client takes a good part of
them, and so twice as many answers are out of reach whatever the server does; requests for each CPU
second of the server do not depend on that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.echoes import echo_json, echo_json_right, echo_message, echo_message_right
from benchmarks.rounds import Target
from benchmarks.scenario import Contender, Load, Scenario
from penstock.protocols.pb import Response

LONG_STEPS = 500_000
"""Of the computing op: 20 ms and more, beside which neither client nor hand-over count."""
SMALL_STEPS = 5_000
"""Some 0.2 ms: about as much as such a request costs besides."""


def _sum_json(body: bytes, _models: Path) -> bool:
    return b'"err_no":0' in body and b'"sum"' in body


def _sum_message(body: bytes, _models: Path) -> bool:
    answer = Response.FromString(body)
    return answer.err_no == 0 and "sum" in answer.key


def compute() -> Scenario:
    """Two worker processes for pure Python, beside what two bare processes can do."""
    steps = ("--steps", str(LONG_STEPS))

    def contender(executor: str, workers: int) -> Contender:
        options = ("--executor", executor, "--concurrency", str(workers), "--every-core", *steps)
        return Contender(name=f"{executor} x{workers}", server="penstock_compute", options=options)

    bare = Contender(name="bare loop x2", loop="compute_loop", options=("--processes", "2", *steps))
    return Scenario(
        name="compute",
        title="20 ms of pure Python over HTTP, every core, against one worker process",
        path="/echo/prediction",
        body=echo_json,
        right=_sum_json,
        floor=contender("process", 1),
        ours=(contender("process", 2), contender("thread", 2), bare),
        loads=(Load(protocol="http", connections=4),),
        programs=True,
        scales=True,
        targets={("process x2", "4 conn"): Target(throughput=1.8)},
        patience=2.0,  # fifty answers a second
    )


def engines() -> list[Scenario]:
    """``build_dag_each_worker`` with two engines against one, ops in threads.

    Connections are dealt out by chance, so there are enough of them for both.
    """
    small = ("--steps", str(SMALL_STEPS))
    http = Load(protocol="http", connections=32)
    grpc = Load(protocol="grpc", connections=16, streams=4)
    echo, add = ("penstock_echo", ()), ("penstock_compute", small)
    return [
        _engines("http-echo", "echo over HTTP", http, echo_json, echo_json_right, *echo),
        _engines("http-compute", "a small sum over HTTP", http, echo_json, _sum_json, *add),
        _engines("grpc-echo", "echo over gRPC", grpc, echo_message, echo_message_right, *echo),
        _engines("grpc-compute", "a small sum over gRPC", grpc, echo_message, _sum_message, *add),
    ]


def _engines(
    name: str,
    what: str,
    load: Load,
    body: Callable[[], bytes],
    right: Callable[[bytes, Path], bool],
    server: str,
    options: tuple[str, ...],
) -> Scenario:
    def contender(count: int) -> Contender:
        engines = ("--engines", str(count), "--every-core")
        return Contender(name=f"engines x{count}", server=server, options=(*engines, *options))

    return Scenario(
        name=f"engines-{name}",
        title=f"{what}, every core, two engines against one",
        path="/echo/prediction",
        body=body,
        right=right,
        floor=contender(1),
        ours=(contender(2),),
        loads=(load,),
        programs=True,
        scales=True,
    )
