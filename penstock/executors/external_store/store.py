"""The interface of external stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from penstock.executors.external_store.rules import StoreOptions


class StoreFailed(Exception):
    """A command failed. Its text continues the sentence "the external store …", and contains no
    password.
    """


class StoreLacks(StoreFailed):
    """The store works, and does not have the value: it has expired, say."""


class StoreRefuses(StoreFailed):
    """The store does not accept the user, the password or the command: the operator must act."""


class ExternalStore(Protocol):
    """Keys with fields of bytes, which expire. Its methods block, and are called in any thread."""

    def put(self, key: str, field: str, octets: memoryview, seconds: float) -> None:
        """Set a field of a key, which then expires after so many seconds, with all its fields.

        Both happen, or none: a key without an expiry would stay for ever.

        Raises:
            StoreFailed: it is unknown whether it was set.
        """

    def get(self, key: str, field: str) -> bytes:
        """Return a field.

        Raises:
            StoreLacks: it does not exist, with the reason if that is known.
            StoreFailed: it cannot be had.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Delete keys, if they exist.

        Raises:
            StoreFailed: it is unknown whether they exist.
        """

    def look(self) -> Sequence[str]:
        """Connect; return what is wrong with the settings of the store, as texts.

        Raises:
            StoreFailed: it cannot be used.
        """

    def close(self) -> None:
        """Disconnect."""


Open: TypeAlias = Callable[[StoreOptions], ExternalStore]
