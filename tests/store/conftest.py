"""Servers of files for the tests of stores, and a repository in a folder."""

from __future__ import annotations

import asyncio
import functools
import gc
import gzip
import http.server
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.kit.s3 import S3

_buckets = count()


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3]:
    server = S3()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A running server without faults, and the variables with which s3fs finds it."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_server.url,
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    yield s3_server
    s3_server.fault = None
    s3_server.requests.clear()
    s3_server.stop()
    s3_server.start()


@pytest.fixture
def bucket(s3: S3) -> str:
    name = f"bucket-{next(_buckets)}"
    s3.make_bucket(name)
    return name


class Web:
    """An HTTP server that shows the folders of one folder as pages.

    Attributes:
        url: of the folder.
        faults: by path, what a GET of it gets: a status, the number of bytes after which the
            connection is closed, or ``gzip``: its content, compressed though nobody asked for it.
    """

    def __init__(self, folder: Path) -> None:
        self.faults: dict[str, tuple[str, int]] = {}
        handler = functools.partial(_Handler, directory=str(folder), web=self)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, web: Web, **more: Any) -> None:
        self.web = web
        super().__init__(*args, **more)

    def do_GET(self) -> None:
        kind, number = self.web.faults.get(self.path, ("", 0))
        if kind == "status":
            self.send_error(number)
            return
        if kind == "cut":
            data = Path(self.translate_path(self.path)).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:number])
            self.close_connection = True
            return
        if kind == "gzip":
            self.send_compressed(head=False)
            return
        super().do_GET()

    def do_HEAD(self) -> None:
        if self.path in self.web.faults and self.web.faults[self.path][0] == "gzip":
            self.send_compressed(head=True)
            return
        super().do_HEAD()

    def send_compressed(self, *, head: bool) -> None:
        data = gzip.compress(Path(self.translate_path(self.path)).read_bytes())
        self.send_response(200)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not head:
            self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    folder = tmp_path / "web"
    folder.mkdir()
    server = Web(folder)
    yield server
    server.stop()


@pytest.fixture(scope="module", autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Tests in other folders fork, which threads prevent; fsspec's ends with its loop."""
    yield
    from fsspec import asyn

    gc.collect()  # file systems close their connections when they go; pytest may keep some
    loop, thread = asyn.loop[0], asyn.iothread[0]
    if loop is not None and thread is not None:
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        asyn.reset_lock()


async def _cancel_others() -> None:
    sessions = [each for each in gc.get_objects() if type(each) is ClientSession]
    await asyncio.gather(*(each.close() for each in sessions if not each.closed))
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
