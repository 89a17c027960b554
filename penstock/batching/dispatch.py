"""Decides how many batches one hand-over to a worker carries, and whether to wait for more of them.

Waking a worker costs more than a cheap op's work, so batches that are predicted to be done within
half a millisecond together travel together while no other worker is idle. Where samples have had
company of late, a hand-over of cheap batches, or of a batch that is not full, is put off for as
long as each turn of the loop brings more: a loop that finds requests to read goes on reading, and
hands over when it would sleep otherwise. Seen in one run each with a detector and a recogniser
(``benchmarks --only graph``, 32 connections, one core): batches of 28 rows instead of 19. Each
batch is still run, timed and answered by itself. Pure: it learns only from what it is told.
"""

from __future__ import annotations

HAND_OVER_BUDGET = 0.0005
"""Seconds of predicted work one hand-over may carry. Measured: with a thread worker's echo, one
batch per hand-over gave 26,000 a second, 8 gave 73,000, 32 gave 83,000; half a millisecond is
where the gain ends and a neighbour's wait would start to be felt."""

MOST_BATCHES = 32
_SMOOTHING = 0.2
_COMPANY = 1.5
"""Samples of a hand-over, on average, from which on it is put off: whoever comes alone does not
wait. Measured with a thread worker's echo and 32 connections over HTTP: a hand-over carried 8 or 9
batches without this and nearly always 32 with it, and there were a quarter more answers a second.
"""


class HandOver:
    """The history of one op's batches and hand-overs, as moving averages."""

    def __init__(self) -> None:
        self._mean: float | None = None
        self._company = 1.0
        self._seen = 0

    def learn(self, seconds: float) -> None:
        """A batch ran for so long. Slow ones are believed at once, quick ones little by little."""
        mean = self._mean
        if mean is None or seconds > mean * 4:
            self._mean = seconds
        else:
            self._mean = mean + _SMOOTHING * (seconds - mean)

    def batches(self, idle_workers: int) -> int:
        """How many batches the next hand-over may carry, with so many workers idle (>= 1)."""
        mean = self._mean
        if idle_workers > 1 or mean is None:
            return 1
        if mean * MOST_BATCHES <= HAND_OVER_BUDGET:
            return MOST_BATCHES
        return max(1, int(HAND_OVER_BUDGET / mean))

    def carried(self, count: int) -> None:
        """A hand-over with so many samples was made."""
        self._company += _SMOOTHING * (count - self._company)

    def look_again(self, waiting: int, max_rows: int) -> bool:
        """Whether to see first what the loop's next turn brings; asked in each until it says no.

        Args:
            waiting: samples that could be handed over now.
            max_rows: how many of them fill a batch.
        """
        mean = self._mean
        again = (
            self._seen < waiting < (MOST_BATCHES if max_rows == 1 else max_rows)
            and self._company > _COMPANY
            and mean is not None
            and (max_rows > 1 or mean * MOST_BATCHES <= HAND_OVER_BUDGET)
        )
        self._seen = waiting if again else 0
        return again
