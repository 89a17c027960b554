"""Kinds of external stores, by the schemes of their URLs.

Another package adds a kind by an entry point in the group ``penstock.external_stores``, whose name
is the scheme, and whose object is called with ``StoreOptions``.
"""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from typing import Final

from penstock.executors.external_store.rules import SCHEMES, StoreOptions
from penstock.executors.external_store.store import ExternalStore, Open, StoreRefuses

ENTRY_POINTS: Final = "penstock.external_stores"


def problem_of(scheme: str) -> str | None:
    """Why a store of this scheme cannot be used, without importing its kind; None if it can."""
    if scheme in SCHEMES:
        if find_spec("redis") is None:
            return f"{scheme} needs the package redis: pip install 'penstock-serving[redis]'"
        return None
    others = [each.name for each in metadata.entry_points(group=ENTRY_POINTS)]
    if scheme in others:
        return None
    return f"must begin with one of {', '.join(f'{each}://' for each in (*SCHEMES, *others))}"


def open_store(options: StoreOptions) -> ExternalStore:
    """Make a store of the scheme in the options; it connects later.

    Raises:
        StoreRefuses: there is no such kind, or it cannot be imported.
    """
    scheme = options.address.scheme
    if scheme in SCHEMES:
        problem = problem_of(scheme)
        if problem is not None:  # on another machine than that of the service
            raise StoreRefuses(f"cannot be used: {problem}")
        from penstock.executors.external_store.redis_store import RedisStore

        return RedisStore(options)
    for entry in metadata.entry_points(group=ENTRY_POINTS, name=scheme):
        try:
            made: Open = entry.load()
            return made(options)
        except Exception as error:
            raise StoreRefuses(f"cannot be made by {entry.value}: {error}") from error
    raise StoreRefuses(f"has the scheme {scheme}, for which no package is installed")
