"""Large values between ops of two services: they stay in Redis, and its faults, or those of a
service, cost what is lost.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.redis_server import RedisServer, redis_server
from tests.peers.test_external_store import SECRET as PASSWORD
from tests.peers.test_external_store import commands, keys, times_to_live
from tests.service.scripts import Answer, BackgroundCall, fetch, fetch_as, until
from tests.services.process import ServiceProcess, free_port, running

SHARED = "0123456789abcdefghij"
OPTIONS = """
import os
import numpy as np
from penstock import Op, Service, op

dag = {"external_store": os.environ["STORE"], "retry": int(os.environ.get("RETRY", "1"))}
if "SHARED" in os.environ:
    dag["external_store_options"] = {"shared_secret": "env:SHARED", "timeout": 5}
"""
FAR = """
from penstock.tensor import Signature

@op()
def more(request):
    return {"x": request["x"] + 1}

both = {"x": ("FP64", [None])}
Service("more", more, signature=Signature(inputs=both, outputs=both), dag=dag).run()
"""
NEAR = """
@op()
def make(request):
    return {"x": np.arange(request["n"], dtype=np.float64)}

far = {"client_type": "grpc", "server_endpoints": [os.environ["FAR"]]}
first = Op("first", input_ops=[make], **far)
second = Op("second", input_ops=[first], **far)

@op(second)
def total(made):
    return {"total": float(made["x"].sum())}

