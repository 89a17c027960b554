"""Answers in pieces when something goes wrong: each ends once, is told, and gives its worker back.

The table is FAULTS by KINDS by DOORS. A kind has one worker, or one seat, so that the request after
each fault shows that it was given back.
"""

from __future__ import annotations

import json
import queue
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, IncompleteRead
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import grpc
import httpx
import pytest

from penstock.protocols import standard_messages as messages
from tests.kit import frames as f
from tests.kit import http1, http2
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.faults

SCRIPT = Path(__file__).with_name("stream_faults.py")
TIMEOUT = 30.0
NUMBERS = count()
REQUEST, _ = messages.inference_messages("ModelInfer")
_, RESPONSE = messages.inference_messages("ModelStreamInfer")


class Answer(Protocol):
    """An answer in pieces, from its request on."""

    def piece(self) -> str:
        """The next piece, when it has arrived."""

    def rest(self) -> tuple[list[str], str]:
        """The other pieces, and the error at the end; that is empty if the answer is complete.

        Raises:
            AssertionError: it ends in the middle and has no error, or is complete and has one.
        """

    def leave(self) -> None:
        """Disconnect."""

    def close(self) -> None:
        """Give back what this end holds."""


def parse(blocks: list[str]) -> tuple[list[str], str]:
    """The texts of events, and the error that they end with."""
    pieces, error = [], ""
    for block in blocks:
        lines = [each for each in block.splitlines() if not each.startswith(":")]
        if not lines:
            continue
        fields = dict(each.split(": ", 1) for each in lines)
        assert not error, "something follows the error"
        data = json.loads(fields["data"])
        if fields.get("event") == "error":
            error = data["error"]
        else:
            pieces.append(data["text"] if isinstance(data, dict) else data)
    return pieces, error


class OverHttp1:
    """HTTP/1.1; ``reset`` disconnects with RST instead of FIN."""

    connection = HTTPConnection
    reset = False

    def __init__(self, port: int, kind: str, body: dict[str, Any]) -> None:
        self._connection = self.connection("127.0.0.1", port, timeout=TIMEOUT)
        self._connection.request("POST", f"/{kind}", json.dumps(body))
        assert isinstance(self._connection.sock, socket.socket)
        self.socket = self._connection.sock
        self._response: Any = None

    @property
    def response(self) -> Any:
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    def piece(self) -> str:
        assert self.response.status == 200
        block = b"".join(iter(self.response.readline, b"\n"))
        ((piece,), error) = parse([block.decode()])
        assert not error
        return piece

    def rest(self) -> tuple[list[str], str]:
        if self.response.status != 200:
            return [], json.loads(self.response.read())["error"]
        try:
            text, is_complete = self.response.read(), True
        except IncompleteRead as early:
            text, is_complete = early.partial, False
        *blocks, last = text.decode().split("\n\n")
        assert not last
        pieces, error = parse(blocks)
        assert is_complete == (not error)
        return pieces, error

    def leave(self) -> None:
        if self.reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        self._connection.close()


class OverHttp1Reset(OverHttp1):
    reset = True


class Http10(HTTPConnection):
    _http_vsn = 10
    _http_vsn_str = "HTTP/1.0"


class OverHttp10(OverHttp1):
    """HTTP/1.0: the whole answer at once, or an error."""

    connection = Http10


