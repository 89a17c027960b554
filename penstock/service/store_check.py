"""Tries the external store of a service, for ``penstock check --open``."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from penstock.errors import StartupError
from penstock.executors.external_store.kinds import open_store
from penstock.executors.external_store.octets import get_octets, put_octets
from penstock.executors.external_store.rules import StoreOptions, key_of
from penstock.executors.external_store.store import Open, StoreFailed

_SECONDS: Final = 60.0
_VALUE: Final = b"penstock check"


def try_store(options: StoreOptions, open: Open = open_store) -> Sequence[str]:
    """Connect to the store, and put a value of ``min_bytes`` there, at most 1 MiB.

    Returns:
        What is wrong with its settings.

    Raises:
        StartupError: it cannot be reached, does not accept the password, is full, or does not let
            the user do this.
    """
    key = key_of(options.service, 0, "check", secrets.token_hex(16))
    value = _VALUE.ljust(min(options.min_bytes, 1 << 20), b".")
    try:
        store = open(options)
        try:
            wrong = store.look()
            put_octets(store, key, 0, memoryview(value), _SECONDS)
            found = get_octets(store, key, 0, len(value))
            store.delete([key])
        finally:
            store.close()
    except StoreFailed as error:
        text = f"dag.external_store: the external store {options.address} {error}"
        raise StartupError(text) from error
    if found != value:
        text = f"dag.external_store: {options.address} gives other bytes than were put there"
        raise StartupError(text)
    return [f"dag.external_store: {options.address} {each}" for each in wrong]
