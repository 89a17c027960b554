"""What a service answers over baidu_std when it is busy, late, left or draining."""

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


def ask(first: int, id: int, timeout_ms: int | None = None) -> bytes:
    tensor = {"name": "x", "elem_type": 7, "shape": [1], "tensor_content": bytes([first])}
    body: bytes = REQUEST(tensor=[tensor], model="hold").SerializeToString()
    return request(body, id=id, timeout_ms=timeout_ms)


def code_of(client: Connection, data: bytes) -> int:
    return client.ask(data).code


def test_a_call_s_time_is_over(service: ServiceProcess, pipe: Path) -> None:
    with connected(service.http_port) as client:
        client.send(ask(1, id=1))
        with held(pipe):
            late = client.ask(ask(0, id=2, timeout_ms=100))
            assert (late.id, late.code) == (2, ERPCTIMEDOUT)
        assert client.read().code == 0
        assert code_of(client, ask(0, id=3, timeout_ms=-1)) == 0


def test_too_many_at_once(service: ServiceProcess, pipe: Path) -> None:
    with connected(service.http_port) as client:
        client.send(ask(1, id=1))
        with held(pipe):
            client.send(*[ask(0, id=id) for id in range(2, 9)])
            busy = [client.read() for _ in range(6)]
            assert {each.code for each in busy} == {ELIMIT}
            assert all("try again later" in each.text for each in busy)
        rest = [client.read() for _ in range(2)]
        assert [each.code for each in rest] == [0, 0]


def test_a_client_that_leaves_takes_its_requests_along(service: ServiceProcess, pipe: Path) -> None:
    with connected(service.http_port) as client:
        with connected(service.http_port) as leaver:
            leaver.send(ask(1, id=1))
            with held(pipe):
                leaver.send(ask(0, id=2))
                leaver.socket.close()
                # There is room for the next one as soon as that is seen.
                while (answer := client.ask(ask(0, id=3, timeout_ms=50))).code == ELIMIT:
                    pass
                assert answer.code == ERPCTIMEDOUT
        assert code_of(client, ask(0, id=4)) == 0


def test_a_slow_sender_is_answered_and_closed(service: ServiceProcess) -> None:
    with connected(service.http_port) as slow, connected(service.http_port) as headless:
        headless.send(b"PRPC\0\0")
        slow.send(ask(0, id=5)[:-1])
        late = slow.read()
        assert (late.id, late.code) == (5, ERPCTIMEDOUT)
        assert slow.ends()
        assert headless.ends()
    with connected(service.http_port) as client:
        assert code_of(client, ask(0, id=6)) == 0


def test_a_service_that_stops_finishes_what_it_has(service: ServiceProcess, pipe: Path) -> None:
    with connected(service.http_port) as client:
        client.send(ask(1, id=1))
        with held(pipe):
            service.send_signal(signal.SIGTERM)
            answers: list[Message] = []
            while not answers or answers[-1].code == 0:
                answers.append(client.ask(ask(2, id=2, timeout_ms=100)))
                if answers[-1].code == ERPCTIMEDOUT:
                    answers.pop()
            assert (answers[-1].id, answers[-1].code) == (2, ELOGOFF)
        assert client.read().code == 0
        assert client.ends()
    assert service.wait_exit() == 0
