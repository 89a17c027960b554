"""Answers over baidu_std of a busy or draining service, of late and of cancelled requests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.protocols import standard_messages as messages
from tests.hostile.conftest import LIMITS
from tests.hostile.holding import held
from tests.kit.baidu_std import Connection, Message, connected, request
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).with_name("models.py")
REQUEST, _ = messages.general_model_messages()
ERPCTIMEDOUT, ELOGOFF, ELIMIT = 1008, 2003, 2004


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "hold")
    return tmp_path / "hold"


@pytest.fixture
def service(pipe: Path) -> Iterator[ServiceProcess]:
    limits = {"PENSTOCK_MAX_REQUESTS": "2", "PENSTOCK_MAX_CALLS": "4"}
    with running(SCRIPT, environment=LIMITS | limits | {"HOSTILE_PIPE": str(pipe)}) as server:
        yield server
        assert "please report this" not in server.log()


def request_bytes(first: int, id: int, timeout_ms: int | None = None) -> bytes:
    tensor = {"name": "x", "elem_type": 7, "shape": [1], "tensor_content": bytes([first])}
    body: bytes = REQUEST(tensor=[tensor], model="hold").SerializeToString()
    return request(body, id=id, timeout_ms=timeout_ms)


def code_of(client: Connection, data: bytes) -> int:
    return client.ask(data).code


def test_a_call_beyond_its_timeout_gets_a_timeout_error(
    service: ServiceProcess, pipe: Path
) -> None:
    with connected(service.http_port) as client:
        client.send(request_bytes(1, id=1))
        with held(pipe):
            timed_out = client.ask(request_bytes(0, id=2, timeout_ms=100))
            assert (timed_out.id, timed_out.code) == (2, ERPCTIMEDOUT)
        assert client.read().code == 0
        assert code_of(client, request_bytes(0, id=3, timeout_ms=-1)) == 0


def test_calls_beyond_max_requests_are_refused_as_busy(service: ServiceProcess, pipe: Path) -> None:
    with connected(service.http_port) as client:
        client.send(request_bytes(1, id=1))
        with held(pipe):
            client.send(*[request_bytes(0, id=id) for id in range(2, 9)])
            busy = [client.read() for _ in range(6)]
            assert {each.code for each in busy} == {ELIMIT}
            assert all("try again later" in each.text for each in busy)
        last = [client.read() for _ in range(2)]
        assert [each.code for each in last] == [0, 0]


def test_requests_of_a_disconnected_client_are_cancelled(
    service: ServiceProcess, pipe: Path
) -> None:
    with connected(service.http_port) as client:
        with connected(service.http_port) as disconnecting:
            disconnecting.send(request_bytes(1, id=1))
            with held(pipe):
                disconnecting.send(request_bytes(0, id=2))
                disconnecting.socket.close()
                # The next one is admitted as soon as the disconnect is noticed.
                while (answer := client.ask(request_bytes(0, id=3, timeout_ms=50))).code == ELIMIT:
                    pass
                assert answer.code == ERPCTIMEDOUT
        assert code_of(client, request_bytes(0, id=4)) == 0


def test_an_incomplete_message_gets_a_timeout_error_and_the_connection_is_closed(
    service: ServiceProcess,
) -> None:
    with connected(service.http_port) as incomplete, connected(service.http_port) as without_header:
        without_header.send(b"PRPC\0\0")
        incomplete.send(request_bytes(0, id=5)[:-1])
        timed_out = incomplete.read()
        assert (timed_out.id, timed_out.code) == (5, ERPCTIMEDOUT)
        assert incomplete.ends()
        assert without_header.ends()
    with connected(service.http_port) as client:
        assert code_of(client, request_bytes(0, id=6)) == 0


def test_a_draining_service_answers_running_requests_and_refuses_new_ones(
    service: ServiceProcess, pipe: Path
) -> None:
    with connected(service.http_port) as client:
        client.send(request_bytes(1, id=1))
        with held(pipe):
            service.send_signal(signal.SIGTERM)
            answers: list[Message] = []
            while not answers or answers[-1].code == 0:
                answers.append(client.ask(request_bytes(2, id=2, timeout_ms=100)))
                if answers[-1].code == ERPCTIMEDOUT:
                    answers.pop()
            assert (answers[-1].id, answers[-1].code) == (2, ELOGOFF)
        assert client.read().code == 0
        assert client.ends()
    assert service.wait_exit() == 0
