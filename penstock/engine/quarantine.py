"""Decides what becomes of the requests that a worker process died with.

One request of the batch may have killed the worker, and nobody knows which one. So the inputs of
all of them are suspected for a short while: a request with the same inputs runs alone, in a batch
and a hand-over of its own. If a worker dies of it then, these inputs are refused for a while; if it
comes back, they are cleared. Where the op says ``retry_on_crash``, the requests of the lost batch
are run once more at once, each alone, instead of being answered.

It is told the time, and never runs or answers anything itself.

Guarantees:
    - nothing is looked at while nobody is suspected; otherwise each sample is looked at once, when
      its batch is about to run, for some microseconds whatever its size;
    - inputs are refused only after a worker died while it ran them and nothing else, after another
      had died with them; for ``BAN`` seconds, doubled each time up to ``LONGEST_BAN``. Then they
      run again, alone: the fault may have been the card's, which is back;
    - suspicion ends with a good run, or after ``SUSPICION`` seconds: nothing is kept for good;
    - a request is run at most twice, and the second time alone;
    - a request that is answered already, or too late, is not run again.
"""

from __future__ import annotations

import logging
import marshal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.errors import InferenceFailed
from penstock.ops.failures import kills_workers
from penstock.request import Batch, CloseReason, Feed, Outcome, Sample

_log = logging.getLogger(__name__)

SUSPICION: Final = 10.0
"""Seconds for which inputs are suspected after a worker died with them."""
BAN: Final = 10.0
"""Seconds for which inputs are refused after the first worker that died of them alone. Less than a
probe's usual interval would let each of them cost a worker while the card is away."""
LONGEST_BAN: Final = 60.0
MOST: Final = 1_000
"""Inputs of one op that are remembered; the oldest go first."""

_TURN: Final = 0.001
"""Seconds that the screening of one turn of the loop may take, like its handing over."""
_DEEPEST: Final = 16
_VALUES: Final = 256  # of a list or a dict
_OCTETS: Final = 16 << 10  # of a text or an array

Polled: TypeAlias = Batch | float | None
"""What ``Batcher.poll`` answers."""


class Suspicion:
    """Marks a sample that shares its batch with nobody, as its ``key``: no two of them are equal.

    Args:
        digest: of its inputs, None where they have none.
    """

    __slots__ = ("digest",)

    def __init__(self, digest: bytes | None) -> None:
        self.digest = digest


@dataclass(slots=True)
class _Suspect:
    """Inputs that are remembered.

    Attributes:
        bans: how often they were refused for a while.
        banned_until: when the last ban ends.
        forget_at: when they are suspected no more.
    """

    bans: int = 0
    banned_until: float = -inf
    forget_at: float = -inf


