"""When the pieces that a worker makes are sent to the engine, and how many together."""

import threading
from contextlib import AbstractContextManager
from typing import Any

import pytest

from penstock.executors.stream import MOST_PIECES
from penstock.executors.workers import child_stream
from penstock.executors.workers.child_stream import JoiningStream, Sender
from penstock.request import Feed


class Engine:
    """An engine that gives credit for everything whenever it is waited for."""

    def __init__(self) -> None:
        self.sending: AbstractContextManager[Any] = threading.RLock()
        self.frames: list[list[Any]] = []
        self.waits = 0
        self.cancelled: bool | None = False
        self.sent = threading.Semaphore(0)
        self.stream: JoiningStream

    def send_pieces(self, number: int, pieces: list[Feed]) -> None:
        self.frames.append([each["n"] for each in pieces])
        self.sent.release()

    def read(self, wait: bool) -> bool:
        if wait:
            self.waits += 1
            self.stream.credit(sum(map(len, self.frames)))
        return True

    def has_cancelled(self, number: int) -> bool | None:
        return self.cancelled


class NoSender(Sender):
    """A thread that gets no turn."""

    def __init__(self) -> None:
        self.asked = 0

    def soon(self, stream: JoiningStream) -> None:
        self.asked += 1


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """With a stream whose pieces are never slow."""
    monkeypatch.setattr(child_stream, "SLOW", 60.0)
    made = Engine()
    sender = NoSender()
    made.stream = JoiningStream(7, made, lambda: sender)
    return made


def test_the_first_piece_is_sent_at_once_and_quick_ones_together_when_credit_ends(
    engine: Engine,
) -> None:
    for n in range(MOST_PIECES - 1):
        assert engine.stream.put({"n": n})
    assert engine.frames == [[0]]
    assert engine.stream.put({"n": MOST_PIECES - 1})
    assert engine.frames == [[0], [*range(1, MOST_PIECES)]]
    assert engine.waits == 1


def test_a_piece_that_was_slow_is_sent_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.stream.put({"n": 0})
    engine.stream.put({"n": 1})
    monkeypatch.setattr(child_stream, "SLOW", 0.0)
    engine.stream.put({"n": 2})
    assert engine.frames == [[0], [1], [2]]


@pytest.mark.parametrize(
    "piece", [{"n": 2, "x": b"x" * 5000}, {"n": 2, "x": [1]}, {"n": 2, "x": "\ud800"}]
)
def test_a_piece_that_is_large_or_may_not_be_sendable_goes_alone(
    engine: Engine, piece: Feed
) -> None:
    engine.stream.put({"n": 0})
    engine.stream.put({"n": 1})
    engine.stream.put(piece)
    assert engine.frames == [[0], [1], [2]]


def test_without_a_status_page_every_piece_is_sent_at_once(engine: Engine) -> None:
    engine.cancelled = None
    for n in range(3):
        engine.stream.put({"n": n})
    assert engine.frames == [[0], [1], [2]]


def test_a_cancellation_is_seen_by_the_next_piece(engine: Engine) -> None:
    assert engine.stream.put({"n": 0})
    assert engine.stream.put({"n": 1})
    engine.cancelled = True
    assert not engine.stream.put({"n": 2})


def test_pieces_are_sent_while_the_next_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_stream, "SLOW", 60.0)
    engine = Engine()
    sender = Sender()
    engine.stream = JoiningStream(7, engine, lambda: sender)
    for n in range(3):
        engine.stream.put({"n": n})
        assert engine.sent.acquire(timeout=30)  # the next piece takes long
    assert engine.frames == [[0], [1], [2]]
