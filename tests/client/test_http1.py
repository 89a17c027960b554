"""The Open Inference Protocol over HTTP/1.1, against servers that answer byte by byte."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from penstock.client import CallFailed, Endpoint, Service, Timeline, Variant
from penstock.client.call import Outcome
from penstock.client.http1 import IDLE, outcome_of
from penstock.client.http_answer import read_head
from penstock.client.outliers import Verdict, verdict_of
from penstock.protocols.status import GrpcCode

from .conftest import TIMEOUT

Answer = Callable[[str, bytes], bytes | None]
"""Makes the bytes of an answer from a request's head and body; None closes the connection."""

KEYS = [*map(str, range(64))]
FEED = {"x": np.float32([[1, 2]])}
REPLY = {"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2],
                                         "data": [2.0, 4.0]}]}  # fmt: skip


def whole(body: bytes, status: int = 200, *fields: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *fields]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n" + body


def good(head: str, body: bytes) -> bytes:
    return whole(json.dumps(REPLY).encode())


class Server:
    """Answers with bytes, one request after the other on each connection."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[tuple[str, bytes]] = []
        self.opened = 0
        self.ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                self.opened += 1
                threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link, link.makefile("rb") as file, suppress(OSError):
            link.settimeout(TIMEOUT)
            while first := file.readline():
                lines = [first, *iter(file.readline, b"\r\n")]
                head = b"".join(lines).decode()
                size = next(int(x[15:]) for x in lines if x.lower().startswith(b"content-length:"))
                body = file.read(size)
                self.requests.append((head, body))
                answer = self.answer(head, body)
                if answer is None:
                    return
                link.sendall(answer)
        self.ended.set()

    def close(self) -> None:
        with suppress(OSError):  # it is closed already
            self._listener.shutdown(socket.SHUT_RDWR)  # also while the thread accepts
        self._listener.close()


Serve = Callable[[Answer], Server]


@pytest.fixture
def serve_http() -> Iterator[Serve]:
    made: list[Server] = []

    def start(answer: Answer) -> Server:
        made.append(Server(answer))
        return made[-1]

    yield start
    for each in made:
        each.close()


def endpoint(*servers: Server, protocol: str = "http:oip", **options: object) -> Endpoint:
    variant = Variant("v", [each.address for each in servers])
    return Endpoint("m", [variant], protocol=protocol, **options)  # type: ignore[arg-type]


def test_a_call_is_json_and_its_connection_is_used_again(serve_http: Serve) -> None:
    server = serve_http(good)
    with endpoint(server, token="t0k3n") as made:
        for _ in range(5):
            found = made.predict(FEED, log_id=7, timeout=TIMEOUT)
            assert found.outputs["y"].tolist() == [[2, 4]]
            assert found.outputs["y"].dtype == np.float32
        assert list(made.predict(FEED, "y", timeout=TIMEOUT).outputs) == ["y"]
        with pytest.raises(TypeError, match="has no messages"):
            made.inference(b"", None)  # type: ignore[arg-type]
    assert server.opened == 1
    head, body = server.requests[0]
    assert head.startswith("POST /v2/models/m/infer HTTP/1.1\r\n")
    assert f"host: {server.address}\r\n" in head
    assert "authorization: Bearer t0k3n\r\n" in head
    assert re.search(r"penstock-timeout: (9\.\d+|10\.000)\r\n", head)
    assert json.loads(body) == {
        "id": "7",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}],
    }
    assert json.loads(server.requests[-1][1])["outputs"] == [{"name": "y"}]


def test_the_name_of_a_predictor_is_that_of_its_model(serve_http: Serve, tmp_path: Path) -> None:
    server = serve_http(good)
    (tmp_path / "predictors.prototxt").write_text(
        "predictors { name: 'uci' variants { tag: 'v' rpc_parameter { protocol: 'http:oip' }"
        f" naming_conf {{ cluster: 'list://{server.address}' }} }} }}"
    )
    with Service.read(tmp_path) as service:
        service["uci"].predict(FEED, timeout=TIMEOUT)
    assert server.requests[0][0].startswith("POST /v2/models/uci/infer ")


def test_tensors_may_be_raw_bytes(serve_http: Serve) -> None:
    values = np.float16([[3, 5]])

    def raw(head: str, body: bytes) -> bytes:
        sizes = [{"parameters": {"binary_data_size": size}} for size in (4, 6)]
        outputs = [
            {"name": "y", "datatype": "FP16", "shape": [1, 2], **sizes[0]},
            {"name": "s", "datatype": "BYTES", "shape": [1], **sizes[1]},
        ]
        text = json.dumps({"outputs": outputs}).encode()
        tail = values.tobytes() + b"\x02\0\0\0hi"
        return whole(text + tail, 200, f"Inference-Header-Content-Length: {len(text)}")

    server = serve_http(raw)
    with endpoint(server, protocol="http:oip_binary") as made:
        outputs = made.predict({"x": values}, timeout=TIMEOUT).outputs
    assert outputs["y"].tolist() == values.tolist()
    assert outputs["s"].tolist() == ["hi"]
    head, body = server.requests[0]
    size = int(head.split("inference-header-content-length: ")[1].split("\r\n")[0])
    sent = json.loads(body[:size])
    assert sent["parameters"] == {"binary_data_output": True}
    assert body[size:] == values.tobytes()


def test_calls_at_once_have_connections_of_their_own(serve_http: Serve) -> None:
    together = threading.Barrier(8)

    def slow(head: str, body: bytes) -> bytes:
        together.wait(TIMEOUT)
        return whole(json.dumps({**REPLY, "id": json.loads(body)["id"]}).encode())

    server = serve_http(slow)
    with endpoint(server) as made, ThreadPoolExecutor(8) as pool:
        made._variants["v"].calls().opened()[1]  # threads that open it at once would all do so
        for _ in range(3):
            list(pool.map(lambda at: made.predict(FEED, log_id=at + 1, timeout=TIMEOUT), range(8)))
    assert server.opened == 8


def test_a_chunked_answer_and_one_that_ends_with_the_connection(serve_http: Serve) -> None:
    text = json.dumps(REPLY).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (1, text[at : at + 1]) for at in range(len(text)))
    answers = iter([
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunks + b"0\r\n\r\n",
        whole(text, 200, "Connection: close"),
        whole(text),
    ])  # fmt: skip
    server = serve_http(lambda *_: next(answers))
    with endpoint(server) as made:
        for _ in range(3):
            assert made.predict(FEED, timeout=TIMEOUT).outputs["y"].tolist() == [[2, 4]]
    assert server.opened == 2


def test_bytes_behind_an_answer_are_never_the_next_one(serve_http: Serve) -> None:
    wrong = json.dumps({**REPLY, "outputs": []}).encode()
    answers = iter([good("", b"") + whole(wrong), good("", b"")])
    server = serve_http(lambda *_: next(answers))
    with endpoint(server) as made:
        for _ in range(2):
            assert "y" in made.predict(FEED, timeout=TIMEOUT).outputs
    assert server.opened == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "the server broke the protocol: it begins with"),
        (whole(b"[]"), "the answer cannot be read"),
        (whole(b'{"outputs": [{"name": "y"}]}'), "the answer cannot be read"),
        (whole(b"{}", 200, "Inference-Header-Content-Length: 99"), "no 99 bytes of JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{}", "the connection broke"),
        (whole(b"{}", 200, "Inference-Header-Content-Length: \xb2"), "bytes of JSON"),
        (whole(b"{}", 200, f"Inference-Header-Content-Length: {'9' * 5000}"), "bytes of JSON"),
        (whole(b"{}", 503, "Retry-After: \xb2"), "HTTP status 503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\n" % (b"9" * 5000), "no length"),
        (None, "the connection broke"),
        (whole(b'{"error": "no such input"}', 400), "INVALID_ARGUMENT: .*no such input"),
        (whole(b"<html>", 404), "NOT_FOUND: .*HTTP status 404: <html>"),
        (whole(b"", 302, "Location: /x"), "UNKNOWN: .*HTTP status 302: no reason"),
    ],
)
def test_an_answer_that_is_none_is_the_failure_of_its_call_alone(
    serve_http: Serve, answer: bytes | None, error: str
) -> None:
    def once(head: str, body: bytes) -> bytes | None:
        # Cut off: the server closes behind it.
        return good(head, body) if json.loads(body).get("id") == "2" else answer

    server = serve_http(once)
    with endpoint(server) as made:
        timeout = 0.5 if answer is not None and b": 999\r" in answer else TIMEOUT
        with pytest.raises(CallFailed, match=error if timeout == TIMEOUT else "deadline") as failed:
            made.predict(FEED, timeout=timeout)
        assert server.address in str(failed.value)
        assert "y" in made.predict(FEED, log_id=2, timeout=TIMEOUT).outputs


def test_a_server_at_capacity_and_one_that_breaks_off_pass_the_call_on(serve_http: Serve) -> None:
    full = serve_http(lambda *_: whole(b"full", 503, "Retry-After: 1"))
    broken, healthy = serve_http(lambda *_: None), serve_http(good)
    with endpoint(full, healthy, load_balance_strategy="rr") as made:
        assert {made.predict(FEED, timeout=TIMEOUT).replica for _ in range(4)} == {healthy.address}
    assert full.requests
    with endpoint(broken, healthy, load_balance_strategy="rr", idempotent=True) as made:
        assert {made.predict(FEED, timeout=TIMEOUT).replica for _ in range(4)} == {healthy.address}
    assert broken.requests


def test_a_call_does_not_wait_for_a_server_that_stops(serve_http: Serve) -> None:
    armed, entered, released = (threading.Event() for _ in range(3))

    def slow(head: str, body: bytes) -> bytes:
        if armed.is_set():
            entered.set()
            released.wait(TIMEOUT)
        return good(head, body)

    stopping, other = serve_http(slow), serve_http(good)
    with endpoint(stopping, other, load_balance_strategy="sticky") as made:
        replicas = {key: made.predict(FEED, key=key, timeout=TIMEOUT).replica for key in KEYS}
        key = next(each for each in KEYS if replicas[each] == stopping.address)
        armed.set()
        first = made.predict_future(FEED, key=key, timeout=3 * TIMEOUT)
        assert entered.wait(TIMEOUT)
        stopping.close()
        assert made.predict(FEED, key=key, timeout=TIMEOUT).replica == other.address
        assert not first.done()
        released.set()
        assert first.result(TIMEOUT).replica == stopping.address


def test_cancelling_and_closing_disconnect(serve_http: Serve) -> None:
    entered, released = threading.Event(), threading.Event()

    def stuck(head: str, body: bytes) -> None:
        entered.set()
        released.wait(TIMEOUT)

    server = serve_http(stuck)
    made = endpoint(server)
    future = made.predict_future(FEED)
    assert entered.wait(TIMEOUT)
    assert future.cancel()
    with pytest.raises(CallFailed, match="cancelled by the caller"):
        future.result(TIMEOUT)
    entered.clear()
    other = made.predict_future(FEED)
    assert entered.wait(TIMEOUT)
    made.close()
    with pytest.raises(CallFailed, match="the client was closed"):
        other.result(TIMEOUT)
    assert server.opened == 2
    with pytest.raises(CallFailed, match="deadline"):
        asyncio.run(made.predict_async(FEED, timeout=0.05))
    made.close()
    released.set()


def test_a_connection_that_was_idle_is_replaced(
    serve_http: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve_http(good)
    with endpoint(server) as made:
        made.predict(FEED, timeout=TIMEOUT)
        later = time.monotonic() + IDLE
        monkeypatch.setattr("penstock.client.http1.time.monotonic", lambda: later)
        made.predict(FEED)
    assert server.opened == 2


def test_a_debug_call_over_http_has_the_servers_timeline(serve_http: Serve) -> None:
    fields = "edge;dur=3", "total;dur=2;engine=0;id=5, m;dur=1;begin=0", "cdn"
    lines = [f"Server-Timing: {each}" for each in fields]  # of two proxies as well
    server = serve_http(lambda *_: whole(json.dumps(REPLY).encode(), 200, *lines))
    with endpoint(server) as made:
        (attempt,) = made.debug(FEED, timeout=TIMEOUT).attempts
    assert attempt.timeline == Timeline.of_field(", ".join(fields).encode())
    assert [each.op for each in attempt.timeline.steps] == ["m"]
    assert "penstock-timeline: 1\r\n" in server.requests[0][0]


def of(status: int, *fields: str, body: bytes = b'{"error": "x"}') -> Outcome:
    head = read_head(whole(b"", status, *fields))
    assert head is not None
    return outcome_of(head, body)


@pytest.mark.parametrize(
    ("status", "fields", "code", "retryable", "after"),
    [
        (429, ("Retry-After: 2",), GrpcCode.RESOURCE_EXHAUSTED, True, 2.0),
        (429, (), GrpcCode.RESOURCE_EXHAUSTED, False, None),
        (503, ("Retry-After: Wed, 21 Oct 2026 07:28:00 GMT",), GrpcCode.UNAVAILABLE, True, None),
        (502, (), GrpcCode.UNAVAILABLE, True, None),
        (504, (), GrpcCode.DEADLINE_EXCEEDED, True, None),
        (500, ("Retry-After: 1",), GrpcCode.INTERNAL, False, None),
        (401, (), GrpcCode.UNAUTHENTICATED, False, None),
    ],
)
def test_statuses_have_the_meaning_of_grpcs(
    status: int, fields: tuple[str, ...], code: GrpcCode, retryable: bool, after: float | None
) -> None:
    failed = of(status, *fields)
    assert isinstance(failed, CallFailed)
    assert (failed.status, failed.retryable, failed.retry_after) == (code, retryable, after)


@pytest.mark.parametrize(
    ("status", "body", "retryable"),
    [
        (404, b'{"detail": "Not Found"}', False),
        (422, b'{"detail": [{"loc": ["body"], "msg": "no tensor"}]}', False),
        (404, b"<html>no such page</html>", True),
        (404, b"[]", True),
        (500, b'{"detail": "Internal Server Error"}', True),
    ],
)
def test_an_error_of_the_caller_says_nothing_about_the_server_in_whatever_form_it_is(
    status: int, body: bytes, retryable: bool
) -> None:
    failed = of(status, body=body)
    assert isinstance(failed, CallFailed)
    assert failed.retryable == retryable
    assert verdict_of(failed) is (Verdict.FAULT if retryable else Verdict.GOOD)
