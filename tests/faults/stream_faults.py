"""Functions that yield, ops that yield, and seats, which do what a request's ``fault`` names.

The kinds are routes of the same parameters. A kind has one worker, or one seat, so that a request
runs only if the one before it has given that back. A fault happens before the piece ``at``.

Environment: into ``FOLDER`` they write a byte for each step, and for each end, of a key. A call
that waits at a gate is let go by ``POST /go``.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import App, Done, HttpError, Op, RequestOp

app = App("faults")
folder = Path(os.environ["FOLDER"])
events: dict[str, asyncio.Event] = {}


def note(key: str, what: str) -> None:
    with (folder / f"{key}.{what}").open("ab") as file:
        file.write(b".")


def text(n: int, fault: str) -> Any:
    return f"é{n}" + "x" * 1000 * (fault in ("endless", "big"))


def before(key: str, fault: str, n: int, at: int, upto: int) -> str:
    """Make a step: what is to be done instead of the piece ``n``; empty for the piece."""
    note(key, "steps")
    if fault == "die":
        time.sleep(0.001)  # as a model takes: pieces that are quicker may be lost
    if n == at:
        if fault == "raise":
            raise HttpError(418, "a teapot")
        if fault == "bug":
            raise ValueError("it cannot")
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault in ("gate", "type"):
            return fault
    return "" if n < upto or fault == "endless" else "end"


def wait_at_gate(key: str) -> None:
    note(key, "waits")
    while not (folder / f"{key}.go").exists():
        time.sleep(0.005)


def pieces(key: str, fault: str, at: int, upto: int) -> Iterator[Any]:
    n = 0
    try:
        while True:
            what = before(key, fault, n, at, upto)
            if what == "gate":
                wait_at_gate(key)
                what = "" if n < upto else "end"
            if what == "end":
                return
            yield 7 if what == "type" else text(n, fault)
            n += 1
    finally:
        note(key, "ends")


@app.post("/thread")
def thread(key: str, fault: str = "", at: int = 0, upto: int = 3) -> Iterator[str]:
    yield from pieces(key, fault, at, upto)


@app.post("/process", executor="process")
def process(key: str, fault: str = "", at: int = 0, upto: int = 3) -> Iterator[str]:
    yield from pieces(key, fault, at, upto)


@app.post("/loop", workers=1)
async def loop(key: str, fault: str = "", at: int = 0, upto: int = 3) -> AsyncIterator[str]:
    n = 0
    try:
        while True:
            what = before(key, fault, n, at, upto)
            if what == "gate":
                note(key, "waits")
                await events.setdefault(key, asyncio.Event()).wait()
                what = "" if n < upto else "end"
            if what == "end":
                return
            yield 7 if what == "type" else text(n, fault)  # type: ignore[misc]
            await asyncio.sleep(0)
            n += 1
    finally:
        note(key, "ends")


@dataclass
class State:
    key: str
    fault: str
    at: int
    upto: int
    n: int = 0


@app.post("/seats", seats=1)
class Seats:
    def join(self, key: str, fault: str = "", at: int = 0, upto: int = 3) -> State:
        return State(key, fault, at, upto)

    def step(self, running: list[State]) -> list[str | Done | Exception | None]:
        return [self.one(each) for each in running]

    def one(self, state: State) -> Any:
        try:
            what = before(state.key, state.fault, state.n, state.at, state.upto)
        except HttpError as error:
            return error
        if what == "gate":
            wait_at_gate(state.key)
            what = "" if state.n < state.upto else "end"
        if what == "end":
            return Done()
        state.n += 1
        return 7 if what == "type" else text(state.n - 1, state.fault)

    def leave(self, state: State) -> None:
        note(state.key, "ends")


class Yields(Op):
    """An op that yields."""

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        (ask,) = feed_batch
        given = (ask["key"], ask.get("fault", ""), ask.get("at", 0), ask.get("upto", 3))
        for piece in pieces(*given):
            yield {"text": piece} if isinstance(piece, str) else piece


app.graph("/op", Yields("op", input_ops=[RequestOp()]))
app.graph("/op_process", Yields("op_process", input_ops=[RequestOp()]), dag={"is_thread_op": False})


@app.post("/go")
async def go(key: str) -> None:
    (folder / f"{key}.go").touch()
    events.setdefault(key, asyncio.Event()).set()


@app.get("/pieces")
def got(key: str, fault: str = "", at: int = 0, upto: int = 3) -> Iterator[str]:
    yield from pieces(key, fault, at, upto)


@app.post("/limited", timeout=0.5)
def limited(key: str, fault: str = "", at: int = 0, upto: int = 3) -> Iterator[str]:
    yield from pieces(key, fault, at, upto)


@app.post("/idle", workers=1024)
async def idle(key: str) -> AsyncIterator[str]:
    """Waits at the gate ``idle`` between its two pieces."""
    yield "first"
    await events.setdefault("idle", asyncio.Event()).wait()
    yield "last"


if __name__ == "__main__":
    app.run()