class OverHttp2:
    """HTTP/2; ``only_stream`` ends its stream only, not the connection."""

    only_stream = False

    def __init__(self, port: int, kind: str, body: dict[str, Any]) -> None:
        self._link = http2.client_of(http1.connect(port))
        local = f.changed(f.POST, b":authority", b"localhost")
        stream = self._link.open(f.changed(local, b":path", f"/{kind}".encode()))
        self._link.send_data(stream, json.dumps(body).encode(), end=True)
        self._stream = stream
        self._content = self._link.content(stream)
        self._seen = 0

    def _blocks(self) -> list[str]:
        *blocks, self._last = bytes(self._content.body).decode(errors="ignore").split("\n\n")
        return blocks

    def piece(self) -> str:
        self._link.until(lambda: len(self._blocks()) > self._seen)
        ((piece,), error) = parse([self._blocks()[self._seen]])
        self._seen += 1
        assert not error
        return piece

    def rest(self) -> tuple[list[str], str]:
        self._link.answer(self._stream)
        if self._content.http_status != 200:
            return [], json.loads(self._content.body)["error"]
        pieces, error = parse(self._blocks()[self._seen :])
        assert not self._last
        assert (self._content.reset is not None) == bool(error)
        return pieces, error

    def leave(self) -> None:
        if self.only_stream:
            self._link.send(f.reset(self._stream))
        else:
            self.close()

    def close(self) -> None:
        self._link.socket.close()


class OverHttp2Stream(OverHttp2):
    only_stream = True


class OverGrpc:
    """ModelStreamInfer; ``by_channel`` closes the connection instead of cancelling the call."""

    by_channel = False

    def __init__(self, port: int, kind: str, body: dict[str, Any]) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        method = self._channel.stream_stream(
            f"/{messages.INFERENCE}/ModelStreamInfer",
            request_serializer=REQUEST.SerializeToString,
            response_deserializer=RESPONSE.FromString,
        )
        self._requests: queue.Queue[Any] = queue.Queue()
        self._call = method(iter(self._requests.get, None), timeout=TIMEOUT)
        request = REQUEST(model_name={"seats": "Seats"}.get(kind, kind))
        for name, value in body.items():
            kind_of = "BYTES" if isinstance(value, str) else "INT64"
            contents = request.inputs.add(name=name, datatype=kind_of, shape=[1]).contents
            if isinstance(value, str):
                contents.bytes_contents.append(value.encode())
            else:
                contents.int64_contents.append(value)
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        self._requests.put(request)

    def piece(self) -> str:
        answer = next(self._call)
        assert not answer.error_message, answer
        text: bytes = answer.infer_response.outputs[0].contents.bytes_contents[0]
        return text.decode()

    def rest(self) -> tuple[list[str], str]:
        pieces: list[str] = []
        for answer in self._call:
            response = answer.infer_response
            is_final = response.parameters["triton_final_response"].bool_param
            assert is_final == (bool(answer.error_message) or not response.outputs)
            if is_final:
                self._requests.put(None)
                assert [*self._call] == []
                return pieces, answer.error_message
            pieces.append(response.outputs[0].contents.bytes_contents[0].decode())
        raise AssertionError("it ends without its last response")

    def leave(self) -> None:
        if self.by_channel:
            self._channel.close()
        else:
            self._call.cancel()

    def close(self) -> None:
        self._requests.put(None)
        self._channel.close()


class OverGrpcChannel(OverGrpc):
    by_channel = True


DOORS: dict[str, type[Answer]] = {
    "HTTP/1.1": OverHttp1,
    "HTTP/2": OverHttp2,
    "gRPC": OverGrpc,
}
LEAVES: dict[str, type[Answer]] = {
    **DOORS,
    "HTTP/1.1 reset": OverHttp1Reset,
    "HTTP/2 stream": OverHttp2Stream,
    "gRPC channel": OverGrpcChannel,
}
KINDS = ("thread", "process", "loop", "seats", "op", "op_process")


def pairs(doors: dict[str, type[Answer]]) -> list[Any]:
    """Each kind with each door that it has."""
    return [
        pytest.param(kind, make, id=f"{kind}, {door}")
        for kind in KINDS
        for door, make in doors.items()
        if not (kind.startswith("op") and door.startswith("gRPC"))  # without a Signature
    ]


