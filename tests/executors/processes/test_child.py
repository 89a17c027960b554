"""The worker's side of the conversation, where the engine is not told or does not listen."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from penstock.executors.processes import child as child_module
from penstock.executors.processes.child import Child
from penstock.executors.processes.crossing import batches_out
from penstock.executors.processes.frame import (
    UNASKED_BYTES,
    Frame,
    FrameReader,
    Kind,
    decode,
    encode,
    header,
)
from penstock.executors.processes.passing import receive
from penstock.executors.work import BoundOp, WorkOptions
from tests.executors.house import batch_of
from tests.executors.processes.house import Acting

AT_ONCE = 64 << 10


class Engine:
    """Our end of a Child that serves in a thread."""

    def __init__(self, stack: ExitStack) -> None:
        self.channel, theirs = socket.socketpair()
        stack.enter_context(theirs)
        self.child = Child(theirs, 64 << 20)
        stack.callback(self.child._answering.socket.close)
        thread = threading.Thread(target=self._serve, daemon=True)
        stack.callback(thread.join, 10.0)
        stack.enter_context(self.channel)  # that ends it, whatever it waits for
        thread.start()
        self.channel.settimeout(10.0)
        data, (board, answers), _ = receive(self.channel, AT_ONCE, 2)
        assert data == header(Kind.READY, 0, 0)
        os.close(board)
        self.answers = stack.enter_context(socket.socket(fileno=answers))
        self.answers.settimeout(10.0)
        self._frames = FrameReader(1 << 30)
        self._heard: list[Frame] = []

    def _serve(self) -> None:
        try:
            self.child.ready()
            self.child.serve(BoundOp(Acting(name="acting"), None, WorkOptions(), 0))
        except ConnectionError:
            return

    def run(self, *feeds: dict[str, Any]) -> None:
        self.channel.sendall(run_frame(1, *feeds))

    def hear(self) -> Frame:
        while not self._heard:
            self._heard += self._frames.receive(self.channel.recv(AT_ONCE))
        return self._heard.pop(0)


def run_frame(number: int, *feeds: dict[str, Any]) -> bytes:
    batches = [batch_of(n, **feed) for n, feed in enumerate(feeds, number)]
    value, _ = batches_out([batch.samples for batch in batches])
    body = b"".join(encode(value, pickle=pickle.dumps))
    return header(Kind.RUN, number, len(body)) + body


def skip_frame(first: int, last: int) -> bytes:
    body = b"".join(encode(last))
    return header(Kind.SKIP, first, len(body)) + body


class Opened:
    """A value that tells of its being opened."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return _tell, (self.name,)


OPENED: list[str] = []
MEDDLE: list[Callable[[], None]] = []


class Meddling:
    """A value that takes the batch after its own back when it is opened."""

    def __reduce__(self) -> Any:
        return _meddle, ()


def _meddle() -> None:
    for each in MEDDLE:
        each()


def _tell(name: str) -> None:
    OPENED.append(name)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with ExitStack() as stack:
        yield Engine(stack)


def fill(sending: socket.socket) -> int:
    """Write until nothing more fits; so many bytes."""
    sent = 0
    while True:
        try:
            sent += sending.send(bytes(1000), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return sent


def test_memory_for_an_answer_that_the_socket_has_no_room_for_is_announced(engine: Engine) -> None:
    large = {"do": "array", "x": np.zeros(20_000)}
    filled = fill(engine.child._answering.socket)
    engine.run(large, {})
    assert engine.hear().kind is Kind.ANSWERS
    while filled:
        filled -= len(engine.answers.recv(min(filled, AT_ONCE)))
    assert engine.hear().kind is Kind.ANSWERS
    data, descriptors, _ = receive(engine.answers, AT_ONCE, 1)
    for descriptor in descriptors:
        os.close(descriptor)
    kinds = [frame.kind for frame in FrameReader(1 << 30).receive(data)]
    assert kinds[0] is Kind.SLAB
    assert len(descriptors) == 1
    done = engine.hear()
    assert (done.kind, done.number) == (Kind.DONE, 2)


def test_what_was_taken_back_is_not_even_opened(engine: Engine) -> None:
    OPENED.clear()
    taken = run_frame(1, {"x": Opened("taken back")}) + skip_frame(1, 1)
    engine.channel.sendall(taken + run_frame(2, {"x": Opened("wanted")}))
    answers = [engine.hear(), engine.hear()]
    assert [(each.kind, each.number) for each in answers] == [(Kind.DONE, 1), (Kind.DONE, 2)]
    assert decode(answers[0].body) is None
    assert decode(answers[1].body) is not None
    assert OPENED == ["wanted"]


@pytest.mark.parametrize("called", [True, False])
def test_between_two_cheap_batches_a_worker_hears_what_it_is_called_for_and_asks_nobody_else(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, called: bool
) -> None:
    monkeypatch.setattr(child_module, "_CHEAP", 1e9)

    MEDDLE[:] = [lambda: engine.channel.sendall(skip_frame(2, 2)), engine.child._board.call]
    if not called:
        MEDDLE.pop()
    engine.run({"x": Meddling()}, {"x": 2}, {"x": 3})
    frame = engine.hear()
    assert (frame.kind, frame.number) == (Kind.SEVERAL, 1)
    answers = decode(frame.body)
    assert [answer is None for answer in answers] == [False, called, False]


def test_however_much_a_failed_start_has_to_say_the_engine_takes_it() -> None:
    ours, theirs = socket.socketpair()
    theirs.settimeout(5.0)
    with ours, theirs:
        child = Child(theirs, 1 << 20)
        with child._answering.socket, child._answering.engines_end:
            os.close(child._board_descriptor)
            child.failed("字" * 1_000_000)
        (frame,) = FrameReader(1 << 30, lambda: False).receive(ours.recv(2 * UNASKED_BYTES))
    assert frame.kind is Kind.FAILED
    assert decode(frame.body).startswith("字字")
