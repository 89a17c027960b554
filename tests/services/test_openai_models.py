"""OpenAI's routes, asked over sockets by readers of our own."""

from __future__ import annotations

import codecs
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).with_name("openai_models.py")
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Running:
    """The service, and the folder of its notes."""

    server: ServiceProcess
    folder: Path


@pytest.fixture(scope="module", params=["thread", "process"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("openai")
    with running(SCRIPT, environment={"EXECUTOR": request.param, "FOLDER": str(folder)}) as server:
        yield Running(server, folder)


def body_of(content: str, model: str = "words", **more: Any) -> bytes:
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": model, "messages": messages, "stream": True, **more}).encode()


@dataclass
class BenchReader:
    """Reads answers as vLLM's benchmark does: events end with two line feeds, wherever the pieces
    of the answer are cut; a comment is no event; nothing else than ``data: `` is removed.
    """

    decoder: Any = field(default_factory=codecs.getincrementaldecoder("utf-8"))
    rest: str = ""
    text: str = ""
    tokens: int | None = None
    reason: str | None = None
    gaps: list[float] = field(default_factory=list)
    done: bool = False

    def add(self, piece: bytes) -> None:
        self.rest += self.decoder.decode(piece)
        while "\n\n" in self.rest:
            event, self.rest = self.rest.split("\n\n", 1)
            if event.startswith(":"):
                continue
            data = event.removeprefix("data: ")
            if data == "[DONE]":
                self.done = True
                continue
            chunk = json.loads(data)
            if choices := chunk["choices"]:
                self.text += choices[0]["delta"].get("content") or ""
                self.reason = choices[0]["finish_reason"] or self.reason
                self.gaps.append(time.monotonic())
            elif usage := chunk.get("usage"):
                self.tokens = usage["completion_tokens"]


def test_events_can_be_read_as_the_benchmark_of_vllm_does(service: Running) -> None:
    said = " ".join(f"é{n}" for n in range(50))
    options = {"stream_options": {"include_usage": True}}
    reader = BenchReader()
    with (
        httpx.Client(base_url=service.server.http_url, timeout=30) as client,
        client.stream("POST", CHAT, content=body_of(said, **options)) as answer,
    ):
        for piece in answer.iter_raw(7):
            reader.add(piece)
    assert reader.text == f"{said} "
    assert (reader.tokens, reader.reason, reader.done, reader.rest) == (50, "stop", True, "")
    assert len(reader.gaps) == 51
    assert reader.gaps == sorted(reader.gaps)


def test_each_write_has_whole_events(service: Running) -> None:
    """Readers that take each chunk of the transfer coding for events see whole ones."""
    with socket.create_connection(("127.0.0.1", service.server.http_port), timeout=30) as sock:
        body = body_of("one two three")
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += sock.recv(65536)
    _, _, rest = received.partition(b"\r\n\r\n")
    pieces = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size, 16):
            break
        pieces.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    assert len(pieces) >= 1
    for each in pieces:
        assert b"\r" not in each
        assert each.startswith(b"data: ")
        assert each.endswith(b"\n\n")


def test_an_error_in_the_middle_is_an_event_and_nothing_looks_complete(service: Running) -> None:
    connection = HTTPConnection("127.0.0.1", service.server.http_port, timeout=30)
    connection.request("POST", CHAT, body_of("one fail two"))
    answer = connection.getresponse()
    assert answer.status == 200
    with pytest.raises(IncompleteRead) as cut:
        answer.read()
    connection.close()
    first, last, rest = cut.value.partial.decode().split("\n\n")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"]["content"] == "one "
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "hook_failed"
    assert rest == ""


def test_a_generator_is_closed_when_its_caller_leaves(service: Running) -> None:
    closed = service.folder / "closed"
    closed.unlink(missing_ok=True)
    with (
        httpx.Client(base_url=service.server.http_url, timeout=30) as client,
        client.stream("POST", CHAT, content=body_of("", "endless")) as answer,
    ):
        assert next(answer.iter_raw()).startswith(b"data: ")
    deadline = time.monotonic() + 30
    with httpx.Client(base_url=service.server.http_url, timeout=30) as client:
        while not closed.exists():
            assert time.monotonic() < deadline
            client.get("/v1/models").raise_for_status()


def test_a_caller_of_the_old_http_gets_all_events_at_once(service: Running) -> None:
    with socket.create_connection(("127.0.0.1", service.server.http_port), timeout=30) as sock:
        body = body_of("one two")
        head = f"POST {CHAT} HTTP/1.0\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        received = b"".join(iter(lambda: sock.recv(65536), b""))
    fields, _, events = received.partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(events) in fields.lower()
    assert events.endswith(b"data: [DONE]\n\n")


def test_the_other_routes_are_answered_by_workers_of_each_kind(service: Running) -> None:
    with httpx.Client(base_url=service.server.http_url, timeout=30) as client:
        body = {"query": "a b", "documents": ["a", "b a", "c"], "top_n": 2}
        results = client.post("/v1/rerank", json=body).json()["results"]
        assert [(each["index"], each["relevance_score"]) for each in results] == [(1, 2), (0, 1)]
        data = client.post("/v1/embeddings", json={"input": ["a", "b c"]}).json()["data"]
        assert [each["embedding"][0] for each in data] == [1, 3]


def test_http_2_has_the_same_events_and_a_reset_after_an_error(service: Running) -> None:
    url = service.server.http_url
    with httpx.Client(base_url=url, http1=False, http2=True, timeout=30) as client:
        answer = client.post(CHAT, content=body_of("one two"))
        assert answer.http_version == "HTTP/2"
        assert answer.text.endswith("data: [DONE]\n\n")
        received: list[bytes] = []
        with client.stream("POST", CHAT, content=body_of("one fail")) as failing:
            with pytest.raises(httpx.RemoteProtocolError):
                received.extend(failing.iter_raw())
        assert b'"code":"hook_failed"' in b"".join(received)
        assert b"[DONE]" not in b"".join(received)
