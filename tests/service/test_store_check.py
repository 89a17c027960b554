"""``penstock check --open`` with an external store: it is tried, here a fake of it.

A real one: tests/peers/test_redis_store.py.
"""

from __future__ import annotations

import pytest

from penstock.errors import StartupError
from penstock.executors.external_store.store import StoreFailed, StoreRefuses
from penstock.service.store_check import try_store
from tests.executors.external_store.fake import OPTIONS, FakeStore


def test_a_value_is_put_there_and_deleted() -> None:
    store = FakeStore()
    assert try_store(OPTIONS, store.opened) == []
    assert store.calls == ["look", "put", "get", "delete"]
    assert store.kept == {}
    assert store.closed


def test_wrong_settings_are_warnings() -> None:
    store = FakeStore()
    store.wrong = ["drops keys"]
    assert try_store(OPTIONS, store.opened) == ["dag.external_store: redis://127.0.0.1 drops keys"]


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("kind", [StoreFailed, StoreRefuses])
def test_a_store_that_cannot_be_used_is_an_error(kind: type[StoreFailed], after: int) -> None:
    store = FakeStore()
    commands = [store.look, store.put, store.get]
    failing = commands[after].__name__

    def fail(*arguments: object) -> bytes:
        raise kind("is full (maxmemory)")

    setattr(store, failing, fail)
    with pytest.raises(StartupError, match=r"external store redis://127\.0\.0\.1 is full"):
        try_store(OPTIONS, store.opened)
    assert store.closed


def test_other_bytes_are_noticed() -> None:
    store = FakeStore()
    store.get = lambda key, field: b"?" * 1000  # type: ignore[method-assign]
    with pytest.raises(StartupError, match="gives other bytes"):
        try_store(OPTIONS, store.opened)
