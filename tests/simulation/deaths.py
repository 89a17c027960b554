"""An independent record of workers' deaths: which batches may run, together with which, and how
often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.engine.quarantine import BRIEF_BAN, SUSPICION
from penstock.request import Batch, Sample

# Times are sums of floats, and the engine may expire at the same time.
_SUSPICION: Final = SUSPICION - 1.0
_BAN: Final = BRIEF_BAN - 1.0
_NEVER: Final = float("-inf")


class Deaths:
    """The deaths of one op's workers.

    Attributes:
        problems: gets violations.
        runs: how often each sample was run.
    """

    def __init__(self, op: int, problems: list[str]) -> None:
        self.problems = problems
        self._op = op
        self._suspects: dict[str, float] = {}
        self._culprits: dict[str, float] = {}
        self._under_suspicion: set[Batch] = set()
        self._on_page_at_end: set[Sample] = set()
        self.runs: dict[Sample, int] = {}
        self._killed: dict[int, int] = {}  # nonce -> number of workers that died with it
        self._alone: set[int] = set()

    def hand_over(self, batches: Sequence[Batch], now: float) -> None:
        """Records batches that are handed to one worker together."""
        if not self._suspects:
            return
        for batch in batches:
            keys = [_key(sample) for sample in batch.samples]
            if any(now < self._culprits.get(key, _NEVER) + _BAN for key in keys):
                self._problem(f"runs {batch} again, of which two workers have died")
            if any(now < self._suspects.get(key, _NEVER) + _SUSPICION for key in keys):
                self._under_suspicion.add(batch)
                if len(keys) > 1:
                    self._problem(f"runs a suspect with others: {batch}")
                elif len(batches) > 1:
                    self._problem(f"hands a suspect over with others: {batch}")

    def run(self, batch: Batch, *, again: bool = False) -> None:
        """Records that a call for this batch begins; ``again``: lost samples may run twice."""
        for sample in batch.samples:
            times = self.runs[sample] = self.runs.get(sample, 0) + 1
            if times > 1 and not (again and times == 2 and sample in self._on_page_at_end):
                self._problem(f"runs {sample} {times} times")

    def ended_with(self, batch: Batch) -> None:
        """Records that a worker ends, by itself or killed, with this batch on its status page."""
        self._on_page_at_end.update(batch.samples)

    def lost(self, batch: Batch, now: float, *, alone: bool = True) -> None:
        """Records that the engine is told that a worker has died with this batch; ``alone``: with
        no other one.
        """
        for sample in batch.samples:
            key = _key(sample)
            nonce = _nonce(sample)
            self._suspects[key] = now
            if batch in self._under_suspicion:
                self._culprits[key] = now
            self._killed[nonce] = self._killed.get(nonce, 0) + 1
            if len(batch.samples) == 1 and alone:
                self._alone.add(nonce)

    def ran(self, batch: Batch) -> None:
        """Records that a batch has run."""
        if self._suspects and len(batch.samples) == 1:
            key = _key(batch.samples[0])
            self._suspects.pop(key, None)
            if key in self._culprits:  # it was not the inputs
                self._culprits.clear()

    def lost_request(self, data_id: int) -> bool:
        """Whether a worker has died with this request."""
        return any(sample.data_id == data_id for sample in self._on_page_at_end)

    def killer(self, nonce: int) -> bool:
        """Whether two workers have died with this nonce, one of them with nothing else."""
        return self._killed.get(nonce, 0) > 1 and nonce in self._alone

    def _problem(self, problem: str) -> None:
        self.problems.append(f"op{self._op} {problem}")


def _key(sample: Sample) -> str:
    return repr(sample.inputs)


def _nonce(sample: Sample) -> int:
    nonce: int = next(iter(sample.inputs.values()))["nonce"]
    return nonce
