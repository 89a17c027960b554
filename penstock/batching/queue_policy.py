"""How long a request may wait in the queue of an op, and what happens then.

Source: Triton's ``ModelQueuePolicy`` (``model_config.proto``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """Of the requests of one priority level.

    Attributes:
        timeout: seconds in the queue of one op; None: no limit of its own.
        delay: whether a late request goes behind the others of its level; otherwise it is refused.
    """

    timeout: float | None = None
    delay: bool = False

    def limit(self, asked: float | None) -> float | None:
        """The time limit of a request in seconds, or None.

        Args:
            asked: the one that its caller asks for, which can only shorten it; None for none.
        """
        limits = [each for each in (asked, self.timeout) if each is not None]
        return min(limits, default=None)


def delays(policies: Sequence[QueuePolicy]) -> bool:
    """Whether a request can become late, and stay in the queue."""
    return any(policy.delay for policy in policies)
