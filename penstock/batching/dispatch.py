"""Decides how many batches one hand-over to a worker has, and whether to wait for more of them.

Waking a worker costs more than a cheap op's work, so one hand-over has several batches if they
are predicted to take half a millisecond together and no other worker is idle. If recent
hand-overs had several samples, a hand-over of cheap batches, or of a partial batch, is deferred
for as long as each turn of the loop brings more samples: the loop continues to read requests, and
hands over when it would otherwise sleep. Measured once with a detector and a recogniser
(``benchmarks --only graph``, 32 connections, one core): batches of 28 rows instead of 19. Each
batch is still run, timed and answered separately. Pure: it learns only from its arguments.
"""

from __future__ import annotations

HAND_OVER_BUDGET = 0.0005
"""Most seconds of predicted work in one hand-over.
Measured with a thread worker's echo: one batch per hand-over gave 26,000 a second, 8 gave 73,000,
32 gave 83,000. Beyond half a millisecond there is little gain, and other ops are delayed."""

LEARNED_BUDGET = 0.005
"""The same for batches of the policy ``learned``, by one worker: what the batches of a hand-over
cost is known for each, and those that wait would run in the same order.
Measured with lists of 1 to 128 tokens, 32 connections, the server on one core: the engine's loop
spent a sixth less on a request than with one batch in each hand-over."""

MOST_BATCHES = 32
_SMOOTHING = 0.2
_SEVERAL = 1.5
"""Mean samples per hand-over from which on it is deferred: a single request does not wait.
Measured with a thread worker's echo and 32 connections over HTTP: a hand-over had 8 or 9
batches without this and nearly always 32 with it, and there were a quarter more answers a second.
"""


class HandOver:
    """The history of one op's batches and hand-overs, as moving averages."""

    def __init__(self) -> None:
        self._mean: float | None = None
        self._mean_count = 1.0
        self._seen = 0

    def learn(self, seconds: float) -> None:
        """Record a batch's run time; a slower one counts at once, a faster one little by little."""
        mean = self._mean
        if mean is None or seconds > mean * 4:
            self._mean = seconds
        else:
            self._mean = mean + _SMOOTHING * (seconds - mean)

    @property
    def seconds(self) -> float | None:
        """The usual run time of a batch; None before the first one."""
        return self._mean

    def batches(self, idle_workers: int) -> int:
        """How many batches the next hand-over may carry; ``idle_workers`` is at least 1."""
        mean = self._mean
        if idle_workers > 1 or mean is None:
            return 1
        if mean * MOST_BATCHES <= HAND_OVER_BUDGET:
            return MOST_BATCHES
        return max(1, int(HAND_OVER_BUDGET / mean))

    def carried(self, count: int) -> None:
        """Record the number of samples of a hand-over."""
        self._mean_count += _SMOOTHING * (count - self._mean_count)

    def look_again(self, waiting: int, max_rows: int) -> bool:
        """Whether to defer the hand-over by one turn of the loop; asked each turn until it is
        False.

        Args:
            waiting: samples that could be handed over now.
            max_rows: how many of them fill a batch.
        """
        mean = self._mean
        again = (
            self._seen < waiting < (MOST_BATCHES if max_rows == 1 else max_rows)
            and self._mean_count > _SEVERAL
            and mean is not None
            and (max_rows > 1 or mean * MOST_BATCHES <= HAND_OVER_BUDGET)
        )
        self._seen = waiting if again else 0
        return again
