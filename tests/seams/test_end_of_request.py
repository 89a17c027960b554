"""The end of a request is an event that anyone may wait for: here a store that frees its keys."""

from __future__ import annotations

import asyncio

from penstock import App
from penstock.instrument import Instrument, RequestInfo
from penstock.testing import client


class Store(Instrument):
    """Holds a key for each request until that ends, whatever its end."""

    def __init__(self) -> None:
        self.keys: set[int] = set()
        self.freed = 0

    def admitted(self, request: RequestInfo, now: float) -> None:
        key = request.data_id
        self.keys.add(key)
        request.at_end(lambda: self._free(key))

    def _free(self, key: int) -> None:
        self.keys.remove(key)
        self.freed += 1


def test_a_store_frees_the_keys_of_answered_failed_and_late_requests() -> None:
    store = Store()
    app = App("stored", instruments=[store])
    held: list[int] = []

    @app.route("/half")
    async def half(number: int) -> float:
        held.append(len(store.keys))
        if number > 100:
            await asyncio.sleep(60)
        return 1 / number

    with client(app) as http:
        statuses = [
            http.post("/half", json={"number": number}, headers=headers).status_code
            for number, headers in ((2, {}), (0, {}), (101, {"penstock-timeout": "0.1"}))
        ]
    assert (statuses, held) == ([200, 500, 504], [1, 1, 1])
    assert (store.keys, store.freed) == (set(), 3)
