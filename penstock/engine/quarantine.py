"""Quarantine of requests that may kill workers: decides what happens to a lost batch's requests.

One request of the batch may have killed the worker, and it is unknown which. So the inputs of all
of them are suspected for a short time: a request with the same inputs runs alone, in its own batch
and hand-over. If a worker dies again, these inputs are refused for a time; if it succeeds, they are
cleared. With ``retry_on_crash`` the requests of the lost batch run once more at once, each alone,
before they are answered.

Time is an argument; it never runs or answers requests itself.

Guarantees:
    - without suspects samples are not checked; otherwise each is checked once, when its batch is
      about to run, in some microseconds whatever its size;
    - inputs are refused only after a worker died while it ran them alone, after another had died
      with them; for ``BAN`` seconds, doubled each time up to ``LONGEST_BAN``, or for ``BRIEF_BAN``
      at first. Then they run again, alone: the cause may have been a GPU that has recovered. If
      they succeed, it was not the inputs, and all bans end;
    - a worker that breaks its protocol makes no inputs suspect;
    - suspicion ends with a successful run, or after ``SUSPICION`` seconds;
    - a request runs at most twice, the second time alone;
    - a request that has been answered, or whose deadline has passed, does not run again.
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

from penstock.errors import InferenceFailed, NoProcess, WorkerBrokeProtocol
from penstock.executors.stream import Stream
from penstock.ops.failures import kills_workers
from penstock.request import Batch, CloseReason, Feed, Outcome, Sample

_log = logging.getLogger(__name__)

SUSPICION: Final = 10.0
"""Seconds for which inputs are suspected after a worker died with them."""
BRIEF_BAN: Final = 2.0
"""Seconds for which inputs are refused at first if no batch has run since they became suspect: the
workers may be the cause, and recover soon."""
BAN: Final = 10.0
"""The same if other batches have run; doubled for each further death. If it were less than the
usual interval of probes, each probe would cost a worker while the GPU is unavailable."""
LONGEST_BAN: Final = 60.0
MOST: Final = 1_000
"""Most suspected inputs of one op; the oldest are dropped first."""

_TURN: Final = 0.001
"""Most seconds of screening in one turn of the loop; as for hand-overs."""
_DEEPEST: Final = 16
_VALUES: Final = 256  # most values of a list or dict in a digest
_OCTETS: Final = 16 << 10  # most octets of a text or array in a digest

Polled: TypeAlias = Batch | float | None
"""The result of ``Batcher.poll``."""


class Suspicion:
    """The ``key`` of a sample that must run alone: no two are equal.

    Args:
        digest: the digest of its inputs; None if they have none.
    """

    __slots__ = ("digest",)

    def __init__(self, digest: bytes | None) -> None:
        self.digest = digest


@dataclass(slots=True)
class _Suspect:
    """Suspected inputs.

    Attributes:
        since: when the first worker died with them.
        bans: number of bans.
        banned_until: when the last ban ends.
        forget_at: when the suspicion ends.
    """

    since: float
    bans: int = 0
    banned_until: float = -inf
    forget_at: float = -inf


class Quarantine:
    """The quarantine of one op.

    Args:
        op: its name.
        rerun: whether the requests of a lost batch run once more.

    Attributes:
        active: whether there are suspects, or requests that wait to run alone; otherwise no check
            is needed.
        deaths: number of batches lost with their worker.
        refused: number of requests refused without a run.
    """

    def __init__(self, op: str, *, rerun: bool) -> None:
        self.active = False
        self.deaths = 0
        self.refused = 0
        self._op = op
        self._rerun = rerun
        self._known: dict[bytes, _Suspect] = {}
        self._ran_at = -inf  # when the last batch had run, while there were suspects
        self._isolated: deque[Batch] = deque()
        self._isolated_last = False

    def __len__(self) -> int:
        """The number of requests that wait to run alone."""
        return len(self._isolated)

    @property
    def suspects(self) -> int:
        """The number of suspected inputs."""
        return len(self._known)

    def died(
        self, batch: Batch, outcomes: list[Outcome], now: float
    ) -> tuple[list[Sample], list[Outcome]]:
        """A worker died while it ran this batch.

        Returns:
            the samples to answer, with their outcomes; the others will run again.
        """
        self.deaths += 1
        suspected = type(outcomes[0].error) is not WorkerBrokeProtocol
        self.active |= suspected
        over: list[Sample] = []
        answers: list[Outcome] = []
        for sample, outcome in zip(batch.samples, outcomes, strict=True):
            if runs_alone(sample):
                if suspected:
                    self._ban(sample, now)
                    outcome = Outcome(None, kills_workers(self._op))
            else:
                digest = digest_of(sample.inputs)
                if suspected:
                    self._remember(digest, now)
                if self._rerun and not (sample.gone or batch.settled or _has_begun(sample)):
                    self._isolated.append(_alone(sample, digest, now))
                    self.active = True
                    continue
            over.append(sample)
            answers.append(outcome)
        return over, answers

    def batch_returned(self, batch: Batch, outcomes: list[Outcome], now: float) -> None:
        """A batch was returned by a live worker."""
        for sample, outcome in zip(batch.samples, outcomes, strict=True):
            # A call whose requests had ended may have been killed by us, maybe before it ran.
            failed = type(outcome.error) in (InferenceFailed, NoProcess)
            if outcome.error is None:
                self._ran_at = now
            if runs_alone(sample) and not sample.gone and not failed:
                cleared = self._known.pop(sample.key.digest, None)
                if cleared is not None and cleared.bans:
                    self._end_bans(now)
        self._forget(now)

    def fill(
        self,
        most: int,
        clock: Callable[[], float],
        again: Callable[[float], Batch | None],
        poll: Callable[[], Polled],
    ) -> tuple[list[Batch], float | None, list[Sample]]:
        """The batches of one hand-over: several without suspects, or one that runs alone.

        Args:
            most: the most batches.
            clock: returns monotonic seconds.
            again: returns batches that were taken back from another worker.
            poll: returns batches from the queue.

        Returns:
            the batches; the time to ask again, if there are too few; and samples to refuse.
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
                    self._isolated.appendleft(batch)  # it is the next one
                    self._isolated_last = False
                else:
                    batches.append(batch)
                break
            batches.append(batch)
        return batches, None, refused

    def _take_in_turn(self, now: float, poll: Callable[[], Polled]) -> Polled:
        """Take alternately from here and from the queue, so that neither starves the other."""
        isolated = None if self._isolated_last else self._take(now)
        polled = isolated or poll()
        if not isinstance(polled, Batch):
            isolated = self._take(now)
        self._isolated_last = isolated is not None
        return isolated or polled

    def _take(self, now: float) -> Batch | None:
        """The next request that must run alone and has not ended."""
        while self._isolated:
            batch = self._isolated.popleft()
            (sample,) = batch.samples
            if not sample.gone and sample.deadline > now:
                return batch
        return None

    def _screen(self, batch: Batch, now: float, refused: list[Sample]) -> Batch | None:
        """Remove the suspects from a batch that is about to run; they will run alone, or are
        refused.
        """
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
                self._isolated.append(_alone(sample, digest, now))
        if len(left) < len(batch.samples):
            batch.samples = left
            batch.rows = sum(sample.rows for sample in left)
        return batch if left else None

    def _remember(self, digest: bytes | None, now: float) -> _Suspect:
        suspect = _Suspect(now)
        if digest is not None:
            suspect = self._known.pop(digest, suspect)
            self._known[digest] = suspect  # the youngest now
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        suspect.forget_at = now + SUSPICION
        return suspect

    def _ban(self, sample: Sample, now: float) -> None:
        suspect = self._remember(sample.key.digest, now)
        seconds = min(LONGEST_BAN, BAN * 2**suspect.bans)
        if not suspect.bans and self._ran_at < suspect.since:
            seconds = BRIEF_BAN
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

    def _end_bans(self, now: float) -> None:
        """Inputs of which two workers had died have run: the workers were the cause."""
        for suspect in self._known.values():
            suspect.banned_until = min(suspect.banned_until, now)

    def _forget(self, now: float) -> None:
        """Drop expired suspects; end the checks if none is left."""
        known = self._known
        while known:
            oldest = next(iter(known))
            if now < known[oldest].forget_at:
                return
            del known[oldest]
        self.active = bool(self._isolated)


