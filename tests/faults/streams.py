"""A service whose answers come in pieces, for tests of faults.

Environment: ``EXECUTOR`` is that of the function and of the graph's last op.
"""

import os
from collections.abc import Iterator
from typing import Any

from penstock import App, HttpError, op

app = App("streams")
executor = os.environ["EXECUTOR"]
FILLER = "x" * 500


def pieces(key: int, upto: int, fail_at: int, die_at: int) -> Iterator[dict[str, Any]]:
    for n in range(upto):
        if n == fail_at:
            raise HttpError(418, f"there is no {n}")
        if n == die_at:
            os._exit(3)
        yield {"key": key, "n": n, "filler": FILLER}


@app.post("/typed", executor=executor, workers=3)
def typed(key: int, upto: int, fail_at: int = -1, die_at: int = -1) -> Iterator[dict[str, Any]]:
    yield from pieces(key, upto, fail_at, die_at)


@op(executor=executor, workers=3)
def last(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from pieces(
        request["key"], request["upto"], request.get("fail_at", -1), request.get("die_at", -1)
    )


app.graph("/graph", last)

if __name__ == "__main__":
    app.run()
