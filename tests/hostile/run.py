"""Many good and bad requests to two graphs, clients that disconnect, and a check of the history.

    python -m tests.hostile.run --requests 200000

Every good request has a number, and its answer must have it and its graph's name; every bad one
must get its documented answer; the server's record must agree with the clients'; its memory must
not grow, and its log have warnings about bad input only. Load on loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import uvloop

from penstock.testing import ClientHistory, Limits, check
from tests.hostile import bad_values
from tests.hostile.bad_requests import CALLS, HTTP, BadCall
from tests.hostile.conftest import LIMITS
from tests.kit.frames import StreamContent
from tests.kit.http1 import pairs, request
from tests.kit.http2 import METHOD, linked
from tests.kit.load import TIMEOUT, Connection
from tests.kit.pipeline import decode, encode
from tests.kit.record import recorded
from tests.services.process import ServiceProcess, running

SERVICE = Path(__file__).with_name("recorded.py")
GRAPHS = ("uci", "other")
TARGETS = {graph: b"/%s/prediction" % graph.encode() for graph in GRAPHS}
OPS = ("*/batched", "*/plain", "*/joined", "other/batched", "other/plain")
"""The ops' names in the engine: the first graph has no name, and gets requests for any other."""
WARM_UP = 0.5  # of all requests; then memory is measured for the first time
FROM_HOW_MANY = 50_000  # requests; below that, memory still grows to its normal size
GROWTH = 1.05
SLOW = 0.03  # of the disconnecting clients
UNDECODABLE = {"http": 400, "grpc": 3}

# The exceptions that some requests make an op raise: each is logged as a warning.
PLANTED = re.compile(r"op \S*batched: (preprocess|process) raised \(data_ids=\[\d+\] ")


@dataclass(kw_only=True)
class Report:
    """The results; good if ``faults`` is empty."""

    requests: int
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    warm: int = 0
    end: int = 0
    totals: str = ""
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"{self.requests} requests in {self.seconds:.1f} s "
            f"({self.requests / self.seconds:.0f} a second): "
            + ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items())),
            f"memory {self.warm >> 10} KiB after the warm-up, {self.end >> 10} KiB at the "
            f"end ({100 * (self.end / self.warm - 1):+.1f} %)",
            f"server {self.totals}",
            "nothing is wrong" if not self.faults else "\n".join(self.faults),
        ]
        return "\n".join(lines)