def runs_alone(sample: Sample) -> bool:
    """Whether it is under suspicion."""
    return type(sample.key) is Suspicion


def digest_of(inputs: dict[str, Feed]) -> bytes | None:
    """A digest of an op's inputs, equal for equal inputs; None if they have other objects.

    Of large texts, lists and arrays it covers the length, the ends, and evenly spaced parts between
    them. Inputs that differ only elsewhere have the same digest.
    """
    try:
        return blake2b(marshal.dumps(_excerpt(inputs, 0), 2), digest_size=16).digest()
    except Exception:  # noqa: BLE001 - values of users' types raise anything, and have no digest
        return None


def _excerpt(value: Any, depth: int) -> Any:
    """The parts of a value for the digest, as plain values with one ``marshal`` encoding."""
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
        pairs = [(_excerpt(name, depth), _excerpt(value[name], depth)) for name in names]
        return len(value), pairs
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
    """All of a sequence, or the sampled parts."""
    first, *others = [sequence[part] for part in _some_of(len(sequence), most)]
    for each in others:
        first = first + each
    return first


def _some_of(length: int, most: int) -> list[slice]:
    """All indices, or the ends and evenly spaced ones between them."""
    if length <= most:
        return [slice(None)]
    each = most // 3
    return [slice(each), slice(-each, None), slice(None, None, (length // each) | 1)]


def _alone(sample: Sample, digest: bytes | None, now: float) -> Batch:
    sample.key = Suspicion(digest)
    sample.rows = 1
    return Batch([sample], CloseReason.ALONE, now)


def _has_begun(sample: Sample) -> bool:
    """Whether a piece of its answer has been sent."""
    stream: Stream | None = getattr(sample, "stream", None)
    return stream is not None and stream.has_begun
