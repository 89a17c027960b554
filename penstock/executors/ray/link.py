"""The engine's end of the process that talks to Ray: starts it, and again after its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from penstock.executors.elsewhere.output import Lines
from penstock.executors.processes.crash_report import printable
from penstock.executors.workers.places import Lack
from penstock.executors.workers.pool import LOG_AFTER, NoWorkerError

_log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.5  # seconds between two starts of the process, after one that failed
_LONGEST_PAUSE: Final = 10.0
_END_TIMEOUT: Final = 10.0
"""Seconds for the process to end with its cluster; then it is killed, and the cluster with it."""
_CLOSED: Final = 2.0  # seconds for the process to end when it has closed its socket
_LINE_BYTES: Final = 1 << 20
_OUTPUT_BYTES: Final = 64 << 10  # that are read at once

COMMAND: Final = (sys.executable, "-P", "-m", "penstock.executors.ray.holder")
"""The program, without its arguments."""


def label_of(address: str | None) -> str:
    """What messages call the cluster at this address; where it is known, with what auto means."""
    if address is None:
        return "Ray on this machine"
    meant = _meant_by_auto() if address == "auto" else ""
    return f"Ray at {meant} ({address})" if meant else f"Ray at {address}"


def _meant_by_auto() -> str:
    """The address that Ray takes for auto: of its variable, or of the last ``ray start`` here."""
    if given := os.environ.get("RAY_ADDRESS"):
        return "" if given == "auto" else given
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - Ray's
    try:
        return printable(Path(folder, "ray", "ray_current_cluster").read_text().strip())
    except (OSError, ValueError):
        return ""


class Placed:
    """A worker that was asked for, and maybe started; see ``Started`` of the executor elsewhere.

    Attributes:
        where: where it runs; empty before it has started.
        node: its node's ``id``, ``address`` and ``host``, its name there.
        waits: called with what it waits for while it has no place, again and again.
    """

    def __init__(self, number: int, holder: _Process, waits: Callable[[Lack], None]) -> None:
        self.where = ""
        self.node: Mapping[str, str] | None = None
        self.waits = waits
        self.began: asyncio.Future[None] = holder.loop.create_future()
        self.end: asyncio.Future[str] = holder.loop.create_future()
        self._number = number
        self._holder = holder

    async def ended(self) -> str:
        return await asyncio.shield(self.end)

    def kill(self) -> None:
        if not self.end.done():
            self._holder.tell({"kill": self._number})


class _Output:
    """Logs what the process writes, line by line: most of it is Ray's own.

    Args:
        label: what messages call the cluster.
        level: of the events.

    Attributes:
        last: the last line.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, label: str, level: int) -> None:
        self._read, self.written = os.pipe()
        os.set_blocking(self._read, False)
        self._loop, self._label, self._level = loop, label, level
        self._lines = Lines()
        self._closed = False
        self.last = ""
        loop.add_reader(self._read, self._look)

    def _look(self) -> None:
        try:
            data = os.read(self._read, _OUTPUT_BYTES)
        except BlockingIOError:
            return
        for line in self._lines.receive(data):
            self._log(line)
        if not data:
            self._loop.remove_reader(self._read)

    def _log(self, line: bytes) -> None:
        self.last = printable(line.decode(errors="backslashreplace"))
        _log.log(self._level, "%s: %s", self._label, self.last)

    def close(self) -> None:
        """Log what is left. Ray's own processes may have the other end, and live longer."""
        if self._closed:
            return
        self._closed = True
        self._look()
        self._loop.remove_reader(self._read)
        if last := self._lines.end():
            self._log(last)
        os.close(self._read)


