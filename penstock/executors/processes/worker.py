"""One worker process as the engine sees it: what it was given, what it does, what it says.

Nothing that it says is trusted: whatever breaks the rules is a FrameError, which ends its line.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from penstock.errors import StartupError
from penstock.executors.executor import Finished, Work
from penstock.executors.processes.board import Board
from penstock.executors.processes.control import Exited
from penstock.executors.processes.crossing import batches_out
from penstock.executors.processes.frame import (
    Blob,
    Decoder,
    Encoder,
    Frame,
    FrameError,
    Kind,
    decode,
    encode,
    header,
)
from penstock.executors.processes.kept import read_kept
from penstock.executors.processes.ledger import Ledger
from penstock.executors.processes.link import Link
from penstock.executors.processes.memory import Memory
from penstock.executors.processes.passing import NoDescriptorError
from penstock.executors.processes.spawner import Spawned
from penstock.executors.processes.stderr import Stderr
from penstock.executors.processes.supervision import Supervision
from penstock.executors.processes.upkeep import Upkeep
from penstock.executors.processes.watch import Doing, Watch
from penstock.ops.failures import cannot_travel
from penstock.request import Batch, Outcome

SLAB_BYTES: Final = 512 << 20
"""Most bytes of large arrays on the way to one worker, and as many on the way back; what does not
fit goes through the socket."""

ANSWER_BYTES: Final = 1 << 30
"""Most bytes of one answer that goes through the socket."""

_AHEAD_BYTES: Final = 64 << 10
"""Most bytes, beside large arrays, of what is sent to a busy worker: less than the socket holds, so
that word of its having been taken back fits behind it."""

_DONE: Final = Kind.DONE
_SEVERAL: Final = Kind.SEVERAL
_MOST_WORDS: Final = 10_000  # between two answers; a few for each slab, of which there are few
_LAST_WORDS: Final = 1.0
"""Seconds that a worker which hangs is given to write down where."""

_FAREWELL: Final = 5.0
"""Seconds within which an idle worker ends when it is asked to; its last log lines take one."""


class Worker:
    """One process, from its start to its end.

    Args:
        index: its number within the op.
        spawned: the process.
        exit: see below.
        loop: the engine's.
        stderr: gets what it writes there; to be closed when it has ended.
        only_plain: whether its outputs may hold nothing that only workers open.
        supervision: how it is looked after.

    Attributes:
        ready: done when it has said that it can work; fails with what it said otherwise.
        exit: done with its status when it has ended.
        ended: done when it has hung up or was cut off, with the rule that it broke, if any.
        works: what it runs now, and what it goes on with.
        ledger: the batches of these, until each is answered.
        supervision: how it is looked after.
        watch: whether it hangs.
        spent: it is to be replaced when it has run what it has.
        condemned: we are ending it.
        sent_away: we are ending it though it did nothing wrong: that is no death.
        late: we are ending it for a call beyond its time-out.
    """

    def __init__(
        self,
        index: int,
        spawned: Spawned,
        exit: asyncio.Task[Exited],
        loop: asyncio.AbstractEventLoop,
        stderr: Stderr,
        *,
        only_plain: bool = False,
        supervision: Supervision | None = None,
    ) -> None:
        self.index = index
        self.pid = spawned.pid
        self.exit = exit
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[FrameError | None] = loop.create_future()
        self.works: deque[tuple[Work, Finished]] = deque()
        self.supervision = supervision = supervision or Supervision()
        self.watch = Watch(supervision.hang_limit)
        self._memory = None if supervision.memory_limit is None else Memory(spawned.pid)
        self.spent = False
        self.condemned = False
        self.sent_away = False
        self.late = False
        self.done: Callable[[Worker, Work, Finished], None] = _nobody
        self._loop = loop
        self._pidfd = spawned.pidfd
        self._words = 0  # since its last answer
        self._last_words: asyncio.TimerHandle | None = None
        self._board: Board | None = None
        self._link = Link(
            spawned.socket,
            loop,
            ANSWER_BYTES,
            self._hear,
            self._hung_up,
            lambda: bool(self.ledger.sent),
        )
        self.stderr = stderr
        self._link.send([header(Kind.STDERR, 0, 0)], [stderr.writer])
        stderr.sent()
        self._upkeep = Upkeep(loop, SLAB_BYTES, self._link.send)
        self._out = self._upkeep.pool
        self._in = self._upkeep.reader
        self._encoder = Encoder(self._out.place, _pickled)
        decoder = Decoder(self._upkeep.fetch, _refuse if only_plain else None)
        self.ledger = Ledger(index, decoder.decode, self._work_done)

    def run(self, op: str, work: Work, finished: Finished) -> bool:
        """Send a Work's batches, if not taken back meanwhile; whether all could have gone ahead."""
        self.works.append((work, finished))
        batches = list(work.pending)
        size = 0
        try:
            size = self._send(work, batches) if batches else 0
        except FrameError:  # there is one that cannot travel, or not in company
            for batch in batches:
                try:
                    self._send(work, [batch])
                except FrameError as error:
                    work.pending.remove(batch)
                    refusal = cannot_travel(op, str(error), batch.samples)
                    work.add_result(batch, [Outcome(None, refusal) for _ in batch.samples])
        if not self.ledger.sent:
            self._work_done()
        return size <= _AHEAD_BYTES

    def has_room(self, ahead: int) -> bool:
        """Whether it may be given one more Work, where so many may stand behind the first."""
        if not 0 < len(self.works) <= ahead or self.condemned or self.spent or self._link.blocked:
            return False
        most, current = self.supervision.max_batches, self.works[0][0].current
        if current is not None and current.settled:  # given up, and may never return
            return False
        return most is None or self.batches + len(self.ledger) < most

    def run_next(self, work: Work, finished: Finished) -> bool:
        """Send a Work that it goes on with; False where that is too much to be sent now."""
        try:
            if not self._send(work, list(work.pending), _AHEAD_BYTES):
                return False
        except FrameError:  # whoever gets it in its turn finds that out again
            return False
        self.works[-1][0].following = work
        self.works.append((work, finished))
        return True

    def _send(self, work: Work, batches: list[Batch], most: int | None = None) -> int:
        """How many bytes were sent; none where there are more than ``most``."""
        value, inputs = batches_out([batch.samples for batch in batches])
        try:
            # Opening a blob runs users' code; if the worker dies of it, of one batch alone.
            alone = len(batches) == 1
            body = self._encoder.encode(value, inputs, blobs=alone)
            size = sum(map(len, body))
            head = header(Kind.RUN, self.ledger.next, size)
        except FrameError:
            self._out.rollback()
            raise
        if most is not None and size > most:
            self._out.rollback()
            return 0
        if self._out.touched:
            for slab, descriptor in self._out.commit():
                self._link.send([header(Kind.SLAB, slab, 0)], [descriptor])
            self._upkeep.committed()
        self.ledger.add(batches, work, alone=value[0] is None)
        self._link.send([*self._upkeep.frees(), head, *body])
        return size

    def look(self) -> None:
        """Bring the Works up to date with what has been answered, and with what the board says."""
        self._link.read_answers()
        self._look_at_kept()
        self._look_at_board()

    def _look_at_kept(self) -> None:
        """Take what it has answered and not sent."""
        assert self._board is not None
        try:
            kept = read_kept(self._board.kept)
            if kept is not None:
                self.ledger.foresee(*kept)
        except FrameError as error:
            self._link.cut(error)

    def _look_at_board(self) -> None:
        assert self._board is not None
        at = self._board.batch
        if at >= self.ledger.next:
            self._link.cut(FrameError("the worker's board tells of a batch that it was not sent"))
            return
        self.ledger.begin(at)
        if self.ledger.sent:
            first = self.ledger.sent[0]
            current = first.work.current
            running = first.number == at and first.batches[0] is current
            if current is not None:
                current.started = self._board.started if running else None

    def take_back(self, work: Work) -> list[Batch]:
        """What it has not begun of a Work, and now will not begin.

        Nothing while something waits to be written to it: it could begin what it has just read
        before it hears that this is not wanted any more.
        """
        handed = [each for each in self.ledger.sent if each.work is work and each.waiting()]
        if not handed:
            return []
        first, last = handed[0].waiting()[0], encode(handed[-1].waiting()[-1])
        head = header(Kind.SKIP, first, sum(map(len, last)))
        if not self._link.send_at_once(b"".join([head, *last])):
            return []
        assert self._board is not None
        self._board.call()
        for each in handed:
            each.skippable = min(each.skippable, each.waiting()[0])
        self._look_at_board()  # in this order; see child.py
        taken = [batch for each in handed for batch in each.take_back()]
        for batch in taken:
            work.pending.remove(batch)
        return taken

    @property
    def batches(self) -> int:
        """How many it has finished."""
        return self.ledger.finished

    @property
    def has_begun(self) -> bool:
        """Whether it has begun a batch, and perhaps died of it."""
        return self.ledger.has_begun

    def ask_to_stop(self) -> None:
        """It ends after what it runs."""
        self._link.send([header(Kind.STOP, 0, 0)])

    def doing(self) -> Doing | None:
        """What it has at hand; None when it is idle."""
        if self.ledger.sent and self._board is not None:
            self.look()
        if not self.ledger.sent or self._board is None:
            return None
        first = self.ledger.sent[0]
        if first.begun < first.number:
            return Doing(first.number, begun=False, wanted=True)
        # Once it has, whatever the board says now: in turns, that would put the hang limit off.
        gone = all(sample.gone for sample in first.batches[0].samples)
        return Doing(first.number, begun=True, wanted=not gone)

    def resident(self) -> int | None:
        """Bytes of memory that it has; None when they have no limit."""
        return None if self._memory is None else self._memory.resident()

    def leave(self) -> None:
        """It ends as it is idle now, to make room for another; that is no death."""
        self.condemned = self.sent_away = True
        self.ask_to_stop()
        self._last_words = self._loop.call_later(_FAREWELL, self.kill)

    def kill(self) -> None:
        """End it now."""
        self.condemned = True
        self._signal(signal.SIGKILL)

    def abort(self) -> None:
        """End it, but let it write down where it is: that needs no help of its interpreter."""
        self.condemned = True
        self._signal(signal.SIGABRT)
        self._signal(signal.SIGCONT)  # it may be stopped; it does not run on, as SIGABRT came first
        self._last_words = self._loop.call_later(_LAST_WORDS, self.kill)

    def close(self) -> None:
        """Give back what belongs to it; it has ended."""
        # Shared memory is not to wait for the collector, which finds us late.
        self.ledger.sent.clear()
        if self._last_words is not None:
            self._last_words.cancel()
        self._link.close()
        self._upkeep.close()
        os.close(self._pidfd)
        self._pidfd = -1
        if self._memory is not None:
            self._memory.close()
        if self._board is not None:
            self._board.close()
            self._board = None

    def hear_out(self) -> None:
        """It has ended: take what it has still said, though others may hold its socket open."""
        self._link.read_rest()
        if self._board is not None:
            self._look_at_kept()

    def lost(self) -> list[tuple[Work, Batch]]:
        """Those that it had begun, the one that it died of first; the others have not begun.

        There is more than one only where it broke the rules. They may have run.
        """
        ledger = self.ledger
        if self._board is not None and ledger.sent:
            if ledger.ran <= self._board.batch < ledger.next:
                self._look_at_board()
            else:  # its word is worth nothing
                ledger.begin_first()
            if not self.sent_away:
                ledger.doubt()
        return ledger.running()

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd < 0:  # closed, but how it has ended may not have been told yet
            return
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    def _hear(self, frames: Sequence[Frame]) -> None:
        link, ledger = self._link, self.ledger
        for kind, number, body in frames:
            if link.over:
                return
            if kind is not _DONE and kind is not _SEVERAL:
                self._told(kind, number, body)
                continue
            self._words = 0
            (ledger.answered if kind is _DONE else ledger.answered_several)(number, body)

    def _told(self, kind: Kind, number: int, body: bytes | memoryview) -> None:
        self._words += 1
        if self._words > _MOST_WORDS:
            raise FrameError("the worker says too much that is no answer")
        match kind:
            case Kind.ANSWERS:
                self._link.read_answers()
            case Kind.SLAB:
                self._in.accept(number, self._link.take_descriptor())
            case Kind.FREE:
                self._out.release(number >> 32, number & 0xFFFFFFFF)
            case Kind.READY if not self.ready.done():
                self._board = Board.attach(self._link.take_descriptor())
                self._link.take_answers(self._link.take_descriptor())
                self.ready.set_result(None)
            case Kind.FAILED if not self.ready.done():
                self.ready.set_exception(StartupError(str(decode(body))))
            case _:
                raise FrameError(f"a worker does not say {kind.name} here")

    def _work_done(self) -> None:
        self.done(self, *self.works.popleft())

    def _hung_up(self, broken: FrameError | None) -> None:
        self.sent_away |= isinstance(broken, NoDescriptorError)
        if not self.ended.done():
            self.ended.set_result(broken)


def _pickled(value: Any) -> bytes:
    """What an op in this process made, for the user's code in the worker; opened only there."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _refuse(blob: Blob) -> NoReturn:
    raise FrameError("a worker gave a value that nobody here may open")


def _nobody(worker: Worker, work: Work, finished: Finished) -> None:
    """Before the executor listens there is no Work."""
