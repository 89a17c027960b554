"""Functions that yield, as a service.

Environment: ``EXECUTOR`` is that of the functions that are no coroutines. Into ``FOLDER`` they
write a byte for each piece, and for each end, of a key; a FIFO there, opened for writing, lets one
go on.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from penstock import App, HttpError, Op, RequestOp, op

app = App("streams")
executor = os.environ["EXECUTOR"]
folder = Path(os.environ["FOLDER"])


def note(key: str, what: str) -> None:
    with (folder / f"{key}.{what}").open("ab") as file:
        file.write(b".")


class Token(BaseModel):
    text: str
    n: int


@app.post("/count", executor=executor, workers=2)
def count(upto: int, fail_at: int = -1) -> Iterator[Token]:
    """Tokens, up to a number."""
    for n in range(upto):
        if n == fail_at:
            raise HttpError(418, f"there is no {n}")
        yield Token(text=f"é{n}", n=n)


@app.post("/gated", executor=executor)
def gated(key: str, upto: int) -> Iterator[int]:
    """Waits after the first number for somebody who opens the FIFO."""
    for n in range(upto):
        if n == 1:
            (folder / key).read_bytes()
        yield n


@app.post("/endless", executor=executor, workers=2)
def endless(key: str) -> Iterator[str]:
    """Never ends by itself."""
    try:
        while True:
            note(key, "made")
            yield "x" * 1000
    finally:
        note(key, "closed")


@app.post("/endless_on_loop")
async def endless_on_loop(key: str) -> AsyncIterator[str]:
    """The same on the loop."""
    try:
        while True:
            note(key, "made")
            yield "x" * 1000
            await asyncio.sleep(0)
    finally:
        note(key, "closed")


@app.post("/waits")
async def waits(key: str) -> AsyncIterator[int]:
    """Waits for ever after the first number."""
    try:
        yield 0
        await asyncio.Event().wait()
    finally:
        note(key, "closed")


@app.post("/dies", executor=executor)
def dies(after: int) -> Iterator[int]:
    """Ends its process after some pieces."""
    for n in range(after):
        time.sleep(0.001)  # as a model takes: pieces that are quicker may be lost
        yield n
    os._exit(3)


@app.post("/wrong", executor=executor)
def wrong(after: int) -> Iterator[Token]:
    """Yields something else than it says."""
    for n in range(after):
        yield Token(text="", n=n)
    yield "no token"  # type: ignore[misc]


@app.post("/bytes", executor=executor)
def raw(size: int, times: int) -> Iterator[bytes]:
    for n in range(times):
        yield bytes([n % 256]) * size


@app.post("/double")
def double(x: int) -> int:
    """Answers at once."""
    return 2 * x


@op(executor=executor)
def known(request: dict[str, Any]) -> dict[str, Any]:
    return {"upto": 3, **request}


@op(known, executor=executor, workers=2)
def numbers(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for n in range(given["upto"]):
        if n == given.get("fail_at"):
            raise HttpError(418, f"there is no {n}")
        yield {"text": f"é{n}", "n": np.int64(n)}


class EndlessOp(Op):
    """Never ends by itself; ``postprocess`` makes the pieces."""

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        (given,) = feed_batch
        try:
            while True:
                note(given["key"], "made")
                yield {"length": 1000}
        finally:
            note(given["key"], "closed")

    def postprocess(
        self, input_data: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        return {"text": "x" * fetch_data["length"]}, None, ""


app.graph("/numbers", numbers, response=Token, examples=[({"upto": 1}, [{"text": "é0", "n": 0}])])
app.graph(
    "/endless_op",
    EndlessOp("endless_op", input_ops=[RequestOp()], concurrency=2),
    op={"endless_op": {"executor": executor}},
)


class Words:
    """A class with state."""

    def load(self) -> None:
        self.words = ["one", "two", "three"]

    def predict(self, k: int) -> Iterator[str]:
        yield from self.words[:k]


app.post("/words", executor=executor)(Words)

if __name__ == "__main__":
    app.run()
