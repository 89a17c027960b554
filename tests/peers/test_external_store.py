"""Large values between ops elsewhere: they go through Redis, and its faults cost what is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks_of
from tests.kit.redis_server import RedisServer, redis_server
from tests.service.scripts import Answer, BackgroundCall, fetch, fetch_as, until
from tests.services.process import ServiceProcess, running

(EXECUTOR,) = [
    each for each in blocks_of(ROOT / "docs/executors.md") if each.name == "subprocesses.py"
]
SECRET = "hush-hush"
SCRIPT = """
import os, time
import numpy as np
import subprocesses
from penstock import Service, op

def make(request):
    return {"x": np.arange(request["n"], dtype=np.float64), "wait": request.get("wait", False)}

def total(made):
    until = time.monotonic() + 60
    while made["wait"] and not os.path.exists("gate") and time.monotonic() < until:
        open("entered", "w").close()
        time.sleep(0.01)
    return {"total": float(made["x"].sum())}

far = {"executor": "subprocess"}
last = op(op(name="make", **far)(make), name="total", **far)(total)
dag = {"external_store": os.environ["STORE"], "retry": int(os.environ["RETRY"])}
Service("sums", last, http_port=0, rpc_port=0, deadline=120, dag=dag).run()
"""
LARGE = 1 << 18  # numbers, of 8 bytes


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), "--requirepass", SECRET) as found:
        yield found


@contextmanager
def service(folder: Path, store: RedisServer, retry: int = 1) -> Iterator[ServiceProcess]:
    """The service, which uses the store; it may not show the password."""
    (folder / "subprocesses.py").write_text(EXECUTOR.text)
    (folder / "service.py").write_text(SCRIPT)
    environment = {"STORE": store.url.replace("//", f"//:{SECRET}@"), "RETRY": str(retry)}
    with running(folder / "service.py", cwd=folder, environment=environment) as server:
        server.folder = folder  # type: ignore[attr-defined]
        yield server
        status = fetch_as(f"{server.http_url}/status").body.decode()
        assert server.stop() == 0
        assert server.leftovers() == []
        assert SECRET not in server.log()
        assert SECRET not in status


@pytest.fixture(scope="module")
def server(
    store: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    with service(tmp_path_factory.mktemp("service"), store) as server:
        yield server


def call(server: ServiceProcess, **inputs: object) -> Answer:
    body = json.dumps({"n": LARGE, **inputs}).encode()
    return fetch(f"{server.http_url}/sums", body, timeout=130)


def check(answer: Answer, n: int = LARGE) -> None:
    assert answer.status == 200, answer.body
    assert answer.json == {"total": n * (n - 1) / 2}


def commands(store: RedisServer, name: str) -> int:
    with store.client(password=SECRET) as client:
        return int(client.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"])


def keys(store: RedisServer) -> list[str]:
    with store.client(password=SECRET, decode_responses=True) as client:
        return [*map(str, client.keys())]


def test_large_values_go_through_the_store_and_leave_nothing_there(
    server: ServiceProcess, store: RedisServer
) -> None:
    put, got = commands(store, "hset"), commands(store, "hget")
    for _ in range(3):
        check(call(server))
    assert (commands(store, "hset") - put, commands(store, "hget") - got) == (3, 3)
    check(call(server, n=10), n=10)
    assert commands(store, "hset") - put == 3, "small ones go through the engine"
    until(lambda: keys(store) == [], "the deletion of all keys")


def test_a_lost_value_costs_its_request(server: ServiceProcess, store: RedisServer) -> None:
    folder: Path = server.folder  # type: ignore[attr-defined]
    first = BackgroundCall(lambda: call(server, wait=True))
    until((folder / "entered").exists, "the call of the first request")
    put = commands(store, "hset")
    second = BackgroundCall(lambda: call(server))
    until(lambda: commands(store, "hset") == put + 1, "the value of the second")
    key = max(keys(store), key=lambda each: int(each.split(":")[2]))
    with store.client(password=SECRET) as client:
        assert 0 < client.ttl(key) < 24 * 3600
        client.delete(key)
    (folder / "gate").touch()
    check(first.result())
    answer = second.result()
    assert (answer.status, answer.json["error"]) == (503, "value_lost")
    assert answer.headers["retry-after"] == "1"
    check(call(server))
    until(lambda: keys(store) == [], "the deletion of all keys")


def test_without_the_store_values_go_through_the_engine(
    server: ServiceProcess, store: RedisServer
) -> None:
    store.kill()
    for _ in range(3):
        check(call(server))
    store.start()

    def used_again() -> bool:
        check(call(server))
        return commands(store, "hset") > 0

    until(used_again, "the store to be used again", timeout=60)
    until(lambda: keys(store) == [], "the deletion of all keys")
    assert "values go through the engine: the external store redis://127.0.0.1" in server.log()


KILLS = 20
HUGE = 6_250_000  # numbers: 50 MB


@pytest.mark.long
@pytest.mark.timeout(900)
def test_values_of_50_mb_while_the_store_is_killed_and_hangs_cost_no_answer(
    tmp_path: Path, store: RedisServer
) -> None:
    """Every request is answered, because it may run again; keys always expire, and none stays."""
    answers: list[Answer] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            answers.append(call(server, n=HUGE))

    with service(tmp_path, store, retry=2) as server:
        callers = [BackgroundCall(ask) for _ in range(2)]
        for number in range(KILLS):
            put = commands(store, "hset")
            until(lambda put=put: commands(store, "hset") > put, "a value", timeout=120)  # type: ignore[misc]
            assert all(left != -1 for left in times_to_live(store)), "every key expires"
            if number % 4:
                store.kill()
                store.start()
            else:
                store.stop()
                before = len(answers)
                until(lambda n=before: len(answers) > n, "an answer without it", timeout=120)  # type: ignore[misc]
                store.go_on()
        over.set()
        for each in callers:
            each.result(130)
        for answer in answers:
            check(answer, HUGE)
        until(lambda: keys(store) == [], "the deletion of all keys", timeout=60)
    assert len(answers) >= KILLS


def times_to_live(store: RedisServer) -> list[int]:
    with store.client(password=SECRET) as client:
        return [client.ttl(each) for each in client.scan_iter()]