@dataclass
class Site:
    """The running service, and the folder of its notes."""

    server: ServiceProcess
    client: httpx.Client
    folder: Path
    ends: ExitStack

    def ask(self, make: type[Answer], kind: str, **body: Any) -> tuple[Answer, str]:
        """Begin a request; returns its answer and its key."""
        key = f"k{next(NUMBERS)}"
        answer = make(self.server.http_port, kind, {"key": key, **body})  # type: ignore[call-arg]
        self.ends.callback(answer.close)
        if body.get("fault") == "gate":
            self.ends.callback(self.open_gate, key)
        return answer, key

    def noted(self, key: str, what: str) -> int:
        """The number of a key's steps, ends, or waits at the gate."""
        file = self.folder / f"{key}.{what}"
        return file.stat().st_size if file.exists() else 0

    def wait_for(self, right: Callable[[], bool], what: str = "") -> None:
        """Ask for something else until this is right."""
        deadline = time.monotonic() + TIMEOUT
        while not right():
            assert time.monotonic() < deadline, what
            self.client.get("/livez").raise_for_status()

    def open_gate(self, key: str) -> None:
        self.client.post("/go", json={"key": key}).raise_for_status()

    def counts(self, outcome: str = "cancelled") -> int:
        """The requests that have ended so."""
        lines = self.client.get("/metrics").text.splitlines()
        found = [each for each in lines if each.startswith("penstock_requests_total")]
        return sum(int(float(each.split()[-1])) for each in found if f'"{outcome}"' in each)

    def check_next(self, kind: str) -> None:
        """The next request is answered: the worker, or the seat, was given back."""
        answer, key = self.ask(OverHttp1, kind)
        assert answer.rest() == (["é0", "é1", "é2"], "")
        answer.close()
        self.wait_for(lambda: self.noted(key, "ends") == 1)


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ServiceProcess, Path]]:
    folder = tmp_path_factory.mktemp("streams")
    with running(SCRIPT, environment={"FOLDER": str(folder)}) as server:
        yield server, folder
        assert "please report this" not in server.log()
        assert server.stop() == 0


@pytest.fixture
def site(service: tuple[ServiceProcess, Path]) -> Iterator[Site]:
    with calling(*service) as found:
        yield found


@contextmanager
def calling(server: ServiceProcess, folder: Path) -> Iterator[Site]:
    """A caller of a running service."""
    with httpx.Client(base_url=server.http_url, timeout=TIMEOUT) as client, ExitStack() as ends:
        yield Site(server, client, folder, ends)


@dataclass(frozen=True)
class Fault:
    """What a generator does before the piece ``at``, and how it is told: a code, or over gRPC a
    part of the message.
    """

    does: str
    at: int
    code: str
    text: str
    kinds: tuple[str, ...] = KINDS


FAULTS = [
    *(Fault("raise", at, "im_a_teapot", "a teapot") for at in (0, 1, 3)),
    *(Fault("bug", at, "hook_failed", "its log says why") for at in (0, 2)),
    *(Fault("type", at, "hook_failed", "its log says why", KINDS[:4]) for at in (0, 2)),
    *(Fault("type", at, "wrong_type", "", KINDS[4:]) for at in (0, 2)),
    *(
        Fault("die", at, "worker_died", "its log says why", ("process", "op_process"))
        for at in (1, 3)
    ),
]


@pytest.mark.parametrize(
    ("kind", "make", "fault"),
    [
        pytest.param(*pair.values, fault, id=f"{pair.id}, {fault.does} at {fault.at}")
        for pair in pairs(DOORS)
        for fault in FAULTS
        if pair.values[0] in fault.kinds
    ],
)
def test_a_generator_that_fails_is_told_and_its_worker_is_free(
    site: Site, kind: str, make: type[Answer], fault: Fault
) -> None:
    answer, key = site.ask(make, kind, fault=fault.does, at=fault.at)
    pieces, error = answer.rest()
    assert pieces == [f"é{n}" for n in range(fault.at)]
    if make is OverGrpc:
        assert fault.text in error
        assert error
    else:
        assert error == fault.code
    answer.close()
    site.check_next(kind)
    assert site.noted(key, "steps") == fault.at + 1
    assert site.noted(key, "ends") == (fault.does != "die")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_the_middle_is_the_whole_answer_over_http_1_0(site: Site, kind: str) -> None:
    answer, key = site.ask(OverHttp10, kind, fault="raise", at=2)
    assert answer.rest() == ([], "im_a_teapot")
    site.check_next(kind)
    assert (site.noted(key, "steps"), site.noted(key, "ends")) == (3, 1)


