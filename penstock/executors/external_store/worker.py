"""The worker's side of the external store: fetches inputs, and puts outputs there.

Blocking, for the one thread of a worker. What cannot be put there is sent over the connection to
the engine; a value that cannot be fetched fails its own request only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from penstock.errors import RequestError, ValueLost
from penstock.executors.external_store.kinds import open_store
from penstock.executors.external_store.octets import get_octets, put_octets
from penstock.executors.external_store.rules import (
    PAUSE,
    StoreOptions,
    changed,
    seconds_to_live,
)
from penstock.executors.external_store.store import ExternalStore, Open, StoreFailed
from penstock.executors.transport.frames import FrameError
from penstock.executors.transport.values import Stored, storable
from penstock.request import Feed, Outcome, Sample

_log = logging.getLogger(__name__)


class WorkerStore:
    """See the module. Connects when the first value needs it.

    Args:
        options: of the service's store.
        op: the op's label, for messages.
        open: makes the store.
        now: monotonic seconds.
    """

    def __init__(
        self,
        options: StoreOptions,
        op: str,
        open: Open = open_store,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._options = options
        self._op = op
        self._open = open
        self._now = now
        self._store: ExternalStore | None = None
        self._not_before = 0.0  # when values are put again
        self._failed = False

    def fetch(self, samples: Sequence[Sample]) -> list[RequestError | None]:
        """Replace what stands for stored values in the inputs of these samples by the values.

        Returns:
            For each sample None, or why its inputs cannot be had.
        """
        return [self._fetch_inputs(each) for each in samples]

    def keep(self, samples: Sequence[Sample], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Put large outputs into the store, for samples that have a key; returns the outcomes with
        what stands for them.
        """
        kept = []
        for sample, outcome in zip(samples, outcomes, strict=True):
            key: str | None = getattr(sample, "store_key", None)
            if key is not None and outcome.error is None:
                kept.append(self._keep(key, outcome, sample.deadline))
            else:
                kept.append(outcome)
        return kept

    def _opened(self) -> ExternalStore:
        if self._store is None:
            self._store = self._open(self._options)
        return self._store

    def _fetch_inputs(self, sample: Sample) -> RequestError | None:
        try:
            sample.inputs = changed(sample.inputs, self._value)
        except (StoreFailed, FrameError) as error:
            _log.warning(
                "op %s: a value of request data_id=%s is lost: the external store %s %s",
                self._op,
                sample.data_id,
                self._options.address,
                error,
            )
            return ValueLost(
                f"op {self._op!r}: an input cannot be had from the external store, which {error}"
            )
        return None

    def _value(self, value: Any) -> Any:
        if type(value) is not Stored:
            return value
        octets = get_octets(self._opened(), value.key, value.number, value.nbytes)
        return value.value(octets)

    def _keep(self, key: str, outcome: Outcome, deadline: float) -> Outcome:
        numbers = iter(range(1 << 62))
        put_any = False

        def put(value: Any) -> Any:
            nonlocal put_any
            found = storable(value, key, next(numbers), self._options.min_bytes)
            if found is None:
                return value
            if self._now() < self._not_before:
                raise StoreFailed("")
            put_any = True
            stored, octets = found
            seconds = seconds_to_live(deadline, self._now())
            put_octets(self._opened(), key, stored.number, octets, seconds)
            return stored

        try:
            kept: Feed = changed(outcome.value or {}, put)
        except StoreFailed as error:
            if put_any:
                self._put_failed(key, error)
            return outcome
        if put_any and self._failed:
            self._failed = False
            _log.warning("op %s: the external store takes values again", self._op)
        return Outcome(kept, None, outcome.jump) if kept is not outcome.value else outcome

    def _put_failed(self, key: str, error: StoreFailed) -> None:
        self._not_before = self._now() + PAUSE
        if not self._failed:
            self._failed = True
            _log.warning(
                "op %s: values go through the engine: the external store %s %s",
                self._op,
                self._options.address,
                error,
            )
        with suppress(StoreFailed):  # a part of the values; otherwise it expires
            self._opened().delete([key])