class Load:
    """The clients. All choices are made by one random generator, which has a seed."""

    def __init__(self, server: ServiceProcess, requests: int, seed: int) -> None:
        self._server = server
        self._requests = requests
        self._random = random.Random(seed)
        self._next = 0
        self.history = ClientHistory()
        self.report = Report(requests=requests)
        self._bodies = [case for case in bad_values.from_codec() if case.body is not None]
        self._messages = [case for case in bad_values.from_codec() if case.message is not None]
        # Without those that the server ends only after a timeout.
        self._calls = [call for call in CALLS if call.ends]

    async def run(self, concurrency: int) -> None:
        """Send all requests; half of the clients use HTTP, half gRPC."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as clients:
            for n in range(concurrency):
                clients.create_task(self._http_client() if n % 2 else self._grpc_client())
        self.report.seconds = time.monotonic() - began
        self.report.end = self._server.memory()

    def _take(self) -> int | None:
        """The next request's number; None when all have been sent."""
        if self._next >= self._requests:
            return None
        self._next += 1
        if self._next == int(self._requests * WARM_UP):
            self.report.warm = self._server.memory()
        return self._next

    def _kind(self) -> str:
        (kind,) = self._random.choices(
            ("good", "leaver", "op error", "bad value", "bad transport"), (68, 10, 6, 10, 6)
        )
        self.report.kinds[kind] += 1
        return str(kind)

    def _begin(self, number: int) -> str:
        """Record the request, and choose its graph."""
        graph = str(self._random.choice(GRAPHS))
        self.history.invoke(
            number, (graph, str(number)), time.monotonic(), graph=self._recorded_name(graph)
        )
        return graph

    @staticmethod
    def _recorded_name(graph: str) -> str | None:
        """The graph's name in the engine's record."""
        return None if graph == GRAPHS[0] else graph

    def _slow(self) -> dict[str, str]:
        """Fields of a slow request for some clients, which disconnect while it runs or waits."""
        return {"slow": "1"} if self._random.random() < SLOW else {}

    def _add_fault(self, text: str) -> None:
        self.report.faults.append(text)

    # HTTP

    async def _http_client(self) -> None:
        stream: Connection | None = None
        while (number := self._take()) is not None:
            kind = self._kind()
            graph = self._begin(number)
            try:
                if kind == "leaver":
                    await self._http_disconnecting(number, graph)
                elif kind == "bad transport":
                    await self._http_transport(number)
                else:
                    if stream is None:
                        stream = await Connection.open(self._server.http_port)
                    await self._http_exchange(number, kind, graph, stream)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self._add_fault(f"request {number} ({kind} over HTTP) ended with {error!r}")
                self.history.info(number, repr(error), time.monotonic())
                stream = None
        if stream is not None:
            stream.close()

    async def _http_exchange(self, number: int, kind: str, graph: str, stream: Connection) -> None:
        target = TARGETS[graph]
        if kind == "bad value":
            case = self._random.choice(self._bodies)
            assert case.body is not None
            status, body = await stream.exchange(request(case.body, target=target))
            answer = status if status != 200 else json.loads(body)["err_no"]
            self._check(number, case.rule, answer, case.answer, UNDECODABLE["http"])
            return
        x = self._random.choice(("raise", "break")) if kind == "op error" else str(number)
        status, body = await stream.exchange(request(pairs(x=x), target=target))
        document = json.loads(body)
        self._finish(number, kind, status == 200 and document["err_no"], document)

    async def _http_transport(self, number: int) -> None:
        case = self._random.choice(HTTP)
        stream = await Connection.open(self._server.http_port)
        try:
            status, _ = await stream.exchange(case.data)
            if status != case.status:
                self._add_fault(f"{case.rule}: HTTP {status} instead of {case.status}")
            self.history.refused(number, status, time.monotonic())
        finally:
            stream.close()

    async def _http_disconnecting(self, number: int, graph: str) -> None:
        stream = await Connection.open(self._server.http_port)
        data = request(pairs(x=str(number), **self._slow()), target=TARGETS[graph])
        stream.send(data[: self._random.choice((len(data), len(data), len(data) // 2, 10))])
        await asyncio.sleep(self._random.uniform(0, 0.004))  # disconnects at any moment
        stream.reset() if self._random.random() < 0.5 else stream.close()
        self.history.info(number, "left", time.monotonic())

    # gRPC

    async def _grpc_client(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self._server.rpc_endpoint, options) as channel:
            call = channel.unary_unary(METHOD)
            while (number := self._take()) is not None:
                kind = self._kind()
                graph = self._begin(number)
                if kind == "bad transport":
                    await self._grpc_transport(number)
                elif kind == "leaver":
                    await self._grpc_disconnecting(number, graph, call)
                else:
                    await self._grpc_exchange(number, kind, graph, call)

    async def _grpc_exchange(
        self,
        number: int,
        kind: str,
        graph: str,
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes],
    ) -> None:
        case = self._random.choice(self._messages) if kind == "bad value" else None
        if case is not None:
            assert case.message is not None
            message = case.message
        else:
            x = self._random.choice(("raise", "break")) if kind == "op error" else str(number)
            message = encode({"key": ["x"], "value": [x], "name": graph})
        try:
            document = decode(await call(message, timeout=TIMEOUT))
            answer = document["err_no"]
        except grpc.aio.AioRpcError as error:
            document, answer = {}, error.code().value[0]
            if case is None:
                self._add_fault(f"request {number} ({kind} over gRPC) ended with {error.code()}")
        if case is not None:
            self._check(number, case.rule, answer, case.answer, UNDECODABLE["grpc"])
        else:
            self._finish(number, kind, answer, document)

    async def _grpc_transport(self, number: int) -> None:
        case = self._random.choice(self._calls)
        answer = await asyncio.to_thread(self._bad_call, case)
        if answer.status != case.status:
            self._add_fault(f"{case.rule}: gRPC status {answer.status} instead of {case.status}")
        self.history.refused(number, answer.status, time.monotonic())

    def _bad_call(self, case: BadCall) -> StreamContent:
        with linked(self._server.rpc_port) as link:
            return case.play(link)

    async def _grpc_disconnecting(
        self, number: int, graph: str, call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    ) -> None:
        values = {"x": str(number), **self._slow()}
        message = encode({"key": list(values), "value": list(values.values()), "name": graph})
        pending = call(message, timeout=TIMEOUT)
        await asyncio.sleep(self._random.uniform(0, 0.004))
        pending.cancel()
        self.history.info(number, "left", time.monotonic())

    # Answers

    def _check(
        self, number: int, rule: str, answer: object, expected: str | int, undecodable: int
    ) -> None:
        correct = undecodable if expected == bad_values.UNDECODABLE else expected
        if answer != correct:
            self._add_fault(f"{rule}: answered {answer} instead of {correct}")
        self.history.refused(number, answer, time.monotonic())

    def _finish(
        self, number: int, kind: str, err_no: object, document: dict[str, list[str]]
    ) -> None:
        value = dict(zip(document.get("key", ()), document.get("value", ()), strict=True))
        now = time.monotonic()
        if kind == "op error":
            if err_no != 10_000:
                self._add_fault(f"request {number}: err_no {err_no} instead of 10000")
            self.history.failed(number, err_no, now)
        elif err_no == 0 and value:
            self.history.ok(number, (value.get("by"), value.get("x")), now)
        else:
            self._add_fault(f"request {number}: err_no {err_no} instead of an answer")
            self.history.failed(number, err_no, now)


def is_planted(event: dict[str, str]) -> bool:
    """Whether an event of the log is about an exception that a request caused on purpose."""
    raised = PLANTED.match(event["message"])
    return (
        event["level"] == "WARNING"
        and event["logger"] == "penstock.ops.failures"
        and raised is not None
        and f"Error: planted in {raised[1]}" in event["exception"]
    )


def faults_in_log(log: str) -> tuple[list[str], int]:
    """Log lines above INFO that are not planted, or not JSON; and the number of planted ones."""
    faults, planted = [], 0
    for line in log.splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # the banner, or an uncaught error
            if "Traceback" in line or "rror" in line:
                faults.append(f"log: {line[:1000]}")
            continue
        if event["level"] != "INFO" and is_planted(event):
            planted += 1
        elif event["level"] != "INFO":
            faults.append(f"log: {line[:1000]}")
    return faults, planted


def hostile_run(requests: int, *, concurrency: int = 64, seed: int = 1) -> Report:
    """Start the service, send requests, stop it, and check the results."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
        file = folder / "events"
        environment = LIMITS | {
            "PENSTOCK_MAX_CONNECTIONS": "512",
            "PENSTOCK_KEEP_ALIVE": "30",
            "PENSTOCK_HEADER_TIMEOUT": "30",
            "PENSTOCK_BODY_TIMEOUT": "30",
            "PENSTOCK_LOG_FORMAT": "json",
            "HOSTILE_EVENTS": str(file),
        }
        server = stack.enter_context(running(SERVICE, environment=environment))
        load = Load(server, requests, seed)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(load.run(concurrency))
        report = load.report
        if server.stop() != 0:
            report.faults.append("the service did not end in order")
        report.faults += check(
            load.history.events,
            recorded(file),
            Limits(workers=dict.fromkeys(OPS, 2), dispatches=dict.fromkeys(OPS, 1)),
        )
        faults, planted = faults_in_log(server.log())
        report.faults += faults
        if planted != report.kinds["op error"]:
            report.faults.append(
                f"the log tells of {planted} exceptions of ops, "
                f"but {report.kinds['op error']} were asked for"
            )
        stopped = re.search(r'stopped: ([^"]*)', server.log())
        report.totals = stopped[1] if stopped else "said nothing at its end"
    if requests >= FROM_HOW_MANY and report.end > report.warm * GROWTH:
        report.faults.append("the memory of the service grew")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    report = hostile_run(chosen.requests, concurrency=chosen.concurrency, seed=chosen.seed)
    print(report)
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