def test_an_answer_over_http_1_0_that_never_ends_is_refused_at_its_most_bytes(site: Site) -> None:
    answer, key = site.ask(OverHttp10, "thread", fault="endless")
    assert answer.rest() == ([], "too_large")
    site.check_next("thread")
    assert site.noted(key, "ends") == 1


def test_head_over_http_1_0_is_answered_with_the_first_piece(site: Site) -> None:
    with closing(Http10("127.0.0.1", site.server.http_port, timeout=TIMEOUT)) as link:
        link.request("HEAD", "/pieces?key=head10&fault=endless")
        assert link.getresponse().status == 200
    site.wait_for(lambda: site.noted("head10", "ends") == 1)
    assert site.noted("head10", "steps") <= 16, "those that need no credit"


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize(("kind", "make"), pairs(LEAVES))
def test_a_caller_that_leaves_in_the_middle_of_a_step_causes_no_further_one(
    site: Site, kind: str, make: type[Answer], at: int
) -> None:
    before = site.counts()
    answer, key = site.ask(make, kind, fault="gate", at=at)
    assert [answer.piece() for _ in range(at)] == [f"é{n}" for n in range(at)]
    site.wait_for(lambda: site.noted(key, "waits") == 1)
    answer.leave()
    site.wait_for(lambda: site.counts() == before + 1)
    site.open_gate(key)
    site.wait_for(lambda: site.noted(key, "ends") == 1)
    site.check_next(kind)
    assert site.noted(key, "steps") == at + 1
    assert site.noted(key, "ends") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_caller_that_leaves_within_a_character_is_one_that_leaves(site: Site, kind: str) -> None:
    before = site.counts()
    body = b'{"key": "within %b", "fault": "endless"}' % kind.encode()
    head = b"POST /%b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", site.server.http_port), TIMEOUT) as link:
        link.sendall(head % (kind.encode(), len(body)) + body)
        while link.recv(1) != "é".encode()[:1]:
            pass
    site.wait_for(lambda: site.counts() == before + 1)
    site.check_next(kind)
    assert site.noted(f"within {kind}", "ends") == 1


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("bounded")
    environment = {"FOLDER": str(folder), "PENSTOCK_STREAM_LIMIT": "1"}
    with running(SCRIPT, environment=environment) as server, calling(server, folder) as found:
        yield found


@pytest.mark.parametrize(("kind", "make"), pairs(DOORS))
def test_an_answer_that_stands_still_is_ended_by_its_limit(
    bounded: Site, kind: str, make: type[Answer]
) -> None:
    answer, key = bounded.ask(make, kind, fault="gate", at=2)
    pieces, error = answer.rest()
    assert pieces == ["é0", "é1"]
    assert "deadline" in error
    answer.close()
    bounded.open_gate(key)
    bounded.check_next(kind)
    assert bounded.noted(key, "steps") == 3
    assert bounded.noted(key, "ends") == 1


@pytest.mark.parametrize("make", [OverHttp1, OverHttp10])
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_never_ends_is_ended_by_its_limit(
    bounded: Site, kind: str, make: type[OverHttp1]
) -> None:
    answer, key = bounded.ask(make, kind, fault="endless")
    pieces, error = answer.rest()
    assert pieces if make is OverHttp1 else not pieces
    assert error == "deadline"
    answer.close()
    bounded.check_next(kind)
    assert bounded.noted(key, "ends") == 1


