"""What a made-up world knows of deaths without the engine: who may run, with whom, how often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.engine.quarantine import BAN, SUSPICION
from penstock.request import Batch, Sample

# Times are sums of floats, and the engine may forget at the same moment.
_SUSPICION: Final = SUSPICION - 1.0
_BAN: Final = BAN - 1.0
_NEVER: Final = float("-inf")


class Deaths:
    """The witness of one op.

    Attributes:
        problems: gets what must not happen.
        runs: how often each sample was run.
    """

    def __init__(self, op: int, problems: list[str]) -> None:
        self.problems = problems
        self._op = op
        self._suspects: dict[str, float] = {}
        self._culprits: dict[str, float] = {}
        self._under_suspicion: set[Batch] = set()
        self._held: set[Sample] = set()
        self.runs: dict[Sample, int] = {}
        self._killed: dict[int, int] = {}  # nonce -> how many died of it, in company or not
        self._alone: set[int] = set()

    def hand_over(self, batches: Sequence[Batch], now: float) -> None:
        """Batches that go to one worker together."""
        if not self._suspects:
            return
        for batch in batches:
            keys = [_key(sample) for sample in batch.samples]
            if any(now < self._culprits.get(key, _NEVER) + _BAN for key in keys):
                self._tell(f"runs {batch} again, of which two workers have died")
            if any(now < self._suspects.get(key, _NEVER) + _SUSPICION for key in keys):
                self._under_suspicion.add(batch)
                if len(keys) > 1:
                    self._tell(f"runs a suspect with others: {batch}")
                elif len(batches) > 1:
                    self._tell(f"hands a suspect over with others: {batch}")

    def run(self, batch: Batch, *, again: bool = False) -> None:
        """A call for this batch begins; ``again``: those a worker has died with may run twice."""
        for sample in batch.samples:
            times = self.runs[sample] = self.runs.get(sample, 0) + 1
            if times > 1 and not (again and times == 2 and sample in self._held):
                self._tell(f"runs {sample} {times} times")

    def held(self, batch: Batch) -> None:
        """A worker ends, by itself or by others, with this batch on its board."""
        self._held.update(batch.samples)

    def lost(self, batch: Batch, now: float) -> None:
        """The engine is told that a worker has died with this batch."""
        for sample in batch.samples:
            key = _key(sample)
            nonce = _nonce(sample)
            self._suspects[key] = now
            if batch in self._under_suspicion:
                self._culprits[key] = now
            self._killed[nonce] = self._killed.get(nonce, 0) + 1
            if len(batch.samples) == 1:
                self._alone.add(nonce)

    def back(self, batch: Batch) -> None:
        """A batch has run."""
        if self._suspects and len(batch.samples) == 1:
            self._suspects.pop(_key(batch.samples[0]), None)

    def lost_request(self, data_id: int) -> bool:
        """Whether a worker has died with this request."""
        return any(sample.data_id == data_id for sample in self._held)

    def killer(self, nonce: int) -> bool:
        """Whether two workers have died of it, one of them of nothing else."""
        return self._killed.get(nonce, 0) > 1 and nonce in self._alone

    def _tell(self, problem: str) -> None:
        self.problems.append(f"op{self._op} {problem}")


def _key(sample: Sample) -> str:
    return repr(sample.inputs)


def _nonce(sample: Sample) -> int:
    nonce: int = next(iter(sample.inputs.values()))["nonce"]
    return nonce
