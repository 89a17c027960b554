"""Octets of a value in an external store, in chunks; for any thread."""

from __future__ import annotations

from penstock.executors.external_store.rules import chunks_of
from penstock.executors.external_store.store import ExternalStore, StoreLacks


def get_octets(store: ExternalStore, key: str, number: int, nbytes: int) -> bytearray:
    """Fetch a value.

    Raises:
        StoreLacks: it does not exist, or has another size.
        StoreFailed: it cannot be had.
    """
    octets = bytearray()
    for field, start, end in chunks_of(number, nbytes):
        chunk = store.get(key, field)
        if len(chunk) != end - start:
            raise StoreLacks(f"has {len(chunk)} octets of a value, and not {end - start}")
        octets += chunk
    return octets


def put_octets(
    store: ExternalStore, key: str, number: int, octets: memoryview, seconds: float
) -> None:
    """Store a value, which then expires after so many seconds, with all others of its key.

    Raises:
        StoreFailed: it is unknown whether it is there.
    """
    for field, start, end in chunks_of(number, len(octets)):
        store.put(key, field, octets[start:end], seconds)
