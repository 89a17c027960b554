"""Starts one op's worker processes: from the wish for one to the one that can work."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress

from penstock.errors import StartupError
from penstock.executors.processes.passing import NoDescriptorError
from penstock.executors.processes.patrol import LOOK
from penstock.executors.processes.relay import Relay
from penstock.executors.processes.report import BYTES, printable
from penstock.executors.processes.spawner import Spawner
from penstock.executors.processes.stderr import Stderr
from penstock.executors.processes.supervision import Supervision
from penstock.executors.processes.watch import Start
from penstock.executors.processes.worker import Worker

_log = logging.getLogger(__name__)


class NoRoomError(StartupError):
    """A process could not even be started, which is not its own fault."""


class Starter:
    """See the module.

    Args:
        op: the op's name.
        spawner: starts the processes.
        loop: the engine's.
        relay: gets what they write to standard error.
        supervision: how they are looked after.
        only_plain: whether somebody reads their outputs who is no worker process.
    """

    def __init__(
        self,
        op: str,
        spawner: Spawner,
        loop: asyncio.AbstractEventLoop,
        relay: Relay,
        supervision: Supervision,
        *,
        only_plain: bool,
    ) -> None:
        self._op = op
        self._spawner = spawner
        self._loop = loop
        self._relay = relay
        self._supervision = supervision
        self._only_plain = only_plain

    async def start(self, index: int) -> Worker:
        """One that can work.

        Raises:
            NoRoomError: there is no room for a process.
            StartupError: it cannot work, with what it said; it has ended.
        """
        worker = await self._spawn(index)
        try:
            await self._first_word(worker)
            if worker.exit.done():
                worker.hear_out()
            broken = worker.ended.result() if worker.ended.done() else None
            if isinstance(broken, NoDescriptorError):
                raise NoRoomError(str(broken))
            if not worker.ready.done():
                if broken is not None:
                    worker.kill()
                end = await asyncio.shield(worker.exit)
                worker.stderr.close()
                wrote = "; it wrote last: ".join(["", *worker.stderr.last(1, BYTES)])
                raise StartupError(
                    f"op {self._op!r}: worker {index} ended before it was ready"
                    f" ({how_it_ended(end.status)}){printable(wrote)}"
                )
            worker.ready.result()
            limit, resident = self._supervision.memory_limit, worker.resident()
            if limit is not None and resident is not None and resident > limit:
                raise StartupError(
                    f"op {self._op!r}: worker {index} has {resident >> 20} MiB of memory before its"
                    f" first batch, over its memory_limit_mib of {limit >> 20}"
                )
        except BaseException:
            worker.kill()
            worker.close()
            while not worker.exit.done():
                with suppress(asyncio.CancelledError):  # it has been killed, and ends
                    await asyncio.wait((worker.exit,))
            worker.stderr.close()
            raise
        return worker

    async def _first_word(self, worker: Worker) -> None:
        """Wait until it is ready or has ended; end it where that takes too long.

        Raises:
            StartupError: it does; it has ended.
        """
        limit = self._supervision.start_timeout
        start = Start(limit)
        told = (worker.ready, worker.ended, worker.exit)
        while True:
            before = self._loop.time()
            done, _ = await asyncio.wait(told, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            # We may have been stopped together with it.
            is_time_to_tell = start.look(min(self._loop.time() - before, 2 * LOOK))
            who = (self._op, worker.index, worker.pid)
            if start.is_too_long:
                _log.error("op %s: worker %s (pid %s) hangs as it starts, and is ended", *who)
                worker.abort()
                await asyncio.shield(worker.exit)
                raise StartupError(
                    f"op {self._op!r}: worker {worker.index} was not ready within {limit:g} s"
                    " (start_timeout): its model was still being opened, or init_op ran; the log"
                    " has the stack of its threads"
                )
            if is_time_to_tell:
                _log.warning(
                    "op %s: worker %s (pid %s) has not become ready for %.0f s: its model is still"
                    " being opened, or init_op runs",
                    *who,
                    start.taken,
                )

    async def _spawn(self, index: int) -> Worker:
        try:
            stderr = Stderr(self._loop, self._relay)
        except OSError as error:
            raise NoRoomError(str(error)) from error
        try:
            spawned = await self._spawner.spawn(self._op, index)
        except BaseException as error:
            stderr.close()
            if isinstance(error, StartupError):
                raise NoRoomError(str(error)) from error
            raise
        return Worker(
            index,
            spawned,
            self._loop.create_task(self._spawner.exited(spawned.pid)),
            self._loop,
            stderr,
            only_plain=self._only_plain,
            supervision=self._supervision,
        )


def how_it_ended(status: int) -> str:
    """A status of ``os.waitpid`` in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