Service("sums", total, deadline=60, dag=dag).run()
"""
LARGE = 1 << 18  # numbers, of 8 bytes


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), "--requirepass", PASSWORD) as found:
        yield found


class Pair:
    """Two services on this machine; the nearer one calls the other for two of its ops."""

    def __init__(self, folder: Path, store: RedisServer) -> None:
        self._folder = folder
        self.port = free_port()
        url = store.url.replace("//", f"//:{PASSWORD}@")
        self.environment = {"STORE": url, "SHARED": SHARED}
        (folder / "far.py").write_text(OPTIONS + FAR)
        (folder / "near.py").write_text(OPTIONS + NEAR)

    @contextmanager
    def far(self, **environment: str) -> Iterator[ServiceProcess]:
        """The other service, which may be started again."""
        given = {**self.environment, "PENSTOCK_RPC_PORT": str(self.port), **environment}
        with running(self._folder / "far.py", environment=given) as server:
            yield server
            assert PASSWORD not in server.log()
            assert SHARED not in server.log()

    @contextmanager
    def near(self, retry: int = 1) -> Iterator[ServiceProcess]:
        """The service that calls."""
        given = {"FAR": f"127.0.0.1:{self.port}", "RETRY": str(retry)}
        with running(self._folder / "near.py", environment=self.environment | given) as server:
            yield server
            if server.is_ready():
                status = fetch_as(f"{server.http_url}/status").body.decode()
                assert server.stop() == 0
                assert not {PASSWORD, SHARED} & {*status.split('"')}
            assert PASSWORD not in server.log()
            assert SHARED not in server.log()


def call(server: ServiceProcess, n: int = LARGE) -> Answer:
    return fetch(f"{server.http_url}/sums", json.dumps({"n": n}).encode(), timeout=130)


def state(server: ServiceProcess) -> dict[str, Any]:
    """What the status says about the store."""
    found: dict[str, Any] = fetch_as(f"{server.http_url}/status").json["external_store"]
    return found


def check(answer: Answer, n: int = LARGE) -> None:
    assert answer.status == 200, answer.body
    assert answer.json == {"total": n * (n - 1) / 2 + 2 * n}


def test_values_of_two_services_stay_in_the_store(tmp_path: Path, store: RedisServer) -> None:
    pair = Pair(tmp_path, store)
    with pair.far() as far, pair.near() as near:
        put, got = commands(store, "hset"), commands(store, "hget")
        for _ in range(3):
            check(call(near))
        # The first answer is fetched by its caller as well, to see that both use one store.
        assert (commands(store, "hset") - put, commands(store, "hget") - got) == (3, 4)
        check(call(near, 10), 10)
        assert commands(store, "hset") - put == 3, "small ones go through the engine"
        until(lambda: keys(store) == [], "the deletion of all keys")
        until(lambda: state(near)["available"] == 3, "a look at the store by all")
        seen = state(near)
        assert (seen["users"], seen["available"], seen["why"], seen["in_use"]) == (3, 3, None, 0)
        assert (seen["put_bytes"], seen["inline"], seen["lost"]) == (3 * 8 * LARGE, 0, 0)
        metrics = fetch_as(f"{far.http_url}/metrics").body.decode()
        for line in ("up 1", "keys 0", f"put_bytes_total {3 * 8 * LARGE:.6e}", "inline_total 0"):
            assert f"\npenstock_external_store_{line}" in metrics


@pytest.mark.long
def test_a_service_with_another_secret_gets_the_values(tmp_path: Path, store: RedisServer) -> None:
    pair = Pair(tmp_path, store)
    with pair.near() as near:
        with pair.far(SHARED="another-secret-of-its-own"):
            check_soon(near)
            put = commands(store, "hset")
            check(call(near))
            assert commands(store, "hset") == put
            assert "its shared_secret" in near.log()
        with pair.far():

            def taken() -> bool:
                check_soon(near)
                return commands(store, "hset") > put

            until(taken, "values in the store", timeout=60)
        until(lambda: keys(store) == [], "the deletion of all keys")


def check_soon(near: ServiceProcess) -> None:
    """The answer, once the other service is connected again."""

    def answered() -> bool:
        answer = call(near)
        if answer.status == 200:
            check(answer)
        return answer.status == 200

    until(answered, "an answer", timeout=30)


KILLS = 20
HUGE = 6_250_000  # numbers: 50 MB


@pytest.mark.long
@pytest.mark.timeout(900)
def test_values_of_50_mb_while_the_other_service_and_the_store_are_killed(
    tmp_path: Path, store: RedisServer
) -> None:
    """An answer is right, or an error that says that the service was gone; no key stays."""
    answers: list[Answer] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            answers.append(call(near, HUGE))

    pair = Pair(tmp_path, store)
    with pair.near(retry=2) as near:
        caller = BackgroundCall(ask)
        for number in range(KILLS):
            with pair.far() as far:
                put = commands(store, "hset")
                if number % 4 == 3:
                    store.kill()
                    store.start()
                    put = 0
                until(lambda put=put: commands(store, "hset") > put, "a value", timeout=120)  # type: ignore[misc]
                assert all(left != -1 for left in times_to_live(store)), "every key expires"
                os.killpg(far.pid, signal.SIGKILL)
        with pair.far():
            before = good(answers)
            until(lambda: good(answers) > before + 2, "answers", timeout=120)
            over.set()
            caller.result(130)
        until(lambda: keys(store) == [], "the deletion of all keys", timeout=120)
    seen = Counter(answer.json["error"] if answer.status != 200 else "" for answer in answers)
    assert not {*seen} - {"", "unreachable", "value_lost"}, seen
    assert seen[""] >= 3
    for answer in answers:
        if answer.status == 200:
            check(answer, HUGE)


def good(answers: list[Answer]) -> int:
    return sum(answer.status == 200 for answer in answers)


@pytest.mark.long
def test_keys_of_a_caller_that_is_killed_expire(tmp_path: Path, store: RedisServer) -> None:
    pair = Pair(tmp_path, store)
    with pair.far(), pair.near() as near:
        check(call(near))
        put = commands(store, "hset")
        BackgroundCall(lambda: call(near, HUGE))
        until(lambda: commands(store, "hset") > put, "a value", timeout=60)
        os.killpg(near.pid, signal.SIGKILL)
        for left in times_to_live(store):
            assert -2 < left <= 90 or left == -2
            assert left != -1
