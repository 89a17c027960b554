"""FastAPI under uvicorn: a pydantic model in and out, as in its documentation."""

from __future__ import annotations

from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from benchmarks.servers.options import server_options


class Flower(BaseModel):
    """The body."""

    length: float
    width: float
    names: list[str]
    count: int


app = FastAPI()


@app.post("/bench/prediction")
async def echo(flower: Flower) -> Flower:
    """The echo."""
    return flower


class Piece(BaseModel):
    """A piece of an answer."""

    text: str
    index: int


class Count(BaseModel):
    """The body of a request for pieces."""

    count: int


async def events(count: int) -> AsyncIterator[str]:
    """The pieces as events."""
    for index in range(count):
        yield f"data: {Piece(text='piece', index=index).model_dump_json()}\n\n"


@app.post("/pieces")
async def pieces(asked: Count) -> StreamingResponse:
    """An answer in pieces."""
    return StreamingResponse(events(asked.count), media_type="text/event-stream")


@app.get("/readyz")
async def ready() -> str:
    """Readiness."""
    return "ok"


if __name__ == "__main__":
    options = server_options()
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=options.http_port,
        http="httptools",
        loop="uvloop",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=60,
    )
