"""The worker's side, against a service that implements the documented protocol only."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack, unpack
from typing import Any, ClassVar

import ormsgpack
import pytest
from pydantic import BaseModel

from penstock.errors import HookError, HttpError
from penstock.executors.external.program import WorkerProgram
from penstock.executors.stream import MOST_PIECES
from penstock.protocols import media
from penstock.service.external_worker import bound_op

IDS = [f"{n:036d}" for n in range(6)]


class Item(BaseModel):
    value: int


class Inverter:
    """In ventu's form: a method for each step."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def preprocess(self, item: Item) -> int:
        return item.value

    def batch_inference(self, values: list[int]) -> list[float]:
        return [1 / each for each in values]

    def postprocess(self, inverse: float) -> dict[str, float]:
        return {"inverse": inverse}


def plain(value: int) -> int:
    return value + 1


class FakeService:
    """Accepts workers, and talks to the last one."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.settimeout(10)
        self.listener.bind(str(path))
        self.listener.listen()
        self.link = socket.socket()

    def accept(self) -> None:
        self.link.close()
        self.link, _ = self.listener.accept()
        self.link.settimeout(10)
        assert self.read() == b""  # the worker is ready

    def read(self) -> bytes:
        (length,) = unpack(">I", self._exactly(4))
        return self._exactly(length)

    def send(self, jobs: dict[str, bytes]) -> None:
        payload = ormsgpack.packb(jobs)
        self.link.sendall(pack(">I", len(payload)) + payload)

    def answers(self) -> dict[str, Any]:
        bodies: dict[str, Any] = ormsgpack.unpackb(self.read())
        return bodies

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.link.recv(size - len(data))
            assert more, "it has hung up"
            data += more
        return data


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FakeService]:
    service = FakeService(tmp_path / "batching.socket")
    yield service
    service.listener.close()
    service.link.close()


@contextmanager
def running(
    path: Path, target: Any, kind: str = media.JSON, **options: Any
) -> Iterator[WorkerProgram]:
    program = WorkerProgram(bound_op(target, **options), str(path), kind)
    thread = threading.Thread(target=program.run)
    thread.start()
    try:
        yield program
    finally:
        program.stop()
        thread.join(10)
    assert not thread.is_alive()


def decoded(body: bytes) -> Any:
    return json.loads(body)


def test_a_class_returns_each_request_s_own_result(
    service: FakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "batching.socket", Inverter):
        service.accept()
        bodies = [b'{"value": 2}', b'{"value": "x"}', b'{"value": 0}', b"{", b"{}", b'{"value":4}']
        service.send(dict(zip(IDS, bodies, strict=True)))
        replies = service.answers()
        assert [decoded(replies[IDS[n]]) for n in (0, 5)] == [{"inverse": 0.5}, {"inverse": 0.25}]
        invalid, raised, no_json, missing = (decoded(replies[IDS[n]]) for n in (1, 2, 3, 4))
        assert invalid["details"][0]["loc"] == missing["details"][0]["loc"] == ["body", "value"]
        assert no_json["error"] == "undecodable"
        assert raised["error"] == "hook_failed"
        assert "data_id 3" in raised["message"]
        ids = replies["error_ids"]
        assert sorted(ids[at : at + 36] for at in range(0, len(ids), 36)) == IDS[1:5]
        assert replies["failed_ids"] == IDS[2]
        assert any("data_ids=[3]" in each.getMessage() and each.exc_info for each in caplog.records)
        service.link.close()


def test_a_function_handles_one_request_after_the_other_in_msgpack(
    service: FakeService, tmp_path: Path
) -> None:
    with running(tmp_path / "batching.socket", plain, media.MSGPACK):
        service.accept()
        for n in range(3):
            service.send({IDS[n]: ormsgpack.packb({"value": n})})
            assert service.answers() == {IDS[n]: ormsgpack.packb(n + 1)}
        service.link.close()


def test_a_worker_reconnects_after_a_disconnect_or_an_invalid_frame(
    service: FakeService, tmp_path: Path
) -> None:
    with running(tmp_path / "batching.socket", plain):
        service.accept()
        service.accept()  # this closes the first connection
        service.link.sendall(b"\0\0\0\1\xc1")
        service.accept()
        service.send({IDS[0]: b'{"value": 1}'})
        assert service.answers() == {IDS[0]: b"2"}
        service.link.close()


def test_a_worker_waits_for_a_service_that_does_not_listen_yet(tmp_path: Path) -> None:
    with running(tmp_path / "late.socket", plain):
        service = FakeService(tmp_path / "late.socket")
        service.accept()
        service.listener.close()
        service.link.close()


entered, gate = threading.Event(), threading.Event()


def slow(value: int) -> int:
    entered.set()
    assert gate.wait(10)
    return value


def test_a_worker_that_is_stopped_answers_its_batch_and_announces_that_it_leaves(
    service: FakeService, tmp_path: Path
) -> None:
    with running(tmp_path / "batching.socket", slow) as program:
        service.accept()
        service.send({IDS[0]: b'{"value": 7}'})
        assert entered.wait(10)
        program.stop()
        gate.set()
        assert service.answers() == {IDS[0]: b"7", "leaving": b""}
        service.send({IDS[1]: b'{"value": 8}'})  # from a service that does not know ``leaving``
        assert service.answers() == {IDS[1]: b"8"}
        service.link.close()


def test_an_idle_worker_that_is_stopped_announces_that_it_leaves(
    service: FakeService, tmp_path: Path
) -> None:
    with running(tmp_path / "batching.socket", plain) as program:
        service.accept()
        program.stop()
        assert service.answers() == {"leaving": b""}
        service.link.close()


async def later(value: int) -> int:
    return value


async def pieces_on_the_loop(value: int) -> AsyncIterator[int]:
    yield value


@pytest.mark.parametrize("function", [later, pieces_on_the_loop])
def test_a_coroutine_is_refused(function: Any) -> None:
    with pytest.raises(HookError, match="coroutine"):
        bound_op(function)


closed = threading.Event()


def count(value: int) -> Iterator[int]:
    try:
        for n in range(value):
            if n == 100:
                raise HttpError(418, "too many")
            yield n
    finally:
        closed.set()


def pieces(service: FakeService, key: str) -> list[Any]:
    """The pieces of an answer, and the members of the frame that ends it."""
    found: list[Any] = []
    while True:
        answer = service.answers()
        if answer.get("more_ids") != key:
            return [*found, answer]
        found.append(decoded(answer[key]))


def test_a_generator_answers_in_pieces(service: FakeService, tmp_path: Path) -> None:
    with running(tmp_path / "batching.socket", count):
        service.accept()
        for n, key in ((3, IDS[0]), (0, IDS[1])):
            service.send({key: b'{"value": %d}' % n})
            assert pieces(service, key) == [*range(n), {"end_ids": key}]
        service.send({IDS[2]: b'{"value": "x"}'})
        (end,) = pieces(service, IDS[2])
        assert end["error_ids"] == IDS[2]
        assert "failed_ids" not in end
        service.link.close()


def test_a_generator_waits_for_credit_and_ends_with_its_error(
    service: FakeService, tmp_path: Path
) -> None:
    with running(tmp_path / "batching.socket", count):
        service.accept()
        key = IDS[0]
        service.send({key: b'{"value": 200}'})
        got = [decoded(service.answers()[key]) for _ in range(MOST_PIECES)]
        assert not select.select([service.link], [], [], 0.1)[0], "it has no credit"
        for told in range(MOST_PIECES, 101, MOST_PIECES):
            service.send({key: b"%d" % told, "credit_ids": key})
            while len(got) < min(told + MOST_PIECES, 100):
                got.append(decoded(service.answers()[key]))
        (end,) = pieces(service, key)
        assert got == [*range(100)]
        assert decoded(end[key])["error"] == "im_a_teapot"
        service.link.close()


def test_a_cancelled_generator_is_closed_and_the_worker_goes_on(
    service: FakeService, tmp_path: Path
) -> None:
    closed.clear()
    with running(tmp_path / "batching.socket", count):
        service.accept()
        service.send({IDS[0]: b'{"value": 50}'})
        service.answers()
        service.send({"cancel_ids": IDS[0]})
        *got, end = pieces(service, IDS[0])
        assert end == {"end_ids": IDS[0]}
        assert len(got) < MOST_PIECES
        assert closed.wait(10)
        service.send({IDS[1]: b'{"value": 1}'})
        assert pieces(service, IDS[1]) == [0, {"end_ids": IDS[1]}]
        service.link.close()


def test_a_worker_that_is_stopped_ends_its_answer_in_pieces_first(
    service: FakeService, tmp_path: Path
) -> None:
    with running(tmp_path / "batching.socket", count) as program:
        service.accept()
        service.send({IDS[0]: b'{"value": 20}'})
        frames = [service.answers() for _ in range(MOST_PIECES)]
        program.stop()
        service.send({IDS[0]: b"16", "credit_ids": IDS[0]})
        while "end_ids" not in frames[-1]:
            frames.append(service.answers())
        assert sum("leaving" in each for each in frames) == 1
        assert len(frames) == 21
        service.link.close()


def test_a_service_that_disconnects_closes_the_generator(
    service: FakeService, tmp_path: Path
) -> None:
    closed.clear()
    with running(tmp_path / "batching.socket", count):
        service.accept()
        service.send({IDS[0]: b'{"value": 50}'})
        service.answers()
        service.accept()
        assert closed.wait(10)
        service.send({IDS[1]: b'{"value": 1}'})
        assert pieces(service, IDS[1]) == [0, {"end_ids": IDS[1]}]
        service.link.close()


class Closing:
    closed: ClassVar[list[Closing]] = []

    def predict(self, value: int) -> int:
        return value

    async def close(self) -> None:
        self.closed.append(self)


def test_the_object_s_close_runs_once_when_the_worker_ends(
    service: FakeService, tmp_path: Path
) -> None:
    with running(tmp_path / "batching.socket", Closing):
        service.accept()
        assert Closing.closed == []
    assert len(Closing.closed) == 1
