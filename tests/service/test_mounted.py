"""An App mounted into another application ends with its server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

APP = """
import asyncio, os, sys
import httpx
from fastapi import FastAPI
from penstock import App

app = App("closes")

@app.route("/double")
class Double:
    def predict(self, x: int) -> int:
        return 2 * x

    def close(self) -> None:
        os.write(1, b"closed\\n")  # at once: two threads write

@app.route("/later")
class Later:
    async def predict(self, x: int) -> int:
        return 2 * x

    async def close(self) -> None:
        os.write(1, b"closed later\\n")

api = FastAPI()
api.mount("/app", app.asgi)
"""

CALLS = """
async def calls():
    transport = httpx.ASGITransport(api)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        for path in ("/app/double", "/app/later"):
            assert (await http.post(path, json={"x": 2})).json() == 4

asyncio.run(calls())
"""

TEST_CLIENT = """
from fastapi.testclient import TestClient
http = TestClient(api)
for path in ("/app/double", "/app/later"):
    assert http.post(path, json={"x": 2}).json() == 4
"""


STOPPED = """
import threading
loop = asyncio.new_event_loop()  # never closed
threading.Thread(target=loop.run_forever, daemon=True).start()

async def calls():
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        for path in ("/double", "/later"):
            assert (await http.post(path, json={"x": 2})).json() == 4
    await app.asgi.stop()

async def starts():
    await app.asgi.start()

asyncio.run_coroutine_threadsafe(starts(), loop).result()
asyncio.run_coroutine_threadsafe(calls(), loop).result()
"""


@pytest.mark.parametrize(
    "calls", [CALLS, TEST_CLIENT, STOPPED], ids=["a loop", "a test client", "stopped"]
)
def test_the_hooks_close_run_at_the_end_without_a_lifespan(calls: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(APP + calls)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "closed", "closed later"], done.stderr
    assert "Exception" not in done.stderr
