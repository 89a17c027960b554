"""Where the workers of a pool are, why some are nowhere, and which were lost: for the status.

Pure: time is an argument, in monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Report: TypeAlias = dict[str, Any]

STARTING: Final = "starting"
"""It is being started; if it has a ``where``, there."""
WAITING: Final = "waiting"
"""It cannot be started now, such as for lack of resources; that is tried again."""
RUNNING: Final = "running"
FAILED: Final = "failed"
"""The last one ended before it was ready; another start is tried."""
STATES: Final = (RUNNING, STARTING, WAITING, FAILED)

MOST_LOST: Final = 16
"""Lost workers that are remembered, the latest."""


@dataclass(frozen=True, slots=True)
class Lack:
    """What a worker waits for.

    Attributes:
        text: as a sentence.
        wants: what it needs of one node, by resource.
        possible: whether a node has so much when nothing else runs there; None if unknown.
    """

    text: str
    wants: Mapping[str, float]
    possible: bool | None


@dataclass(slots=True)
class _Slot:
    state: str = STARTING
    since: float = 0.0  # when it got its worker, or lost it
    where: str = ""
    node: Mapping[str, str] | None = None
    pid: int | None = None
    why: str = ""
    lack: Lack | None = None
    told: bool = False  # the lack is that of the present attempt


@dataclass(slots=True)
class _Lost:
    index: int
    where: str
    node: Mapping[str, str] | None
    pid: int | None
    how: str
    at: float
    back: float | None = None


class Places:
    """See the module.

    Args:
        count: of the pool's workers.
        now: the time.
    """

    def __init__(self, count: int, now: float) -> None:
        self._slots = [_Slot(since=now) for _ in range(count)]
        self._lost: deque[_Lost] = deque(maxlen=MOST_LOST)

    def begins(self, index: int) -> None:
        """An attempt to start a worker begins. What is known of the one before stays until more is
        known.
        """
        self._slots[index].told = False

    def waits(self, index: int, lack: Lack) -> None:
        """It has no place yet."""
        slot = self._slots[index]
        slot.state, slot.lack, slot.why, slot.told = WAITING, lack, lack.text, True

    def refused(self, index: int, why: str) -> None:
        """It could not be started."""
        slot = self._slots[index]
        slot.state, slot.why = WAITING, why
        if not slot.told:
            slot.lack = None

    def placed(self, index: int, where: str, node: Mapping[str, str] | None) -> None:
        """It has a place, and opens its model there."""
        slot = self._slots[index]
        slot.state, slot.where, slot.node, slot.lack, slot.why = STARTING, where, node, None, ""

    def runs(self, index: int, pid: int | None, now: float) -> None:
        """It is ready."""
        slot = self._slots[index]
        slot.state, slot.since, slot.pid = RUNNING, now, pid
        for each in self._lost:
            if each.index == index and each.back is None:
                each.back = now

    def failed(self, index: int, why: str) -> None:
        """It ended before it was ready."""
        slot = self._slots[index]
        slot.state, slot.why, slot.where, slot.node = FAILED, why, "", None

    def ended(self, index: int, how: str, now: float, *, lost: bool) -> None:
        """It has ended, and is replaced.

        Args:
            index: its slot.
            how: it ended.
            now: the time.
            lost: whether nobody wanted that.
        """
        slot = self._slots[index]
        if lost:
            self._lost.append(_Lost(index, slot.where, slot.node, slot.pid, how, now))
        self._slots[index] = _Slot(since=now)

    def plain(self, now: float) -> tuple[list[Report], list[Report]]:
        """The workers, in the order of their slots, and the latest lost ones, in that of their
        ends; see ``places`` and ``lost`` in docs/metrics.md.
        """
        workers = [
            {
                "worker": index,
                "state": each.state,
                "seconds": round(now - each.since, 3),
                **_at(each),
                "why": each.why,
                "wants": each.lack and {key: n for key, n in each.lack.wants.items() if n > 0},
                "possible": each.lack and each.lack.possible,
            }
            for index, each in enumerate(self._slots)
        ]
        lost = [
            {
                "worker": each.index,
                "ago": round(now - each.at, 3),
                **_at(each),
                "how": each.how,
                "back": None if each.back is None else round(each.back - each.at, 3),
            }
            for each in self._lost
        ]
        return workers, lost


def _at(each: _Slot | _Lost) -> Report:
    return {
        "where": each.where,
        "node": None if each.node is None else dict(each.node),
        "pid": each.pid,
    }
