"""The engine's side of the external store: gives out keys, and deletes them when requests end.

A thread does what blocks. If the store does not answer, keys are left to expire.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from penstock.errors import ValueLost
from penstock.executors.external_store.counts import StoreCounts
from penstock.executors.external_store.kinds import open_store
from penstock.executors.external_store.rules import StoreOptions, changed, key_of
from penstock.executors.external_store.store import (
    ExternalStore,
    Open,
    StoreFailed,
    StoreRefuses,
)
from penstock.executors.transport.values import Stored, storable
from penstock.request import Outcome, Sample

_log = logging.getLogger(__name__)

_LOOK_EVERY: Final = 30.0  # seconds without deletions after which the store is looked at again
_AT_ONCE: Final = 512  # most keys of one deletion
_CLOSE_TIMEOUT: Final = 2.0  # seconds for the last deletions
_NONCE_BYTES: Final = 16


class EngineStore:
    """See the module. Belongs to the engine's loop.

    Args:
        options: of the service's store.
        op: the op's label.
        open: makes the store.
        who: uses it, in messages; None: the op.

    Attributes:
        counts: what is done with it.
    """

    def __init__(
        self,
        options: StoreOptions,
        op: str,
        open: Open = open_store,
        who: str | None = None,
    ) -> None:
        self._options = options
        self._who = f"op {op}" if who is None else who
        self._op = op
        self._open = open
        self._ended: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="external store", daemon=True)
        self._store: ExternalStore | None = None  # of the thread
        self._failed = False  # the last command
        self.counts = StoreCounts()

    def start(self) -> None:
        """Begin to look at the store; whether it answers decides nothing."""
        self._thread.start()

    async def close(self) -> None:
        """Delete what is left to delete, within two seconds. After the end of the workers, before
        which all requests have ended: a key whose request ends later is left to expire.
        """
        if self._thread.is_alive():
            self._ended.put(None)
            await asyncio.to_thread(self._thread.join, _CLOSE_TIMEOUT)

    def key_for(self, sample: Sample) -> str | None:
        """A new key for the outputs of a sample; None if they are needed here, such as to count
        their rows, or if the request runs again: the store may have been why.
        """
        flight = sample.flight
        if sample.op not in flight.graph.kept_away or flight.attempt > 1:
            return None
        stages = flight.graph.stages
        if any(stages[each].sizing is not None for each in flight.plan.consumers[sample.op]):
            return None
        nonce = secrets.token_hex(_NONCE_BYTES)
        return key_of(self._options.service, sample.data_id, self._op, nonce)

    def delete_at_end(self, sample: Sample, key: str) -> None:
        """Delete a key when its request ends; at once if it has ended."""
        self.counts.add(in_use=1)
        sample.flight.at_end(lambda: self._delete(key))

    def _delete(self, key: str) -> None:
        self.counts.add(in_use=-1)
        self._ended.put(key)

    def count_inputs(self, samples: Sequence[Sample]) -> None:
        """Count what a worker will fetch."""
        self.counts.add(fetched=sum(stored_bytes(each.inputs) for each in samples))

    def count(self, outcomes: Sequence[Outcome], kept: Sequence[bool]) -> None:
        """Count values that were lost, or that a worker did not put into the store.

        Args:
            outcomes: of a worker.
            kept: for each, whether it has put values there, or had no key for them.
        """
        lost = sum(isinstance(each.error, ValueLost) for each in outcomes)
        inline = sum(
            not stored and each.error is None and has_large(each.value, self._options.min_bytes)
            for each, stored in zip(outcomes, kept, strict=True)
        )
        if lost or inline:
            self.counts.add(lost=lost, inline=inline)

    def _run(self) -> None:
        self._attempt(())
        going = True
        while going:
            keys, going = self._take()
            if keys or going:
                self._attempt(keys)
        if self._store is not None:
            self._store.close()

    def _take(self) -> tuple[Sequence[str], bool]:
        """Wait for keys to delete, or for the time to look at the store; returns them, and whether
        there may be others.
        """
        found: list[str | None] = []
        with suppress(queue.Empty):
            found.append(self._ended.get(timeout=_LOOK_EVERY))
            while len(found) < _AT_ONCE:
                found.append(self._ended.get_nowait())
        return [each for each in found if each is not None], None not in found

    def _attempt(self, keys: Sequence[str]) -> None:
        """Delete these keys, or look at the store if there are none; log what has changed."""
        level, wrong = logging.WARNING, ""
        before_failed, self._failed = self._failed, True
        try:
            if self._store is None:
                self._store = self._open(self._options)
            if keys:
                self._store.delete(keys)
            else:
                wrong = "; it ".join(self._store.look())
            self._failed = False
        except StoreFailed as error:
            wrong = str(error)
            if isinstance(error, StoreRefuses):
                level = logging.ERROR
        if keys and not self._failed:  # which does not show whether its settings are right
            if before_failed:
                self._attempt(())
            return
        before, self.counts.wrong = self.counts.wrong, wrong
        if wrong != (before or ""):
            who = (self._who, self._options.address)
            if wrong:
                _log.log(level, "%s: the external store %s %s", *who, wrong)
            else:
                _log.info("%s: the external store %s is available", *who)


def stored_bytes(value: Any) -> int:
    """The bytes of all values in this one that are in the store."""
    found: list[int] = []

    def see(each: Any) -> Any:
        if type(each) is Stored:
            found.append(each.nbytes)
        return each

    changed(value, see)
    return sum(found)


def has_large(value: Any, least: int) -> bool:
    """Whether a value has a part that could be stored, and has this number of bytes or more."""
    found: list[bool] = []

    def see(each: Any) -> Any:
        nbytes = len(each) if type(each) is bytes else getattr(each, "nbytes", 0)
        if type(each) is not Stored and nbytes >= least and storable(each, "", 0, least):
            found.append(True)
        return each

    changed(value, see)
    return bool(found)
