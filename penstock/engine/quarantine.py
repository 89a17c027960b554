"""Decides what becomes of the requests that a worker process died with.

One of a batch has killed the worker, and nobody knows which. So all of them are suspects of the op:
whoever is seen again runs alone, in a batch and a Work of its own. If a worker dies of it then, it
is refused from now on; if it comes back, it is cleared. Where the op says ``retry_on_crash``, the
members of the batch are run once more at once, each alone, instead of being answered.

It is told the time, and never runs or answers anything itself.

Guarantees:
    - until the first death nothing is looked at; afterwards each sample is looked at once on its
      arrival, and once more only if somebody became a suspect while it waited;
    - no more is looked at in one turn than takes a millisecond, and one batch, or one who died;
    - a sample is run at most twice, and the second time alone;
    - who is gone or too late is not run again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.engine.digest import digest_of
from penstock.engine.suspects import LIFE, Suspects, Verdict
from penstock.errors import InferenceFailed
from penstock.ops.failures import kills_workers
from penstock.request import Batch, CloseReason, Feed, Outcome, Sample

_log = logging.getLogger(__name__)

Polled: TypeAlias = Batch | float | None
"""What ``Batcher.poll`` answers."""


_TURN: Final = 0.001
"""Seconds that the screening of one turn of the loop may take, like its handing over."""


class Alone:
    """The key of a sample that shares its batch with nobody: no two of them are equal.

    Args:
        digest: of its inputs, if they have one.
        unread: its inputs, where the digest is not known yet.
    """

    __slots__ = ("digest", "unread")

    def __init__(self, digest: bytes | None, unread: dict[str, Feed] | None = None) -> None:
        self.digest = digest
        self.unread = unread


class Quarantine:
    """One op's.

    Args:
        op: its name.
        rerun: whether the members of a batch that died are run once more.

    Attributes:
        wary: whether a worker has ever died with a batch; before, there is nothing to be asked.
        suspects: who is remembered.
        deaths: how many batches were lost so.
        refused: how many requests were refused unseen.
    """

    def __init__(self, op: str, *, rerun: bool) -> None:
        self.wary = False
        self.suspects = Suspects()
        self.deaths = 0
        self.refused = 0
        self._op = op
        self._rerun = rerun
        self._lone: deque[Batch] = deque()
        self._unread: deque[Alone] = deque()  # of those who were in a batch that died
        self._lone_last = False

    def __len__(self) -> int:
        return len(self._lone)

    def __repr__(self) -> str:
        return f"<Quarantine {self._op!r} {len(self._lone)} waiting, {self.suspects}>"

    @property
    def busy(self) -> bool:
        """Whether anybody is under suspicion."""
        return bool(self._lone or self._unread or self.suspects)

    def meet(self, sample: Sample, rows: int, now: float) -> bool:
        """Judge a sample before it is queued; a suspect is marked, so that it will run alone.

        Args:
            sample: as it arrives.
            rows: how many rows fill a batch: who runs alone waits for no company.
            now: monotonic seconds.

        Returns:
            whether it is a culprit, which is to be refused.
        """
        if not self.suspects:
            return False
        digest, verdict = self.suspects.find(sample.inputs, now)
        if verdict is Verdict.CULPRIT:
            self.refused += 1
        elif verdict is Verdict.SUSPECT:
            sample.key = Alone(digest)
            sample.rows = rows
        return verdict is Verdict.CULPRIT

    def screen(self, batch: Batch, now: float) -> tuple[Batch | None, list[Sample]]:
        """Judge the samples of a batch that is about to run, as far as they have not been judged.

        Suspects leave the batch, to run alone later; culprits leave it for good.

        Returns:
            what is left of the batch, or None; and the culprits.
        """
        if runs_alone(batch.samples[0]):
            batch.rows = 1  # it filled the batch only in the queue
        if batch.samples[0].arrived > self.suspects.latest:
            return batch, []
        left: list[Sample] = []
        culprits: list[Sample] = []
        for sample in batch.samples:
            if runs_alone(sample):
                self._read(sample.key, now)
                digest = sample.key.digest
                verdict = self.suspects.verdict(digest, now)
            else:
                digest, verdict = self.suspects.find(sample.inputs, now)
            if verdict is Verdict.CULPRIT:
                culprits.append(sample)
            elif verdict is Verdict.SUSPECT and len(batch.samples) > 1:
                self._lone.append(_alone(sample, Alone(digest), now))
            else:
                if verdict is Verdict.SUSPECT:
                    sample.key = Alone(digest)
                left.append(sample)
        self.refused += len(culprits)
        if len(left) < len(batch.samples):
            batch.samples = left
            batch.rows = len(left)
        return batch if left else None, culprits

    def take(self, now: float) -> Batch | None:
        """The next one that is to run alone and is still wanted."""
        while self._lone:
            batch = self._lone.popleft()
            (sample,) = batch.samples
            if not sample.gone and sample.deadline > now:
                return batch
        return None

    def fill(
        self,
        most: int,
        clock: Callable[[], float],
        again: Callable[[float], Batch | None],
        poll: Callable[[], Polled],
    ) -> tuple[list[Batch], float | None, list[Sample]]:
        """The batches of one Work: several that are above suspicion, or one that runs alone.

        Args:
            most: how many.
            clock: tells monotonic seconds; to look at inputs may take a while.
            again: gives what was taken back from another worker.
            poll: gives what has been queued.

        Returns:
            the batches; when to ask again, where there are too few; and culprits met on the way.
        """
        batches: list[Batch] = []
        refused: list[Sample] = []
        now = began = clock()
        while len(batches) < most:
            if now - began > _TURN:
                return batches, None if batches else now, refused
            polled = again(now) or self._take_in_turn(now, poll)
            if not isinstance(polled, Batch):
                return batches, polled, refused
            batch, culprits = self.screen(polled, now)
            now = clock()
            refused += culprits
            if batch is None:
                continue
            if runs_alone(batch.samples[0]) and batches:
                self._lone.appendleft(batch)  # it is the next one
                self._lone_last = False
                break
            batches.append(batch)
            if runs_alone(batch.samples[0]):
                break
        return batches, None, refused

    def _take_in_turn(self, now: float, poll: Callable[[], Polled]) -> Polled:
        """From here or from the queue, in turns, so that neither waits for all of the other."""
        lone = None if self._lone_last else self.take(now)
        polled = lone or poll()
        if not isinstance(polled, Batch):
            lone = self.take(now)
        self._lone_last = lone is not None
        return lone or polled

    def died(
        self, batch: Batch, outcomes: list[Outcome], now: float
    ) -> tuple[list[Sample], list[Outcome]]:
        """A worker died while it ran this batch; ``read`` is to be called next.

        Returns:
            the samples that are to be answered, and how; the others will be run again.
        """
        self.wary = True
        self.deaths += 1
        over: list[Sample] = []
        answers: list[Outcome] = []
        for sample, outcome in zip(batch.samples, outcomes, strict=True):
            if runs_alone(sample):
                self._convict(sample, now)
                answer = Outcome(None, kills_workers(self._op))
            else:
                accused = Alone(None, sample.inputs)
                self._unread.append(accused)
                if self._rerun and not sample.gone and not batch.settled:
                    self._lone.append(_alone(sample, accused, now))
                    continue
                answer = outcome
            over.append(sample)
            answers.append(answer)
        return over, answers

    def read(self, clock: Callable[[], float]) -> bool:
        """Look at the inputs of those who were in a batch that died: they are suspects.

        Who is taken from the queue before his like has been read runs as if he were unknown.

        Args:
            clock: tells monotonic seconds.

        Returns:
            whether there are more of them, for a turn of their own.
        """
        now = began = clock()
        while self._unread and now - began <= _TURN:
            self._read(self._unread.popleft(), now)
            now = clock()
        return bool(self._unread)

    def _read(self, accused: Alone, now: float) -> None:
        inputs, accused.unread = accused.unread, None
        if inputs is not None:
            accused.digest = digest_of(inputs)
            if accused.digest is not None:
                self.suspects.accuse(accused.digest, now)

    def came_back(self, batch: Batch, outcomes: list[Outcome], now: float) -> None:
        """A batch is back, and no worker has died of it."""
        for sample, outcome in zip(batch.samples, outcomes, strict=True):
            if not runs_alone(sample):
                continue
            self._read(sample.key, now)
            if sample.key.digest is None:
                continue
            # Who is not waited for may have been ended by us; who failed so has perhaps not run.
            if not sample.gone and type(outcome.error) is not InferenceFailed:
                self.suspects.clear(sample.key.digest)

    def _convict(self, sample: Sample, now: float) -> None:
        self._read(sample.key, now)
        digest = sample.key.digest
        remembered = digest is not None
        if self.suspects.verdict(digest, now) is Verdict.CULPRIT:
            return
        _log.error(
            "op %s: two workers have died of one request (data_id=%s log_id=%s); %s",
            self._op,
            sample.data_id,
            sample.log_id,
            f"its like is refused for {LIFE:.0f} s"
            if remembered
            else "its like is not known again",
        )
        if remembered:
            self.suspects.convict(digest, now)


def runs_alone(sample: Sample) -> bool:
    """Whether it is under suspicion."""
    return type(sample.key) is Alone


def _alone(sample: Sample, key: Alone, now: float) -> Batch:
    sample.key = key
    sample.rows = 1
    return Batch([sample], CloseReason.ALONE, now)
