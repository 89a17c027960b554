"""The external store for the requests of other Penstocks: fetches inputs, and puts outputs there.

``fetch`` and ``keep`` block, and are for any thread; ``threads`` has some for them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Final

from penstock.client.token import token_at
from penstock.executors.external_store.engine import EngineStore
from penstock.executors.external_store.kinds import open_store
from penstock.executors.external_store.octets import get_octets, put_octets
from penstock.executors.external_store.rules import PAUSE, StoreOptions, seconds_to_live
from penstock.executors.external_store.store import (
    ExternalStore,
    Open,
    StoreFailed,
    StoreLacks,
)
from penstock.protocols.stored_infer import Place, Raw, StoredRequest

_log = logging.getLogger(__name__)

_THREADS: Final = 4


class ServerStore:
    """See the module.

    Args:
        options: of the service's store, with a secret.
        open: makes the store.
        now: monotonic seconds.

    Attributes:
        threads: for what blocks.
        counts: what is done with it.

    Raises:
        ModelError: there is no secret.
    """

    def __init__(
        self,
        options: StoreOptions,
        open: Open = open_store,
        now: Callable[[], float] = monotonic,
    ) -> None:
        assert options.secret is not None, "others use the store with it"
        self._options = options
        self._secret = token_at(options.secret)
        self._open = open
        self._now = now
        self._lock = threading.Lock()
        self._store: ExternalStore | None = None
        self._not_before = 0.0  # when values are put again
        self._side = EngineStore(options, "", open, "calls of other services")
        self._failed = False
        self._puts_failed = False  # a store that is full can be read
        self.threads = ThreadPoolExecutor(_THREADS, "external store")
        self.counts = self._side.counts

    def start(self) -> None:
        """Begin to look at the store; whether it answers decides nothing."""
        self._side.start()

    async def close(self) -> None:
        """Disconnect."""
        await self._side.close()
        self.threads.shutdown(wait=False, cancel_futures=True)
        if self._store is not None:
            self._store.close()

    def is_marked(self, request: StoredRequest) -> bool:
        """Whether a request is one of a service with the same secret."""
        secret = self._secret if isinstance(self._secret, str) else self._secret()
        return request.is_marked(secret.encode())

    def fetch(self, places: Sequence[Place]) -> list[bytearray]:
        """Fetch values.

        Raises:
            StoreFailed: one cannot be had.
        """
        if not places:
            return []
        try:
            store = self._opened()
            found = [get_octets(store, *each) for each in places]
        except StoreLacks as error:
            self._note_works()
            address = self._options.address
            _log.warning("values of other services: the external store %s %s", address, error)
            self.counts.add(inline=1)
            raise
        except StoreFailed as error:
            self._note_fails(error)
            self.counts.add(inline=1)
            raise
        self._note_works()
        self.counts.add(fetched=sum(each.nbytes for each in places))
        return found

    def keep(
        self,
        key: str,
        values: Sequence[memoryview | bytes],
        large: Sequence[bool],
        deadline: float,
        is_gone: Callable[[], bool],
    ) -> list[Raw]:
        """Put large values under a key, or none of them.

        Args:
            key: named by the caller.
            values: the raw bytes of tensors.
            large: which of them are to be put there.
            deadline: of the request, in monotonic seconds.
            is_gone: whether nobody waits for the answer any more: the key is deleted then.

        Returns:
            For each value where it is, or the value.
        """
        if not any(large):
            return [*values]
        if self._now() < self._not_before:
            self.counts.add(inline=1)
            return [*values]
        kept: list[Raw] = []
        store: ExternalStore | None = None
        try:
            store = self._opened()
            for number, (value, is_large) in enumerate(zip(values, large, strict=True)):
                if not is_large:
                    kept.append(value)
                    continue
                seconds = seconds_to_live(deadline, self._now())
                put_octets(store, key, number, memoryview(value), seconds)
                kept.append(Place(key, number, len(value)))
        except StoreFailed as error:
            self._not_before = self._now() + PAUSE
            self._note_fails(error, put=True)
            self.counts.add(inline=1)
            if store is not None:
                with suppress(StoreFailed):  # a part of the values; otherwise it expires
                    store.delete([key])
            return [*values]
        self._note_works(put=True)
        self.counts.add(put=sum(each.nbytes for each in kept if isinstance(each, Place)))
        if is_gone():
            with suppress(StoreFailed):
                store.delete([key])
        return kept

    def _opened(self) -> ExternalStore:
        with self._lock:
            if self._store is None:
                self._store = self._open(self._options)
            return self._store

    def _note_fails(self, error: StoreFailed, *, put: bool = False) -> None:
        """A command has failed, such as one that puts a value: log the first one."""
        if not self._failed:
            address = self._options.address
            _log.warning("values of other services: the external store %s %s", address, error)
        self.counts.wrong = str(error)
        self._failed = True
        self._puts_failed |= put

    def _note_works(self, *, put: bool = False) -> None:
        """A command has succeeded: log it after those that failed. A value that is read does not
        show that others can be put.
        """
        if self._failed and (put or not self._puts_failed):
            _log.warning("values of other services: the external store can be used again")
            self.counts.wrong = ""
            self._failed = self._puts_failed = False
