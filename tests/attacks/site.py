"""The service under attack, its good clients, and the attack's effects on both."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tests.attacks.good import ROOT, Figures, Good, good
from tests.kit import http2
from tests.kit.http1 import ask, pairs
from tests.kit.usage import memory, peak_memory, reset_peak_memory, resources
from tests.services.process import ECHO, ServiceProcess, running

KINDS = ("http", "grpc")
MIB = 1 << 20

LATE_THREADS = 2
"""Threads that a service starts with its first large bodies and replies and does not end."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One attack.

    Attributes:
        name: its name in the table.
        run: attacks the port until a point in time, waits for answers and returns their numbers.
        expected: one of these answers must be among the received ones; empty: none is required.
        config: the service's configuration.
        command: the command before the service's script.
        growth: limit in bytes of the growth of the service's memory.
        refuses_others: it exhausts shared resources, so that good calls may be refused meanwhile.
        sampled: whether it is part of the short run.
    """

    name: str
    run: Callable[[int, float], Counter[str]]
    expected: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    command: Sequence[str] = ()
    growth: int = 64 * MIB
    refuses_others: bool = False
    sampled: bool = True


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A good client's 99th percentiles in milliseconds, without the attack and with it."""

    alone: float
    attacked: float


@dataclass(kw_only=True)
class Outcome:
    """The answers to an attack and its effects."""

    received: Counter[str] = field(default_factory=Counter)
    base: int = 0
    grown: int = 0
    pairs: dict[str, list[Pair]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    worst: float = 0.0
    failures: list[str] = field(default_factory=list)
    recovery: float = 0.0
    left: dict[str, int] = field(default_factory=dict)

    def ratio(self, kind: str) -> float:
        """The good client's p99 under attack over that without: the median of the pairs."""
        return median(pair.attacked / pair.alone for pair in self.pairs[kind])

    def p99(self, kind: str) -> Pair:
        """The medians of both."""
        pairs = self.pairs[kind]
        return Pair(
            alone=median(pair.alone for pair in pairs),
            attacked=median(pair.attacked for pair in pairs),
        )


class Target:
    """A running service with its good clients; ``target`` starts it."""

    def __init__(self, server: ServiceProcess, clients: Mapping[str, Good]) -> None:
        self.server = server
        self.port = server.http_port
        self._clients = clients

    def check_good(self) -> None:
        """Check that a good request is answered over both protocols, each on a new connection."""
        nonce = str(time.monotonic_ns())
        reply = ask(self.port, pairs(x=nonce), target=b"/echo/prediction")
        assert reply.status == 200, reply
        assert reply.json()["value"] == [nonce]
        http2.check_good(self.server.rpc_port)

    def measure_attack(self, attack: Attack, seconds: float, pairs: int = 1) -> Outcome:
        """Measure ``pairs`` pairs: the good clients alone, then during the attack."""
        outcome = Outcome()
        for _ in range(pairs):
            self._pair(attack, seconds, outcome)
        return outcome

    def _pair(self, attack: Attack, seconds: float, outcome: Outcome) -> None:
        alone = self._good_beside(seconds, lambda: None)
        self.check_good()
        before = resources(self.server.pid)
        outcome.base = outcome.base or memory(self.server.pid)
        reset_peak_memory(self.server.pid)
        answers: list[Counter[str]] = []
        attacked = self._good_beside(
            seconds, lambda: answers.append(attack.run(self.port, time.monotonic() + seconds))
        )
        outcome.received += answers[0]
        outcome.grown = max(outcome.grown, peak_memory(self.server.pid) - outcome.base)
        for kind in KINDS:
            one, other = alone[kind], attacked[kind]
            outcome.pairs[kind].append(Pair(alone=one.p99, attacked=other.p99))
            outcome.worst = max(outcome.worst, other.worst)
            outcome.failures += [f"{kind}: {text}" for text in one.failures + other.failures]
        began = time.monotonic()
        self.check_good()
        outcome.left = self._left(before)
        outcome.recovery = max(outcome.recovery, time.monotonic() - began)

    def _good_beside(self, seconds: float, run: Callable[[], None]) -> dict[str, Figures]:
        """The good clients' figures while ``run`` runs; waits for both."""
        for client in self._clients.values():
            client.begin(seconds)
        failed: list[BaseException] = []
        thread = threading.Thread(target=_run_at_idle_priority, args=(run, failed))
        thread.start()
        figures = {kind: client.figures() for kind, client in self._clients.items()}
        thread.join()
        if failed:
            raise failed[0]
        return figures

    def _left(self, before: Mapping[str, int]) -> dict[str, int]:
        """The resources above those before; waits some time until there are none."""
        deadline = time.monotonic() + 5.0
        while True:
            now = resources(self.server.pid)
            spare = {"threads": LATE_THREADS, "descriptors": 0, "children": 0}
            more = {kind: now[kind] - before[kind] for kind in now}
            left = {kind: count for kind, count in more.items() if count > spare[kind]}
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.01)  # in another process, which has no event for it


def _run_at_idle_priority(run: Callable[[], None], failed: list[BaseException]) -> None:
    """Attack in the good clients' idle time: real attackers do not use their processors."""
    os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
    try:
        run()
    except BaseException as error:
        failed.append(error)


@contextmanager
def service(
    config: Mapping[str, Any], command: Sequence[str] = (), *, ready: bool = True
) -> Iterator[ServiceProcess]:
    """Start the service, without clients."""
    # The tree of these tests, even where another one is installed.
    environment = {"ECHO_CONFIG": json.dumps(config), "PYTHONPATH": str(ROOT)}
    before = (*command, sys.executable)
    with running(ECHO, command=before, environment=environment, ready=ready) as server:
        yield server


@contextmanager
def target(config: Mapping[str, Any], command: Sequence[str] = ()) -> Iterator[Target]:
    """Start the service and both good clients."""
    with ExitStack() as stack:
        server = stack.enter_context(service(config, command))
        clients = {
            "http": stack.enter_context(good("http", server.http_port)),
            "grpc": stack.enter_context(good("grpc", server.rpc_port)),
        }
        yield Target(server, clients)