def test_readers_that_stop_are_disconnected(tmp_path: Path) -> None:
    environment = {"FOLDER": str(tmp_path), "PENSTOCK_WRITE_TIMEOUT": "1"}
    with running(SCRIPT, environment=environment) as server, calling(server, tmp_path) as site:
        keys = {}
        for kind in KINDS:
            answer, keys[kind] = site.ask(OverHttp1, kind, fault="endless")
            assert answer.piece().startswith("é0")
        for kind, key in keys.items():
            site.wait_for(partial(lambda key: site.noted(key, "ends") == 1, key))
            site.check_next(kind)


def test_answers_that_never_end_are_ended_by_a_drain_and_told(tmp_path: Path) -> None:
    environment = {"FOLDER": str(tmp_path), "PENSTOCK_DRAIN_TIMEOUT": "5"}
    with running(SCRIPT, environment=environment) as server, calling(server, tmp_path) as site:
        asked = {kind: site.ask(OverHttp1, kind, fault="endless") for kind in KINDS}
        assert all(answer.piece().startswith("é0") for answer, _ in asked.values())
        server.send_signal(signal.SIGTERM)
        with ThreadPoolExecutor(len(asked)) as readers:
            ends = readers.map(lambda one: one[0].rest()[1], asked.values())
            assert dict(zip(asked, ends, strict=True)) == dict.fromkeys(asked, "closed")
        assert server.wait_exit() == 0
        assert {kind: site.noted(key, "ends") for kind, (_, key) in asked.items()} == dict.fromkeys(
            asked, 1
        )


@pytest.mark.parametrize("at", [0, 2])
def test_a_step_over_the_route_s_timeout_is_told(site: Site, at: int) -> None:
    answer, key = site.ask(OverHttp1, "limited", fault="gate", at=at)
    assert answer.rest() == ([f"é{n}" for n in range(at)], "op_timeout")
    site.open_gate(key)
    site.check_next("limited")
    assert (site.noted(key, "steps"), site.noted(key, "ends")) == (at + 1, 1)


@pytest.mark.parametrize("total", [60, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["thread", "process", "loop", "seats"])
@pytest.mark.timeout(600)
def test_none_of_many_that_leave_causes_a_further_step_or_keeps_memory(
    site: Site, kind: str, total: int
) -> None:
    before, memory = site.counts(), 0
    keys: list[str] = []
    for number in range(total):
        answer, key = site.ask(OverHttp1, kind, fault="gate", at=1)
        keys.append(key)
        assert answer.piece() == "é0"
        site.wait_for(partial(lambda key: site.noted(key, "waits") == 1, key))
        answer.leave()
        site.wait_for(partial(lambda n: site.counts() == before + n + 1, number))
        site.open_gate(key)
        if number == total // 2:
            memory = site.server.memory()
    site.check_next(kind)
    assert [(site.noted(key, "steps"), site.noted(key, "ends")) for key in keys] == [(2, 1)] * total
    assert site.server.memory() - memory < 4 << 20


@pytest.mark.parametrize("total", [300, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
def test_many_answers_may_stand_still_at_once(total: int, tmp_path: Path) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most < total + 500:
        pytest.skip(f"a process may have {most} descriptors here")
    # An eighth of them is kept for the port of gRPC.
    environment = {"FOLDER": str(tmp_path), "PENSTOCK_MAX_CONNECTIONS": "1200"}
    with running(SCRIPT, environment=environment) as server, calling(server, tmp_path) as site:
        answers = [site.ask(OverHttp1, "idle")[0] for _ in range(total)]
        assert {each.piece() for each in answers} == {"first"}
        site.check_next("thread")
        site.open_gate("idle")
        for each in answers:
            assert each.rest() == (["last"], "")
            each.close()
        assert site.counts("cancelled") == 0
