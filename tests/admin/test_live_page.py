"""Requests of the live page: to one engine and to several, with and without a token."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.admin.live_page import merged
from tests.service.scripts import NAME, Answer, fetch, fetch_as, post, script, until
from tests.services.process import ServiceProcess, direct, running

HOOKS = """
def process(self, feed_batch, typical_logid):
    time.sleep(0.02)
    if feed_batch[0]["x"] == "fail":
        raise ValueError("told to")
    return feed_batch[0]
"""
TOKEN = "a-token-of-some-length"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def summary(ms: float, ago: float) -> dict[str, Any]:
    return {"ms": ms, "ago": ago}


def test_lists_of_several_engines_are_merged_in_order() -> None:
    one = {
        "slowest": [summary(9, 1), summary(1, 5)],
        "failed": [summary(1, 3)],
        "latest": [summary(2, 7)],
    }
    two = {"slowest": [summary(5, 2)], "failed": [summary(4, 1)], "latest": [summary(3, 6)]}
    both = merged([one, two])
    assert [each["ms"] for each in both["slowest"]] == [9, 5, 1]
    assert [each["ago"] for each in both["failed"]] == [1, 3]
    assert [each["ago"] for each in both["latest"]] == [6, 7]
    many = {"slowest": [summary(n, n) for n in range(100)], "failed": [], "latest": []}
    assert len(merged([many])["slowest"]) == 32


def get(server: ServiceProcess, path: str, **headers: str) -> Answer:
    return fetch_as(server.http_url + path, **headers)


def send(server: ServiceProcess, x: str, trace: str = TRACE) -> None:
    body = json.dumps({"x": x}).encode()
    request = urllib.request.Request(f"{server.http_url}/{NAME}", body)
    request.add_header("content-type", "application/json")
    request.add_header("traceparent", f"00-{trace}-b7ad6b7169203331-01")
    direct.open(request, timeout=30).read()


@pytest.mark.real
@pytest.mark.parametrize("engines", [1, 2])
def test_every_engine_shows_the_requests_of_the_whole_service(engines: int, tmp_path: Path) -> None:
    several = f'"build_dag_each_worker": True, "worker_num": {engines}'
    config = several if engines > 1 else '"dag": {"is_thread_op": False}'
    with running(script(tmp_path, HOOKS, config)) as server:
        page = get(server, "/ui")
        assert page.status == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "GET /docs /ui /livez /readyz" in server.log()
        for number in range(12):  # one connection per request, so that every engine gets some
            send(server, "1", f"{number:032x}")
        assert post(server, x="fail").json["err_no"] != 0

        states = [get(server, "/ui/state").json for _ in range(4)]
        for state in states:
            (graph,) = state["status"]["graphs"]
            (op,) = graph["ops"]
            assert (op["name"], op["inputs"], op["samples"]) == ("work", [], 13)
            assert op["workers"] == engines
            assert "sketch" not in json.dumps(state)
        assert states[0]["at"] < states[-1]["at"]

        lists = get(server, "/ui/requests").json
        assert len(lists["latest"]) == len(lists["slowest"]) == 13
        assert len({each["engine"] for each in lists["latest"]}) == engines
        (failed,) = lists["failed"]
        assert (failed["error"], failed["status"]) == ("hook_failed", 200)
        assert "told to" in failed["text"]
        exception = get(server, f"/ui/requests/{failed['id']}").json["exception"]
        assert (failed["error_type"], exception["type"]) == ("ValueError", "ValueError")
        assert exception["op"] == "work"
        assert 'raise ValueError("told to")' in exception["traceback"]
        for each in lists["slowest"]:
            details = get(server, f"/ui/requests/{each['id']}").json
            assert (details["id"], details["ms"]) == (each["id"], each["ms"])
            parts = [details[name] for name in ("unpack", "entry", "ops", "between", "pack")]
            assert sum(parts) == pytest.approx(details["ms"], rel=0.001)
            (step,) = details["steps"]
            took = {part["name"]: part["end"] - part["begin"] for part in step["parts"]}
            assert took["process"] > 19
            assert sum(took.values()) == pytest.approx(details["ops"], rel=0.001)
            assert step["batch"]["requests"] == [each["id"]]
        for number in range(12):
            details = get(server, f"/ui/requests/{number:032x}").json
            assert details["traceparent"].split("-")[1] == f"{number:032x}"

        def past() -> Any:
            return get(server, "/ui/history?op=work").json

        until(lambda: any(past()["service"]["rate"]), "a point of the history")
        history = past()
        (service, graph, op) = history["service"], *history["graphs"], *history["ops"]
        assert (graph["name"], op["name"]) == (NAME, "work")
        assert 20 < max(filter(None, service["p50"])) <= max(filter(None, service["p99"]))
        assert max(filter(None, op["p50"])) > 20
        assert len({len(each) for each in service.values()}) == 1
        last = history["first"] + len(service["rate"]) - 1
        later = get(server, f"/ui/history?after={last}").json
        assert (later["ops"], later["first"]) == ([], last + 1)
        for wrong in ("after=x", "after=-2", "after=1e3", f"after={10**30}", "op=a&" * 17):
            assert get(server, f"/ui/history?{wrong}").status == 400
        missing = get(server, "/ui/requests/nothing")
        assert (missing.status, missing.json["error"]) == (404, "unknown_request")
        assert fetch(f"{server.http_url}/ui", b"{}").status == 405


@pytest.mark.real
def test_without_a_token_only_local_requests_with_a_local_host_are_answered(tmp_path: Path) -> None:
    with running(script(tmp_path, HOOKS, '"host": "0.0.0.0"')) as server:
        for path in ("/ui", "/ui/state", "/ui/history", "/ui/requests", "/ui/requests/0"):
            for headers in ({"X_Forwarded_For": "10.0.0.1"}, {"Host": "evil.example"}):
                refused = get(server, path, **headers)
                assert (refused.status, refused.json["error"]) == (403, "forbidden")
                assert "ui.token" in refused.json["message"]
        for path in ("/status", "/trace?seconds=0.1"):
            assert get(server, path).status == 200
            assert get(server, path, X_Forwarded_For="10.0.0.1").status == 403
            assert get(server, path, Host="evil.example").status == 403
        own = socket.gethostbyname(socket.gethostname())
        if not own.startswith("127."):  # otherwise this machine has only loopback addresses
            with pytest.raises(urllib.error.HTTPError, match="403"):
                direct.open(f"http://{own}:{server.http_port}/ui", timeout=10)


@pytest.mark.real
def test_a_token_gives_access_and_a_key_disables_the_page(tmp_path: Path) -> None:
    config = f'"ui": {{"token": "{TOKEN}"}}, "allowed_hosts": ["any.example"]'
    with running(script(tmp_path, HOOKS, config)) as server:
        assert (
            get(server, "/ui", Host="any.example").status == 200
        )  # the page itself, which asks for the token
        without = get(server, "/ui/state")
        assert (without.status, without.json["error"]) == (401, "unauthorized")
        assert "set-cookie" not in without.headers
        accepted = get(server, "/ui/state", Authorization=f"Bearer {TOKEN}", Host="any.example")
        assert accepted.status == 200
        cookie = accepted.headers["set-cookie"].partition(";")[0]
        assert get(server, "/ui/requests", Cookie=cookie).status == 200
        assert get(server, "/ui/requests", Cookie=cookie + "0").status == 401
    with running(script(tmp_path, HOOKS, '"ui": {"enabled": False}')) as server:
        assert "/ui" not in server.log()
        assert get(server, "/ui").status == 404
        assert get(server, "/ui/state").status in (404, 405)


@pytest.mark.real
def test_the_history_has_the_time_before_an_engine_was_killed(tmp_path: Path) -> None:
    with running(script(tmp_path, HOOKS, '"dag": {"is_thread_op": False}')) as server:

        def past() -> dict[int, float]:
            found = get(server, "/ui/history").json
            rates = enumerate(found["service"]["rate"], found["first"])
            return {number: rate for number, rate in rates if rate}

        send(server, "1")
        until(past, "a point of the history")
        before = past()
        (engine, *_) = psutil.Process(server.pid).children()
        engine.kill()
        engine.wait(10)
        until(server.is_ready, "a new engine")
        assert past().items() >= before.items()
