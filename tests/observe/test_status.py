"""Reading the status of servers."""

from __future__ import annotations

import http.server
import socket
import threading

import pytest

from penstock.executors.workers.places import Places
from penstock.observe.status import NoStatus, ask_status, ask_trace, shown


def test_the_status_of_a_server_of_another_protocol_cannot_be_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send_settings() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(4096)
                link.sendall(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))  # as gRPC servers do

        thread = threading.Thread(target=send_settings)
        thread.start()
        with pytest.raises(NoStatus, match=r"the status cannot be read: .* write https://"):
            ask_status(f"127.0.0.1:{listener.getsockname()[1]}")
        thread.join()


def test_the_error_has_the_server_s_own_message() -> None:
    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"error": "bad_request", "message": "requests is 1 to 10000"}'
            self.send_response(400)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(NoStatus, match="has no trace: HTTP 400: requests is 1 to 10000"):
            ask_trace(f"127.0.0.1:{server.server_port}", 0, 1.0)
        thread.join()


def test_models_that_do_not_simply_serve_are_shown() -> None:
    report = {
        "ready": True,
        "engines": 1,
        "requests": {"answered": 0},
        "seconds": {"sum": 0.0, "classes": {}},
        "answers": {},
        "refusals": {},
        "graphs": [],
        "models": [
            {"name": "m", "version": "1", "state": "READY", "reason": ""},
            {"name": "m", "version": "2", "state": "UNAVAILABLE", "reason": "it is truncated"},
        ],
        "repositories": [{"name": "a", "why": ""}, {"name": "s3://b", "why": "it is down"}],
    }
    assert shown(report).splitlines()[3:] == [
        "model     m  version 2  UNAVAILABLE  it is truncated",
        "repository s3://b  it is down",
    ]


def test_versions_are_shown_with_shares_rollouts_and_what_is_not_served() -> None:
    graph = {"name": "m", "state": "serving", "inside": 0, "ops": [], "signature": None}
    seen = {"answers": 900, "failed": 1, "p99": 0.01, "compared": 0, "differed": 0}
    limits = {"error_rate": 0.01, "p99_ratio": None, "disagreement": 0.02, "samples": 100}
    rolling = {
        "name": "m", "version": "2", "stable": "1", "state": "running", "step": "2", "steps": "3",
        "share": "25", "why": "there are 80 of 100 answers", "limits": limits,
        "seen": {"stable": seen, "new": {**seen, "p99": None, "compared": 9, "differed": 3}},
    }  # fmt: skip
    over = {**rolling, "name": "n", "state": "taken back", "why": "9 of its 20 answers failed"}
    failed = {"versions": ["3"], "ends": [], "state": "failed", "tries": 1, "why": "no memory"}
    swaps = [{"model": "m", **failed}, {"model": "x", **failed, "versions": [], "tries": 4}]
    report = {
        "ready": True, "engines": 1, "requests": {"answered": 0}, "answers": {}, "refusals": {},
        "seconds": {"sum": 0.0, "classes": {}}, "rollouts": [rolling, over], "swaps": swaps,
        "graphs": [
            {**graph, "version": "1", "share": 0.75, "labels": []},
            {**graph, "version": "2", "share": 0.25, "labels": ["canary", "new"]},
        ],
    }  # fmt: skip
    expected = [
        "m  version 1  serving  inside 0  share 75 %",
        "m  version 2  serving  inside 0  share 25 %  labels canary, new",
        "rollout   m  version 2  step 2 of 3  share 25 %  beside 1: there are 80 of 100 answers",
        "  limits  error_rate 0.01  disagreement 0.02  samples 100",
        "  stable  answers 900  failed 1  p99 10.0 ms",
        "  new     answers 900  failed 1  p99 -  compared 9  differed 3",
        "rollout   n  version 2 taken back: 9 of its 20 answers failed",
        "model     m  version 3 is not served: no memory",
        "model     x  a further version is not served (tried 4 times): no memory",
    ]
    assert shown(report).splitlines()[3:] == expected
    rows = [{"name": "m", "version": "3", "state": "UNAVAILABLE", "reason": "no memory"}]
    of_repository = [
        *expected[:7],
        expected[8],
        "model     m  version 3  UNAVAILABLE  no memory",
    ]
    assert shown({**report, "models": rows}).splitlines()[3:] == of_repository


