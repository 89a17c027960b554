"""An external store in memory, with the faults of a real one."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.executors.external_store.rules import StoreOptions, parse_address
from penstock.executors.external_store.store import StoreFailed, StoreLacks

OPTIONS = StoreOptions(service="svc", address=parse_address("redis://127.0.0.1"), min_bytes=1000)


class FakeStore:
    """See the module.

    Attributes:
        kept: the fields of each key.
        seconds: the last expiry of each key.
        fails: what every command raises, if set.
        fails_after: the number of further commands that succeed before that; None: all.
        calls: the names of the commands.
        wrong: what ``look`` returns.
    """

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, bytes]] = {}
        self.seconds: dict[str, float] = {}
        self.fails: StoreFailed | None = None
        self.fails_after: int | None = None
        self.calls: list[str] = []
        self.wrong: Sequence[str] = ()
        self.closed = False

    def opened(self, options: StoreOptions) -> FakeStore:
        assert options is OPTIONS
        return self

    def put(self, key: str, field: str, octets: memoryview, seconds: float) -> None:
        self._called("put")
        self.kept.setdefault(key, {})[field] = bytes(octets)
        self.seconds[key] = seconds

    def get(self, key: str, field: str) -> bytes:
        self._called("get")
        try:
            return self.kept[key][field]
        except KeyError:
            raise StoreLacks("does not have it") from None

    def delete(self, keys: Sequence[str]) -> None:
        self._called("delete")
        for key in keys:
            self.kept.pop(key, None)

    def look(self) -> Sequence[str]:
        self._called("look")
        return self.wrong

    def close(self) -> None:
        self.closed = True

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.fails_after is not None:
            if self.fails_after == 0:
                raise StoreFailed("has failed")
            self.fails_after -= 1
        if self.fails is not None:
            raise self.fails
