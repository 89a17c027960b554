"""The worker's side, against a front that knows the documented protocol only."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack, unpack
from typing import Any

import ormsgpack
import pytest
from pydantic import BaseModel

from penstock.errors import HookError
from penstock.executors.external.program import WorkerProgram
from penstock.protocols import media
from penstock.service.external_worker import bound_op

IDS = [f"{n:036d}" for n in range(6)]


class Item(BaseModel):
    value: int


class Inverter:
    """As ventu's: one step for each part of the work."""

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


class Front:
    """Accepts workers, and speaks to the one that came last."""

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
        assert self.read() == b""  # it is ready

    def read(self) -> bytes:
        (length,) = unpack(">I", self._exactly(4))
        return self._exactly(length)

    def ask(self, jobs: dict[str, bytes]) -> None:
        payload = ormsgpack.packb(jobs)
        self.link.sendall(pack(">I", len(payload)) + payload)

    def answers(self) -> dict[str, Any]:
        found: dict[str, Any] = ormsgpack.unpackb(self.read())
        return found

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.link.recv(size - len(data))
            assert more, "it has hung up"
            data += more
        return data


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    front = Front(tmp_path / "batching.socket")
    yield front
    front.listener.close()
    front.link.close()


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


def said(body: bytes) -> Any:
    return json.loads(body)


def test_a_class_answers_each_request_of_a_batch_with_its_own_result(
    front: Front, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "batching.socket", Inverter):
        front.accept()
        bodies = [b'{"value": 2}', b'{"value": "x"}', b'{"value": 0}', b"{", b"{}", b'{"value":4}']
        front.ask(dict(zip(IDS, bodies, strict=True)))
        found = front.answers()
        assert [said(found[IDS[n]]) for n in (0, 5)] == [{"inverse": 0.5}, {"inverse": 0.25}]
        invalid, raised, no_json, missing = (said(found[IDS[n]]) for n in (1, 2, 3, 4))
        assert invalid["details"][0]["loc"] == missing["details"][0]["loc"] == ["body", "value"]
        assert no_json["error"] == "undecodable"
        assert raised["error"] == "hook_failed"
        assert "data_id 3" in raised["message"]
        ids = found["error_ids"]
        assert sorted(ids[at : at + 36] for at in range(0, len(ids), 36)) == IDS[1:5]
        assert found["failed_ids"] == IDS[2]
        assert any("data_ids=[3]" in each.getMessage() and each.exc_info for each in caplog.records)
        front.link.close()


def test_a_function_answers_one_request_after_the_other_in_msgpack(
    front: Front, tmp_path: Path
) -> None:
    with running(tmp_path / "batching.socket", plain, media.MSGPACK):
        front.accept()
        for n in range(3):
            front.ask({IDS[n]: ormsgpack.packb({"value": n})})
            assert front.answers() == {IDS[n]: ormsgpack.packb(n + 1)}
        front.link.close()


def test_it_connects_again_when_the_service_hangs_up_or_breaks_the_protocol(
    front: Front, tmp_path: Path
) -> None:
    with running(tmp_path / "batching.socket", plain):
        front.accept()
        front.accept()  # the first connection is closed by that
        front.link.sendall(b"\0\0\0\1\xc1")
        front.accept()
        front.ask({IDS[0]: b'{"value": 1}'})
        assert front.answers() == {IDS[0]: b"2"}
        front.link.close()


def test_it_waits_for_a_service_that_is_not_there(tmp_path: Path) -> None:
    with running(tmp_path / "late.socket", plain):
        front = Front(tmp_path / "late.socket")
        front.accept()
        front.listener.close()
        front.link.close()


entered, gate = threading.Event(), threading.Event()


def slow(value: int) -> int:
    entered.set()
    assert gate.wait(10)
    return value


def test_told_to_stop_it_answers_what_it_has_and_says_that_it_leaves(
    front: Front, tmp_path: Path
) -> None:
    with running(tmp_path / "batching.socket", slow) as program:
        front.accept()
        front.ask({IDS[0]: b'{"value": 7}'})
        assert entered.wait(10)
        program.stop()
        gate.set()
        assert front.answers() == {IDS[0]: b"7", "leaving": b""}
        front.ask({IDS[1]: b'{"value": 8}'})  # of a front that does not know the word
        assert front.answers() == {IDS[1]: b"8"}
        front.link.close()


def test_told_to_stop_while_idle_it_says_that_it_leaves(front: Front, tmp_path: Path) -> None:
    with running(tmp_path / "batching.socket", plain) as program:
        front.accept()
        program.stop()
        assert front.answers() == {"leaving": b""}
        front.link.close()


async def later(value: int) -> int:
    return value


def test_a_coroutine_is_refused() -> None:
    with pytest.raises(HookError, match="coroutine"):
        bound_op(later)
