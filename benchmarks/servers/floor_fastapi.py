"""FastAPI under uvicorn: a pydantic model in and out, as in its documentation."""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI
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