class Quarantine:
    """One op's.

    Args:
        op: its name.
        rerun: whether the requests of a batch that died are run once more.

    Attributes:
        active: whether anybody is suspected or waits to run alone; otherwise there is nothing to
            ask.
        deaths: how many batches were lost with their worker.
        refused: how many requests were refused unseen.
    """

    def __init__(self, op: str, *, rerun: bool) -> None:
        self.active = False
        self.deaths = 0
        self.refused = 0
        self._op = op
        self._rerun = rerun
        self._known: dict[bytes, _Suspect] = {}
        self._lone: deque[Batch] = deque()
        self._lone_last = False

    def __len__(self) -> int:
        """How many requests wait here to run alone."""
        return len(self._lone)

    @property
    def suspects(self) -> int:
        """How many inputs are remembered."""
        return len(self._known)

    def died(
        self, batch: Batch, outcomes: list[Outcome], now: float
    ) -> tuple[list[Sample], list[Outcome]]:
        """A worker died while it ran this batch.

        Returns:
            the samples that are to be answered, and how; the others will be run again.
        """
        self.active = True
        self.deaths += 1
        over: list[Sample] = []
        answers: list[Outcome] = []
        for sample, outcome in zip(batch.samples, outcomes, strict=True):
            if runs_alone(sample):
                self._convict(sample, now)
                outcome = Outcome(None, kills_workers(self._op))
            else:
                digest = digest_of(sample.inputs)
                self._remember(digest, now)
                if self._rerun and not sample.gone and not batch.settled:
                    self._lone.append(_alone(sample, digest, now))
                    continue
            over.append(sample)
            answers.append(outcome)
        return over, answers

    def came_back(self, batch: Batch, outcomes: list[Outcome], now: float) -> None:
        """A batch is back, and no worker has died of it."""
        for sample, outcome in zip(batch.samples, outcomes, strict=True):
            # A call that nobody waits for may have been ended by us; one that failed so has perhaps
            # not run.
            failed = type(outcome.error) is InferenceFailed
            if runs_alone(sample) and not sample.gone and not failed:
                self._known.pop(sample.key.digest, None)
        self._forget(now)

    def fill(
        self,
        most: int,
        clock: Callable[[], float],
        again: Callable[[float], Batch | None],
        poll: Callable[[], Polled],
    ) -> tuple[list[Batch], float | None, list[Sample]]:
        """The batches of one hand-over: several that are above suspicion, or one that runs alone.

        Args:
            most: how many.
            clock: tells monotonic seconds.
            again: gives what was taken back from another worker.
            poll: gives what has been queued.

        Returns:
            the batches; when to ask again, where there are too few; and samples to be refused.
        """
        batches: list[Batch] = []
        refused: list[Sample] = []
        now = began = clock()
        self._forget(now)
        while len(batches) < most:
            if now - began > _TURN:
                return batches, None if batches else now, refused
            polled = again(now) or self._take_in_turn(now, poll)
            if not isinstance(polled, Batch):
                self._forget(now)
                return batches, polled, refused
            batch = self._screen(polled, now, refused)
            now = clock()
            if batch is None:
                continue
            if runs_alone(batch.samples[0]):
                if batches:
                    self._lone.appendleft(batch)  # it is the next one
                    self._lone_last = False
                else:
                    batches.append(batch)
                break
            batches.append(batch)
        return batches, None, refused

    def _take_in_turn(self, now: float, poll: Callable[[], Polled]) -> Polled:
        """From here or from the queue, in turns, so that neither waits for all of the other."""
        lone = None if self._lone_last else self._take(now)
        polled = lone or poll()
        if not isinstance(polled, Batch):
            lone = self._take(now)
        self._lone_last = lone is not None
        return lone or polled

    def _take(self, now: float) -> Batch | None:
        """The next one that is to run alone and is still wanted."""
        while self._lone:
            batch = self._lone.popleft()
            (sample,) = batch.samples
            if not sample.gone and sample.deadline > now:
                return batch
        return None

    def _screen(self, batch: Batch, now: float, refused: list[Sample]) -> Batch | None:
        """Take the suspects out of a batch that is about to run; they run alone, or are refused."""
        left: list[Sample] = []
        for sample in batch.samples:
            alone = runs_alone(sample)
            digest = sample.key.digest if alone else digest_of(sample.inputs)
            suspect = None if digest is None else self._known.get(digest)
            if suspect is not None and now < suspect.banned_until:
                refused.append(sample)
                self.refused += 1
            elif alone or suspect is None or now >= suspect.forget_at:
                left.append(sample)
            else:
                self._lone.append(_alone(sample, digest, now))
        if len(left) < len(batch.samples):
            batch.samples = left
            batch.rows = sum(sample.rows for sample in left)
        return batch if left else None

    def _remember(self, digest: bytes | None, now: float) -> _Suspect:
        suspect = _Suspect()
        if digest is not None:
            suspect = self._known.pop(digest, suspect)
            self._known[digest] = suspect  # the youngest now
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        suspect.forget_at = now + SUSPICION
        return suspect

    def _convict(self, sample: Sample, now: float) -> None:
        suspect = self._remember(sample.key.digest, now)
        seconds = min(LONGEST_BAN, BAN * 2**suspect.bans)
        suspect.bans += 1
        suspect.banned_until = now + seconds
        suspect.forget_at += seconds
        _log.error(
            "op %s: two workers have died of one request (data_id=%s log_id=%s); %s",
            self._op,
            sample.data_id,
            sample.log_id,
            f"requests with the same inputs are refused for {seconds:.0f} s"
            if sample.key.digest is not None
            else "its inputs cannot be recognised again",
        )

    def _forget(self, now: float) -> None:
        """Forget the oldest suspects whose time is over; stop looking where nothing is left."""
        known = self._known
        while known:
            oldest = next(iter(known))
            if now < known[oldest].forget_at:
                return
            del known[oldest]
        self.active = bool(self._lone)


def runs_alone(sample: Sample) -> bool:
    """Whether it is under suspicion."""
    return type(sample.key) is Suspicion


def digest_of(inputs: dict[str, Feed]) -> bytes | None:
    """A short name of an op's inputs, equal for equal ones; None where they hold other objects.

    Of large texts, lists and arrays only the length, the ends and evenly some of what is between
    them are read. Two inputs that differ elsewhere alone are taken for one.
    """
    try:
        return blake2b(marshal.dumps(_excerpt(inputs, 0), 2), digest_size=16).digest()
    except Exception:  # noqa: BLE001 - values of users' types raise anything, and have no digest
        return None


def _excerpt(value: Any, depth: int) -> Any:
    """What is told of a value, as plain values that ``marshal`` writes in one way only."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is str or kind is bytes:
        return value if len(value) <= _OCTETS else (len(value), _some(value, _OCTETS))
    if depth >= _DEEPEST:
        raise ValueError("nested too deeply")
    depth += 1
    if kind is dict:
        names = _some(list(value), _VALUES)
        told = [(_excerpt(name, depth), _excerpt(value[name], depth)) for name in names]
        return len(value), told
    if kind is list or kind is tuple:
        return kind.__name__, len(value), [_excerpt(each, depth) for each in _some(value, _VALUES)]
    if kind is np.ndarray or isinstance(value, np.generic):
        array = np.asarray(value)
        flat = array.flat
        if array.dtype.hasobject:
            parts = _some_of(len(flat), _VALUES)
            items: Any = [_excerpt(flat[part].tolist(), depth) for part in parts]
        else:
            parts = _some_of(len(flat), max(3, _OCTETS // max(1, array.itemsize)))
            items = b"".join([flat[part].tobytes() for part in parts])  # copies no more than that
        return str(array.dtype), array.shape, items
    raise ValueError("has no stable form")


_SCALARS: Final = frozenset((type(None), bool, int, float))


def _some(sequence: Any, most: int) -> Any:
    """All of a sequence, or some of it."""
    first, *others = [sequence[part] for part in _some_of(len(sequence), most)]
    for each in others:
        first = first + each
    return first


def _some_of(length: int, most: int) -> list[slice]:
    """All of so many, or the ends and, evenly, some between them."""
    if length <= most:
        return [slice(None)]
    each = most // 3
    return [slice(each), slice(-each, None), slice(None, None, (length // each) | 1)]


def _alone(sample: Sample, digest: bytes | None, now: float) -> Batch:
    sample.key = Suspicion(digest)
    sample.rows = 1
    return Batch([sample], CloseReason.ALONE, now)
