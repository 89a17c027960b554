"""Memory that comes back by itself, at either end."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any

import numpy as np
import pytest

from penstock.executors.processes import child as child_module
from penstock.executors.processes.child import Child
from penstock.executors.processes.crossing import batches_out
from penstock.executors.processes.frame import (
    Frame,
    FrameError,
    FrameReader,
    Kind,
    Ref,
    decode,
    encode,
    header,
)
from penstock.executors.processes.lending import Lender
from penstock.executors.processes.mapping import SlabReader
from penstock.executors.processes.passing import receive
from penstock.executors.processes.slab_pool import SlabPool
from penstock.executors.processes.upkeep import FREED_AFTER, TRIM_EVERY, Upkeep
from penstock.executors.work import BoundOp, WorkOptions
from penstock.ops.op import Op
from penstock.request import Sample

LIMIT = 64 << 20
LARGE = np.arange(50_000)


class Later:
    """A loop that does nothing by itself."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_soon_threadsafe(self, action: Callable[[], None]) -> None:
        self.soon.append(action)

    def call_later(self, delay: float, action: Callable[[], None]) -> Any:
        timer = (delay, action)
        self.timers.append(timer)

        class Handle:
            def cancel(_) -> None:
                self.timers.remove(timer)

        return Handle()

    def turn(self) -> None:
        while self.soon:
            self.soon.pop()()

    def ring(self, delay: float) -> None:
        ((after, action),) = self.timers
        assert after == delay
        self.timers.clear()
        action()


class Ours:
    """The engine's end."""

    def __init__(self) -> None:
        self.loop = Later()
        self.sent: list[bytes] = []
        self.upkeep = Upkeep(self.loop, LIMIT, self._send)  # type: ignore[arg-type]

    def _send(self, frames: Sequence[bytes]) -> None:
        self.sent += frames


@pytest.fixture
def ours() -> Iterator[Ours]:
    ours = Ours()
    yield ours
    ours.upkeep.close()
    assert not ours.loop.timers


@pytest.fixture
def theirs() -> Iterator[SlabPool]:
    pool = SlabPool(LIMIT)
    yield pool
    pool.close()


def sent_by(pool: SlabPool, reader: SlabReader) -> Any:
    body = b"".join(encode([LARGE], place=pool.place))
    for slab, descriptor in pool.commit():
        reader.accept(slab, os.dup(descriptor))
    return decode(body, fetch=reader.fetch)


FREE = header(Kind.FREE, 1, 0)  # the first slab in its first generation


def test_what_is_not_read_any_more_is_given_back_after_a_while(
    ours: Ours, theirs: SlabPool
) -> None:
    view = sent_by(theirs, ours.upkeep.reader)
    ours.loop.turn()
    assert not ours.loop.timers
    thread = threading.Thread(target=view.clear)  # in whichever thread it goes
    thread.start()
    thread.join()
    ours.loop.turn()
    assert ours.sent == []
    ours.loop.ring(FREED_AFTER)
    assert ours.sent == [FREE]


def test_a_frame_that_goes_out_meanwhile_takes_it_along(ours: Ours, theirs: SlabPool) -> None:
    view = sent_by(theirs, ours.upkeep.reader)
    view.clear()
    assert ours.upkeep.frees() == [FREE]
    ours.loop.turn()
    ours.loop.ring(FREED_AFTER)
    assert ours.sent == []


def test_many_at_once_are_given_back_together(ours: Ours, theirs: SlabPool) -> None:
    views = [sent_by(theirs, ours.upkeep.reader) for _ in range(5)]
    views.clear()
    assert len(ours.loop.soon) == 1
    ours.loop.turn()
    ours.loop.ring(FREED_AFTER)
    assert len(ours.sent) == 5


