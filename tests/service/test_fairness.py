"""A greedy caller and a polite one under load: the polite one is served, and nobody starves."""

import http.client
import threading
from collections import Counter
from pathlib import Path

import pytest

from penstock.api.application import Route
from penstock.caller import Caller
from penstock.door.exchange import Exchange
from tests.services.process import ROOT, running

pytestmark = pytest.mark.real
SCRIPT = """import sys, time; sys.path.insert(0, {root!r})
from penstock import Service, op
from tests.service.test_fairness import Names

@op(workers=1)
def work(request):
    time.sleep(0.005)
    return request

Service(
    "work", work, http_port=0, rpc_port=0, applications=[Names], max_requests=8,
    {keys}
).run()
"""
GREEDY, POLITE = 24, 30
"""Connections of the greedy caller; requests of the polite one, one at a time."""


class Names:
    """Believes callers what they say."""

    def __init__(self, engine: object) -> None:
        pass

    def routes(self) -> tuple[Route, ...]:
        return ()

    def admit(self, route: Route, exchange: Exchange) -> Caller:
        name = exchange.head.fields.get(b"x-name", b"").decode()
        return Caller(name=name, how="key")


def ask(connection: http.client.HTTPConnection, name: str) -> tuple[int, bytes]:
    fields = {"X-Name": name, "Content-Type": "application/json"}
    connection.request("POST", "/work", b'{"x": 1}', fields)
    reply = connection.getresponse()
    return reply.status, reply.read()


@pytest.mark.parametrize(
    ("keys", "reasons"),
    [
        pytest.param(
            'priority={"levels": 2, "ageing": 0.1, "callers": {"polite": 1}},',
            {"at capacity", "higher priority"},
            id="priority",
        ),
        pytest.param('quotas={"each": {"concurrency": 6}},', {"quota"}, id="quota"),
    ],
)
def test_a_greedy_caller_does_not_keep_a_polite_one_from_its_answers(
    tmp_path: Path, keys: str, reasons: set[str]
) -> None:
    (tmp_path / "service.py").write_text(SCRIPT.format(root=str(ROOT), keys=keys))
    done = threading.Event()
    got: Counter[tuple[int, str]] = Counter()
    lock = threading.Lock()

    with running(tmp_path / "service.py") as server:

        def be_greedy() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
            for _ in range(2000):
                if done.is_set():
                    break
                status, body = ask(connection, "greedy")
                reason = next((each for each in reasons if each.encode() in body), "")
                with lock:
                    got[status, reason] += 1
            connection.close()

        threads = [threading.Thread(target=be_greedy) for _ in range(GREEDY)]
        for each in threads:
            each.start()
        try:
            polite = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
            statuses = Counter(ask(polite, "polite")[0] for _ in range(POLITE))
            polite.close()
        finally:
            done.set()
            for each in threads:
                each.join()
        assert statuses == {200: POLITE}
        assert got[200, ""], "the greedy one does not starve"
        assert set(got) == {(200, ""), *((429, reason) for reason in reasons)}
