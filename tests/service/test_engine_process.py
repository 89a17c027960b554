"""The line to an engine, as its supervisor holds it."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any, cast

import pytest

from penstock.executors.processes.control import Forked
from penstock.service.placement import EngineId
from penstock.service.supervisor import EngineProcess


def test_what_cannot_be_said_for_want_of_descriptors_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def dup(fd: int, real: Any = os.dup) -> int:
        if made:
            raise OSError(errno.EMFILE, "no more")
        made.append(real(fd))
        return made[0]

    ours, theirs = socket.socketpair()
    with ours, theirs:
        engine = EngineProcess(EngineId(), cast(Any, None), ours)
        monkeypatch.setattr(os, "dup", dup)
        with pytest.raises(OSError, match="no more"):
            engine.say(Forked(1, 2), theirs.fileno(), theirs.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])
