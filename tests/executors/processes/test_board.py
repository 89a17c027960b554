"""The board: what one process writes the other sees, and a board that could change is refused."""

import fcntl
import math
import os
import time

import pytest

from penstock.executors.processes.board import Board
from penstock.executors.processes.frame import FrameError


def test_the_engine_sees_what_the_worker_writes() -> None:
    mine, descriptor = Board.create()
    theirs = Board.attach(descriptor)
    assert (theirs.batch, theirs.started) == (0, None)
    mine.batch = 2**40
    mine.started = 12.5
    assert (theirs.batch, theirs.started) == (2**40, 12.5)
    mine.started = None
    assert theirs.started is None
    for nonsense in (math.nan, math.inf, -math.inf, -1.0, time.monotonic() + 3600.0):
        mine.started = nonsense
        assert theirs.started is None
    mine.close()
    assert theirs.batch == 2**40  # also when the worker has gone
    theirs.close()


def test_a_worker_sees_that_it_is_called_whatever_it_writes_there() -> None:
    mine, descriptor = Board.create()
    theirs = Board.attach(descriptor)
    assert mine.calls_cell[0] == 0
    for count in (1, 2):
        theirs.call()
        assert mine.calls_cell[0] == count
        mine.calls_cell[0] = 2**64 - 1
    mine.close()
    theirs.close()


def test_a_board_that_cannot_be_written_to_is_refused() -> None:
    mine, descriptor = Board.create()
    other = os.memfd_create("other", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(other, os.fstat(descriptor).st_size)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE
    fcntl.fcntl(other, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(FrameError, match="cannot be mapped"):
        Board.attach(other)
    os.close(descriptor)
    mine.close()


@pytest.mark.parametrize("seal", [False, True])
def test_memory_that_may_shrink_or_has_another_size_is_refused(seal: bool) -> None:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    descriptor = os.memfd_create("other", flags)
    if seal:
        os.ftruncate(descriptor, 100)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 1)
    else:
        os.ftruncate(descriptor, 4096)
    with pytest.raises(FrameError):
        Board.attach(descriptor)
    with pytest.raises(OSError):  # noqa: PT011 - it was taken
        os.fstat(descriptor)


def test_something_that_is_no_memory_is_refused() -> None:
    ours, theirs = os.pipe()
    with pytest.raises(FrameError):
        Board.attach(ours)
    os.close(theirs)