def test_slabs_that_are_not_used_are_given_up_and_then_nothing_is_to_be_done(ours: Ours) -> None:
    reader = SlabReader(LIMIT)
    ours.upkeep.committed()
    assert not ours.loop.timers
    sent_by(ours.upkeep.pool, reader).clear()
    ours.upkeep.committed()
    ours.upkeep.committed()
    ours.loop.ring(TRIM_EVERY)
    for freed in reader.freed():
        ours.upkeep.pool.release(*freed)
    ours.loop.ring(TRIM_EVERY)
    assert ours.upkeep.pool.size
    ours.loop.ring(TRIM_EVERY)
    assert not ours.upkeep.pool.size
    reader.close()


def test_what_was_lent_and_whose_maker_has_gone_is_recalled_after_a_while(
    ours: Ours, theirs: SlabPool
) -> None:
    maker = Ours()
    made = sent_by(theirs, maker.upkeep.reader)
    encode(made, place=ours.upkeep.pool.place)
    ((slab, _),) = ours.upkeep.pool.commit()
    maker.upkeep.close()
    made.clear()
    ours.loop.turn()
    assert ours.sent == []  # it reads that still
    ours.upkeep.pool.release(slab, 1)
    ours.loop.turn()
    ours.loop.ring(FREED_AFTER)
    assert ours.sent == [header(Kind.RECALL, slab, 0)]


def test_what_was_lent_and_is_not_wanted_is_recalled(ours: Ours, theirs: SlabPool) -> None:
    maker = Ours()
    made = sent_by(theirs, maker.upkeep.reader)
    encode(made, place=ours.upkeep.pool.place)
    ((slab, _),) = ours.upkeep.pool.commit()
    ours.upkeep.committed()
    ours.upkeep.pool.release(slab, 1)
    ours.loop.ring(TRIM_EVERY)
    assert ours.sent == []
    ours.loop.ring(TRIM_EVERY)
    assert ours.sent == [header(Kind.RECALL, slab, 0)]
    made.clear()
    maker.upkeep.close()


def test_what_the_worker_gives_is_looked_for_where_it_belongs(ours: Ours, theirs: SlabPool) -> None:
    maker = Ours()
    made = sent_by(theirs, maker.upkeep.reader)
    encode(made, place=ours.upkeep.pool.place)
    ((slab, _),) = ours.upkeep.pool.commit()
    ref = Ref(slab, 1, 64, LARGE.nbytes)
    assert np.array_equal(np.frombuffer(ours.upkeep.fetch(ref), LARGE.dtype), LARGE)
    ours.upkeep.pool.release(slab, 1)
    descriptor = os.dup(maker.upkeep.reader._slabs[0].descriptor or 0)
    ours.upkeep.reader.accept(slab, descriptor)  # its own, under such a number
    with pytest.raises(FrameError, match="is not with this worker"):
        ours.upkeep.fetch(ref)
    made.clear()
    maker.upkeep.close()


class Double(Op):
    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        return {"x": feed_batch[0]["x"] * 2}


class Same(Op):
    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        return {"x": feed_batch[0]["x"]}


class Far:
    """A worker in a thread, and the engine's ends of its sockets."""

    def __init__(self, op: Op) -> None:
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(20.0)
        self.child = Child(theirs, LIMIT)
        self._theirs = theirs
        self._frames = FrameReader(1 << 20)
        self._heard: list[Frame] = []
        self.child.ready()
        data, descriptors, _ = receive(self.channel, 1 << 16, 4)
        assert self._frames.receive(data)[0].kind is Kind.READY
        os.close(descriptors[0])
        self.answers = socket.socket(fileno=descriptors[1])
        bound = BoundOp(op, None, WorkOptions())
        self._thread = threading.Thread(target=self.child.serve, args=(bound,))
        self._thread.start()

    def next(self) -> Frame:
        while not self._heard:
            self._heard = self._frames.receive(receive(self.channel, 1 << 16, 4)[0])
        return self._heard.pop(0)

    def close(self) -> None:
        self.channel.sendall(header(Kind.STOP, 0, 0))
        self._thread.join(20.0)
        for each in (self.channel, self.answers, self._theirs, self.child._answering.socket):
            each.close()
        self.child._out.close()