def test_inputs_and_outputs_are_shown_with_their_shapes() -> None:
    tensors = [
        {"name": "x", "dtype": "float32", "shape": [None, None, 4]},
        {"name": "s", "dtype": "object", "shape": [None]},
        {"name": "any", "dtype": "int64", "shape": None},
    ]
    graph = {"name": "g", "version": "1", "state": "serving", "inside": 0, "ops": []}
    report = {
        "ready": True,
        "engines": 1,
        "requests": {"answered": 0},
        "seconds": {"sum": 0.0},
        "answers": {},
        "refusals": {},
        "graphs": [{**graph, "signature": {"inputs": tensors}}],
    }
    expected = "  inputs  x float32[?, ?, 4], s str[?], any int64 of any rank"
    assert shown(report).splitlines()[-1] == expected


def test_the_external_store_is_shown_with_what_is_wrong_with_it() -> None:
    store = {
        "users": 3, "available": 1, "why": "does not accept the user and the password",
        "in_use": 2, "put_bytes": 9 << 20, "fetched_bytes": 3 << 19, "inline": 4, "lost": 5,
    }  # fmt: skip
    report = {
        "ready": True,
        "engines": 1,
        "requests": {"answered": 0},
        "seconds": {"sum": 0.0},
        "answers": {},
        "refusals": {},
        "graphs": [],
        "external_store": store,
    }
    assert shown(report).splitlines()[3:] == [
        "store     1 of 3 users can use it  keys 2  put 9.0 MiB  fetched 1.5 MiB  inline 4  lost 5",
        "  the external store does not accept the user and the password",
    ]
    right = {**report, "external_store": {**store, "available": 3, "why": None}}
    assert len(shown(right).splitlines()) == 4
    assert len(shown({**report, "external_store": None}).splitlines()) == 3


def test_callers_are_shown_with_what_was_refused() -> None:
    report = {
        "ready": True,
        "engines": 1,
        "requests": {"answered": 0},
        "seconds": {"sum": 0.0},
        "answers": {},
        "refusals": {},
        "callers": [
            {"name": "ann", "requests": 9, "failed": 2, "cancelled": 0, "refused": {"quota": 3}},
            {"name": "bob", "requests": 1, "failed": 0, "cancelled": 0, "refused": {}},
        ],
        "graphs": [],
    }
    assert shown(report).splitlines()[-2:] == [
        "caller    ann  requests 9  failed 2  refused: quota 3",
        "caller    bob  requests 1  failed 0",
    ]


def test_an_op_with_seats_is_shown_with_those_taken_and_its_steps() -> None:
    steps = {"count": 8, "running": {"sum": 60}, "seconds": {"sum": 0.01}}
    op = {
        "name": "write",
        "seats": {"all": 16, "taken": 12},
        "steps": steps,
        "waiting": 3,
        "samples": 40,
        "elements": 0,
        "errors": 2,
        "batching": {"why": None},
    }
    graph = {"name": "g", "version": "1", "state": "serving", "inside": 0, "signature": None}
    report = {
        "ready": True,
        "engines": 1,
        "requests": {"answered": 0},
        "seconds": {"sum": 0.0},
        "answers": {},
        "refusals": {},
        "graphs": [{**graph, "ops": [op]}],
    }
    line = "  op    write  12/16 seats  waiting 3  requests 40  steps 8 of 7.5  ms a step 1.25"
    assert shown(report).splitlines()[-1] == line + "  errors 2"
    places = Places(1, 0.0)
    places.refused(0, "no room here")
    op["places"] = places.plain(7.0)[0]
    assert shown(report).splitlines()[-1] == "    not started for 7.0 s: worker 0: no room here"
    op["steps"] = {"count": 0, "running": {"sum": 0}, "seconds": {"sum": 0}}
    assert "steps 0 of 0.0  ms a step 0.00" in shown(report)


def test_a_worker_that_is_lost_is_not_shown_as_idle() -> None:
    places = Places(1, 0.0)
    places.runs(0, 7, 1.0)
    places.ended(0, "signal SIGKILL", 2.0, lost=True)
    op = {
        "name": "shout", "workers": 1, "idle": 1, "ready": 0, "waiting": 0, "batches": 0,
        "samples": 0, "seconds": {}, "elements": 0, "batching": {"why": None},
        **dict(zip(("places", "lost"), places.plain(3.0), strict=True)),
    }  # fmt: skip
    for each in op["places"] + op["lost"]:
        each["engine"] = 0
    graph = {"name": "g", "version": "1", "state": "serving", "inside": 0, "signature": None}
    report = {
        "ready": True,
        "engines": 1,
        "requests": {"answered": 0},
        "seconds": {"sum": 0.0},
        "answers": {},
        "refusals": {},
        "graphs": [{**graph, "ops": [op]}],
    }
    *_, line, lost = shown(report).splitlines()
    assert line.startswith("  op    shout  0 of 1 workers idle  waiting 0")
    assert lost == "    lost 1.0 s ago: worker 0: signal SIGKILL, not back"
