"""How the workers of one op are looked after."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """See the module.

    Attributes:
        kill_late: whether a call beyond its time-out is ended with its worker, rather than left to
            return.
        start_timeout: seconds within which a worker must be ready; None for ever.
        hang_limit: seconds that a call may go on after nobody waits for it, None for ever; and
            within which, if that is less than it is given anyway, a worker begins a batch.
        memory_limit: bytes of memory beyond which a worker is replaced; None is no limit.
        max_batches: batches after which it is replaced; None is never.
        crash_dir: folder for reports of workers that died; None is none.
    """

    kill_late: bool = False
    start_timeout: float | None = 600.0
    hang_limit: float | None = 60.0
    memory_limit: int | None = None
    max_batches: int | None = None
    crash_dir: str | None = None

    @property
    def recycles(self) -> bool:
        """Whether workers are replaced though they work."""
        return self.memory_limit is not None or self.max_batches is not None
