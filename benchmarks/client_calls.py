"""One client as a process: how many calls a second one core makes, and what a call costs it.

``IN_FLIGHT`` calls are in flight to a server that answers at once
(``benchmarks/servers/canned_grpc.py``). Every reply is decoded and checked. The report's CPU time
is this process's: on a busy machine it is more reliable than the rate, which other processes lower.

    python -m benchmarks.client_calls --client futures --port 9000 --core 1 --seconds 3
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import uvloop

from benchmarks.calls import INFERENCE
from benchmarks.load import FAULTS_KEPT, Report, options_of
from penstock.protocols.pb import Request, Response

IN_FLIGHT = 32
FEED = {"x": "[0.5, 1.5]"}
REPLY = Response(key=["y"], value=["[0.5]"])
"""The canned server's reply."""


def call_message() -> bytes:
    """A call's message."""
    return Request(key=list(FEED), value=list(FEED.values())).SerializeToString()


class Count:
    """Counts calls answered after the warm-up, which begins with the first ``continues``."""

    def __init__(self, seconds: float, warm_seconds: float) -> None:
        self._lengths = warm_seconds, seconds
        self._begin = self._end = 0.0
        self._began = self._cpu_began = 0.0
        self._counting = False
        self.calls = 0
        self.seconds = 0.0
        self.cpu_s = 0.0
        self.faults: list[str] = []

    def continues(self) -> bool:
        """Whether to make another call; called before each one, from any thread."""
        now = time.perf_counter()
        if self.faults:
            return False
        if not self._begin:
            warm_seconds, seconds = self._lengths
            self._end = now + warm_seconds + seconds
            self._begin = now + warm_seconds  # last, as other threads read it
        if now < self._begin:
            return True
        if now < self._end:
            if not self._began:
                self._began, self._cpu_began = now, time.process_time()
                self._counting = True
            return True
        if self._counting:
            self._counting = False
            self.seconds = now - self._began
            self.cpu_s = time.process_time() - self._cpu_began
        return False

    def answered(self, response: Response) -> None:
        """Check and count one reply."""
        if response.err_no or response.value != REPLY.value:
            self.faults.append(f"a wrong reply: {response}")
        elif self._counting:
            self.calls += 1  # threads may lose a few increments, which does not matter here

    def report(self) -> Report:
        """The report of the run; latencies are not measured and are 0."""
        if not self.calls:
            self.faults.append("no right answer within the measured time")
        return Report(
            answers=self.calls,
            seconds=self.seconds,
            p50_us=0.0,
            p99_us=0.0,
            generator=0.0,
            server_cpu_s=self.cpu_s,
            fault_count=len(self.faults),
            faults=tuple(self.faults[:FAULTS_KEPT]),
        )


def in_threads(count: Count, call: Callable[[], Response]) -> None:
    """``IN_FLIGHT`` threads with sequential calls each."""

    def sequential_calls() -> None:
        while count.continues():
            count.answered(call())

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        threads = [pool.submit(sequential_calls) for _ in range(IN_FLIGHT)]
    for thread in threads:
        thread.result()


def grpcio_threads(port: int, count: Count) -> None:
    """The grpc package in its usual form: a message is built and sent, and the reply is parsed."""
    import grpc  # here, so that the other clients' processes do not import it

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        inference = channel.unary_unary(
            INFERENCE,
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )
        value = FEED["x"]
        in_threads(
            count,
            lambda: inference(
                Request(key=["x"], value=[value], clientip="127.0.0.1"), timeout=10.0
            ),
        )


def our_threads(port: int, count: Count) -> None:
    """``PipelineClient.predict`` in ``IN_FLIGHT`` threads."""
    from penstock.client import PipelineClient

    with PipelineClient() as client:
        client.connect([f"127.0.0.1:{port}"])
        in_threads(count, lambda: client.predict(FEED, timeout=10.0))


def our_futures(port: int, count: Count) -> None:
    """One thread with a window of futures."""
    from penstock.client import PipelineClient

    with PipelineClient() as client:
        client.connect([f"127.0.0.1:{port}"])
        window = deque(client.predict(FEED, asyn=True, timeout=10.0) for _ in range(IN_FLIGHT))
        while count.continues():
            count.answered(window.popleft().result())
            window.append(client.predict(FEED, asyn=True, timeout=10.0))
        for future in window:
            future.result()


def our_asyncio(port: int, count: Count) -> None:
    """``IN_FLIGHT`` tasks on one loop."""
    from penstock.client import AsyncPipelineClient

    async def run() -> None:
        async with AsyncPipelineClient() as client:
            await client.connect([f"127.0.0.1:{port}"])

            async def sequential_calls() -> None:
                while count.continues():
                    count.answered(await client.predict(FEED, timeout=10.0))

            await asyncio.gather(*(sequential_calls() for _ in range(IN_FLIGHT)))

    uvloop.run(run())


CLIENTS: dict[str, Callable[[int, Count], None]] = {
    "grpcio-threads": grpcio_threads,
    "threads": our_threads,
    "futures": our_futures,
    "asyncio": our_asyncio,
}


def main() -> int:
    """Print the report as one line of JSON; exit status 0 means that every answer was right."""
    options = options_of(
        "benchmarks.client_calls",
        ("--client", {"choices": tuple(CLIENTS), "required": True}),
        ("--port", {"type": int, "required": True}),
    )
    count = Count(options.seconds, options.warmup)
    CLIENTS[options.client](options.port, count)
    return count.report().print()


if __name__ == "__main__":
    sys.exit(main())
