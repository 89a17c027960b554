"""Makes the queue of an op for its policy."""

from __future__ import annotations

from penstock.batching.batcher import Batcher, BatchPolicy, FifoQueue
from penstock.batching.learned import LearnedBatcher


def batcher_for(policy: BatchPolicy) -> Batcher | FifoQueue:
    """The queue for a policy."""
    if policy.max_rows == 1:
        return FifoQueue(policy)
    return LearnedBatcher(policy) if policy.learned else Batcher(policy)