def run_of(inputs: dict[str, Any]) -> object:
    return batches_out([[Sample(1, inputs, 1e12)]])[0]


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Far]:
    monkeypatch.setattr(child_module, "FREED_AFTER", 0.01)
    monkeypatch.setattr(child_module, "TRIM_EVERY", 0.02)
    far = Far(getattr(request, "param", Double)(name="op"))
    yield far
    far.close()


@pytest.mark.parametrize("far", [Same], indirect=True)
def test_what_the_answer_holds_goes_back_by_itself_when_nobody_asks(far: Far) -> None:
    pool = SlabPool(LIMIT)
    body = b"".join(encode(run_of({"@": {"x": LARGE}}), place=pool.place))
    for slab, descriptor in pool.commit():
        socket.send_fds(far.channel, [header(Kind.SLAB, slab, 0)], [descriptor])
    far.channel.sendall(header(Kind.RUN, 1, len(body)) + body)
    announced, done, freed = far.next(), far.next(), far.next()
    assert (announced.kind, done.kind) == (Kind.ANSWERS, Kind.DONE)
    assert (freed.kind, freed.number) == (Kind.FREE, 1)
    pool.close()


def test_a_worker_gives_back_and_gives_up_what_it_does_not_use_while_nobody_asks(
    far: Far,
) -> None:
    pool, reader = SlabPool(LIMIT), SlabReader(LIMIT)
    body = b"".join(encode(run_of({"@": {"x": LARGE}}), place=pool.place))
    for slab, descriptor in pool.commit():
        socket.send_fds(far.channel, [header(Kind.SLAB, slab, 0)], [descriptor])
    far.channel.sendall(header(Kind.RUN, 1, len(body)) + body)
    announced, freed, done = far.next(), far.next(), far.next()
    assert (announced.kind, done.kind) == (Kind.ANSWERS, Kind.DONE)
    assert (freed.kind, freed.number) == (Kind.FREE, 1)  # so with the answer
    pool.release(0, 1)
    data, descriptors, _ = receive(far.answers, 1 << 16, 4)
    assert data == header(Kind.SLAB, 0, 0)
    reader.accept(0, descriptors[0])
    value = decode(done.body, fetch=reader.fetch)
    assert np.array_equal(value[1]["x"], LARGE * 2)
    slab = reader._slabs[0]
    assert slab.written() == 1
    far.channel.sendall(FREE)
    until = monotonic() + 20.0
    while slab.written():  # as it is given up; nobody is told
        assert monotonic() < until
    pool.close()
    reader.close()


def test_a_worker_reads_what_it_is_lent_and_forgets_it_when_it_is_recalled(far: Far) -> None:
    maker, reader = SlabPool(LIMIT), SlabReader(LIMIT, most_lendable=1)
    lender = Lender(SlabPool(LIMIT), lambda slab: None, lambda: None)
    made = sent_by(maker, reader)
    feed = {"@": {"x": made[0]}}
    body = b"".join(encode(run_of(feed), place=lender.place))
    ((slab, descriptor),) = lender.commit()
    socket.send_fds(far.channel, [header(Kind.SLAB, slab, 0)], [descriptor])
    far.channel.sendall(header(Kind.RUN, 1, len(body)) + body)
    announced, freed, done = far.next(), far.next(), far.next()
    assert (announced.kind, done.kind) == (Kind.ANSWERS, Kind.DONE)
    assert (freed.kind, freed.number) == (Kind.FREE, slab << 32 | 1)
    assert slab in far.child._in._slabs
    far.channel.sendall(header(Kind.RECALL, slab, 0))
    until = monotonic() + 20.0
    while far.child._in._slabs:
        assert monotonic() < until
    made.clear()
    feed.clear()
    for each in (maker, lender, reader):
        each.close()