class _Process:
    """One run of the process; see Holder for the arguments."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, label: str, limit: str, output_level: int
    ) -> None:
        self.loop = loop
        self.over = False
        self.address = ""
        self._label = label
        self._limit = limit
        self._output = _Output(loop, label, output_level)
        self._workers: dict[int, tuple[str, Placed]] = {}  # with what messages call it
        self._fits: dict[int, asyncio.Future[str]] = {}
        self._last = 0
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(
        self, command: Sequence[str], given: Mapping[str, Any], timeout: float | None
    ) -> None:
        """Start it; returns when it has a cluster.

        Raises:
            NoWorkerError: it has none within so many seconds, with the reason.
        """
        ours, written = None, self._output.written
        try:
            with os.fdopen(written, "wb", buffering=0):
                ours, theirs = socket.socketpair()
                with theirs:
                    self._process = await asyncio.create_subprocess_exec(
                        *command,
                        *(str(theirs.fileno()), str(os.getpid())),
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=written,
                        stderr=written,
                        pass_fds=(theirs.fileno(),),
                        start_new_session=True,  # signals of a terminal are the engine's
                    )
            ours.setblocking(False)
            self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=_LINE_BYTES)
        except BaseException:
            if ours is not None:
                ours.close()
            self._output.close()
            raise
        try:
            self.tell(given)
            told = await self._answer(timeout)
            if "ready" not in told:
                raise NoWorkerError(f"{self._label} cannot be used: {await self._why(told)}")
        except BaseException:
            await self.stop(0.0)
            raise
        self.address = told["ready"]
        self._reading = self.loop.create_task(self._read())

    def ask(self, who: str, order: Mapping[str, Any], waits: Callable[[Lack], None]) -> Placed:
        """Ask for a worker.

        Args:
            who: what messages call it.
            order: the rest of the message.
            waits: see Placed.
        """
        self._last += 1
        placed = Placed(self._last, self, waits)
        self._workers[self._last] = (who, placed)
        self.tell({"start": self._last, **order})
        return placed

    async def what_no_node_has(self, wants: Mapping[str, float]) -> str:
        """See ``Holder``."""
        self._last += 1
        answer = self._fits[self._last] = self.loop.create_future()
        self.tell({"fits": self._last, "wants": dict(wants)})
        return str(await answer)

    def tell(self, what: Mapping[str, Any]) -> None:
        if self._writer is not None and not self.over:
            self._writer.write(json.dumps(what).encode() + b"\n")

    async def stop(self, timeout: float) -> None:
        """End it within so many seconds, or kill it."""
        self.over = True
        if self._writer is not None:
            self._writer.close()
        process = self._process
        if process is None:
            return
        try:
            async with asyncio.timeout(timeout):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if self._reading is not None:
            await self._reading
        else:
            self._output.close()

    async def _answer(self, timeout: float | None) -> dict[str, Any]:
        """What it tells first; meanwhile the log has that it takes long."""
        answer = self.loop.create_task(self._next())
        taken, log_at = 0.0, LOG_AFTER
        try:
            while True:
                until = log_at if timeout is None else min(log_at, timeout)
                if (await asyncio.wait({answer}, timeout=until - taken))[0]:
                    return answer.result()
                taken = until
                if taken == timeout:
                    why = f"it has not answered for {taken:g} s ({self._limit})"
                    raise NoWorkerError(f"{self._label} cannot be used: {why}")
                log_at *= 2
                _log.warning("%s has not answered for %.0f s", self._label, taken)
        finally:
            answer.cancel()

    async def _why(self, told: Mapping[str, Any]) -> str:
        """The reason for which it has no cluster."""
        if "failed" in told:
            return str(told["failed"])
        await self.stop(_CLOSED)
        last = self._output.last
        return "the process that talks to it has ended" + (f": {last}" if last else "")

    async def _next(self) -> dict[str, Any]:
        assert self._reader is not None
        try:
            data = await self._reader.readline()
            told: dict[str, Any] = json.loads(data) if data else {}
        except (OSError, ValueError):  # a line that is too long, or cut off
            return {}
        return told

    async def _read(self) -> None:
        while told := await self._next():
            self._take(told)
        was_over, self.over = self.over, True
        assert self._process is not None
        assert self._writer is not None
        self._writer.close()
        # It has ended, or closed its socket. To kill an ended one would lose its status.
        try:
            async with asyncio.timeout(None if was_over else _CLOSED):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
        code = await self._process.wait()
        self._output.close()
        how = f"the process that talks to {self._label} ended: status {code}"
        if not was_over:
            _log.error("%s", how)
        for _, placed in self._workers.values():
            placed.end.set_result(how)
            if not placed.began.done():
                placed.began.set_exception(NoWorkerError(how))
        self._workers.clear()
        for answer in self._fits.values():
            answer.set_exception(NoWorkerError(how))
        self._fits.clear()

    def _take(self, told: Mapping[str, Any]) -> None:
        if "waiting" in told:
            who, placed = self._workers[told["waiting"]]
            if told["log"]:
                _log.warning("%s is not started: %s", who, told["text"])
            if not placed.began.done():
                placed.waits(Lack(told["text"], told["wants"], told["possible"]))
        elif "started" in told:
            _, placed = self._workers[told["started"]]
            placed.where, placed.node = told["where"], told["node"]
            if not placed.began.done():  # the start was cancelled
                placed.began.set_result(None)
        elif "fits" in told:
            self._fits.pop(told["fits"]).set_result(told["text"])
        else:
            _, placed = self._workers.pop(told["ended"])
            placed.end.set_result(told["how"])
            if not placed.began.done():
                placed.began.set_exception(NoWorkerError(told["how"]))


class Holder:
    """The process that talks to one cluster, for all ops of an engine that use it.

    Belongs to the engine's loop.

    Args:
        label: what messages call the cluster.
        given: the arguments of ``ray.init`` that the configuration has.
        command: the program, without its arguments.
        timeout: seconds for the cluster to answer; None is no limit.
        limit: what messages call this limit.
        output_level: the level in the log of what the process writes, and of the start of a
            cluster.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        label: str,
        given: Mapping[str, Any],
        command: Sequence[str] = COMMAND,
        timeout: float | None = None,
        *,
        limit: str = "start_timeout",
        output_level: int = logging.INFO,
    ) -> None:
        self.label = label
        self._limit = limit
        self._output_level = output_level
        self._loop = loop
        self._given = given
        self._command = command
        self._timeout = timeout
        self._process: _Process | None = None
        self._starting: asyncio.Task[_Process] | None = None
        self._failed: tuple[float, NoWorkerError] | None = None  # until when, and why
        self._pause = _FIRST_PAUSE

    async def address(self) -> str:
        """The address of this machine in the cluster.

        Raises:
            NoWorkerError: there is no cluster.
        """
        return (await self._running()).address

    async def what_no_node_has(self, wants: Mapping[str, float]) -> str:
        """Why a worker would never have a place in the cluster as it is; empty if it would.

        Args:
            wants: what it needs, by resource.

        Raises:
            NoWorkerError: there is no cluster.
        """
        return await (await self._running()).what_no_node_has(wants)

    async def start_worker(
        self,
        who: str,
        order: Mapping[str, Any],
        timeout: float | None,
        waits: Callable[[Lack], None],
    ) -> Placed:
        """Start a worker; returns when it has begun.

        Args:
            who: what messages call it.
            order: see ``penstock.executors.ray.holder``.
            timeout: seconds; None is no limit.
            waits: see Placed.

        Raises:
            NoWorkerError: it is not started, with the reason.
        """
        placed = (await self._running()).ask(who, {**order, "timeout": timeout}, waits)
        try:
            # The process has the limit, and knows the reason; it may hang itself.
            async with asyncio.timeout(None if timeout is None else timeout + _END_TIMEOUT):
                await placed.began
        except TimeoutError:
            placed.kill()
            raise NoWorkerError(f"{self.label} does not answer") from None
        except asyncio.CancelledError:
            placed.kill()
            raise
        return placed

    async def close(self) -> None:
        """End the process, its workers, and its cluster if it has started one."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._process is not None:
            await self._process.stop(_END_TIMEOUT)

    async def _running(self) -> _Process:
        if self._process is not None and not self._process.over:
            return self._process
        if self._failed is not None and self._loop.time() < self._failed[0]:
            raise self._failed[1]
        if self._starting is None:
            self._starting = self._loop.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> _Process:
        if self._given["address"] is None:
            _log.log(self._output_level, "starting a cluster of Ray on this machine")
        try:
            process = _Process(self._loop, self.label, self._limit, self._output_level)
            await process.start(self._command, self._given, self._timeout)
        except (NoWorkerError, OSError) as error:
            failed = error if isinstance(error, NoWorkerError) else NoWorkerError(str(error))
            self._failed = (self._loop.time() + self._pause, failed)
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
            raise failed from error
        finally:
            self._starting = None
        self._process, self._failed, self._pause = process, None, _FIRST_PAUSE
        return process
