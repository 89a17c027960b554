"""The external store of a service that others call: only what has touched it may say it works."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.executors.external_store.rules import PAUSE
from penstock.executors.external_store.server import ServerStore
from penstock.executors.external_store.store import StoreFailed
from penstock.protocols.stored_infer import Place, Raw
from tests.executors.external_store.fake import OPTIONS, FakeStore

PLACE = Place("key", 2, 4)
LOST = "values of other services: the external store redis://127.0.0.1 "
AGAIN = "values of other services: the external store can be used again"


class Site:
    """A service's side of a store that has one value."""

    def __init__(self, folder: Path) -> None:
        (folder / "secret").write_text("0123456789abcdef")
        self.kept = FakeStore()
        self.kept.put("key", "2.0", memoryview(b"four"), 60.0)
        self.now = 50.0
        options = replace(OPTIONS, secret=str(folder / "secret"))
        self.store = ServerStore(options, lambda _: self.kept, lambda: self.now)
        self.counts = self.store.counts

    def keep(self, *, large: bool = True) -> list[Raw]:
        return self.store.keep("answer", [b"value"], [large], 100.0, lambda: False)

    def fails(self, text: str) -> None:
        self.kept.fails = StoreFailed(text)
        with pytest.raises(StoreFailed, match=text):
            self.store.fetch([PLACE])


@pytest.fixture
def site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Site]:
    caplog.set_level(logging.INFO)
    found = Site(tmp_path)
    yield found
    found.store.threads.shutdown()


def test_what_does_not_touch_the_store_does_not_say_that_it_works(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.fails("cannot be reached")
    inline = site.counts.inline
    assert site.store.fetch([]) == []
    assert site.keep(large=False) == [b"value"]
    assert (site.counts.wrong, site.counts.inline) == ("cannot be reached", inline)
    assert caplog.messages == [f"{LOST}cannot be reached"]
    site.kept.fails = None
    assert site.store.fetch([PLACE]) == [b"four"]
    assert site.counts.wrong == ""
    assert caplog.messages[1:] == [AGAIN]


def test_a_value_that_is_not_there_is_no_store_that_is_down(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.counts.wrong = ""
    for place in (PLACE._replace(key="gone"), PLACE._replace(nbytes=5)):
        with pytest.raises(StoreFailed):
            site.store.fetch([place])
    assert (site.counts.wrong, site.counts.inline) == ("", 2)
    assert caplog.messages == [
        f"{LOST}does not have it",
        f"{LOST}has 4 octets of a value, and not 5",
    ]


def test_a_value_that_is_fetched_does_not_say_that_others_can_be_put(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.kept.fails = StoreFailed("is full")
    assert site.keep() == [b"value"]
    site.kept.fails = None
    assert site.store.fetch([PLACE]) == [b"four"]
    assert site.counts.wrong == "is full"
    assert caplog.messages == [f"{LOST}is full"]
    site.now += PAUSE
    assert site.keep() == [Place("answer", 0, 5)]
    assert site.counts.wrong == ""
    assert caplog.messages[1:] == [AGAIN]
