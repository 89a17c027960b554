"""Our client against nghttpd, which speaks HTTP/2 and knows nothing of gRPC."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.client import CallFailed, PipelineClient
from penstock.client.tls import Tls
from penstock.protocols.status import GrpcCode
from tests.peers.front import background
from tests.peers.programs import program
from tests.peers.site import Site
from tests.services.process import free_port


@contextmanager
def nghttpd(folder: Path, *options: str, tls: tuple[Path, Path] | None = None) -> Iterator[int]:
    """nghttpd on a port; it serves the empty folder."""
    port = free_port()
    sealed = ["--no-tls", str(port)] if tls is None else [str(port), str(tls[1]), str(tls[0])]
    command = [program("nghttpd"), "-a", "127.0.0.1", "-d", str(folder), *options, *sealed]
    with background(command, folder / "log", port):
        yield port


@pytest.mark.parametrize("sealed", [False, True], ids=["clear", "tls"])
def test_an_answer_that_is_not_grpc_fails_the_call_at_once(
    site: Site, tmp_path: Path, sealed: bool
) -> None:
    files = (site.certificate, site.key) if sealed else None
    tls = Tls(ca_file=site.certificate, server_name="localhost") if sealed else None
    with nghttpd(tmp_path, tls=files) as port, PipelineClient(tls=tls) as client:
        client.connect([f"127.0.0.1:{port}"])
        for _ in range(3):  # the connection is used again
            begun = time.monotonic()
            with pytest.raises(CallFailed) as caught:
                client.predict({"x": "hello"}, timeout=10)
            assert caught.value.status is GrpcCode.UNIMPLEMENTED  # what HTTP 404 stands for
            assert time.monotonic() - begun < 5


def test_calls_at_once_all_fail_and_none_hangs(tmp_path: Path) -> None:
    with nghttpd(tmp_path, "--max-concurrent-streams=5") as port, PipelineClient() as client:
        client.connect([f"127.0.0.1:{port}"])

        def ask(number: int) -> GrpcCode:
            with pytest.raises(CallFailed) as caught:
                client.predict({"x": str(number)}, timeout=20)
            return caught.value.status

        with ThreadPoolExecutor(16) as threads:
            found = set(threads.map(ask, range(100)))
    assert found == {GrpcCode.UNIMPLEMENTED}


def test_a_large_message_is_sent_into_small_windows(tmp_path: Path) -> None:
    # What comes back is the request itself, with a good status, but nothing says that it is gRPC.
    echo = ["--echo-upload", "--trailer=grpc-status: 0"]
    with nghttpd(tmp_path, *echo, "--window-bits=12") as port, PipelineClient() as client:
        client.connect([f"127.0.0.1:{port}"])
        with pytest.raises(CallFailed, match="content-type") as caught:
            client.predict({"x": "0123456789abcdef" * (1 << 16)}, timeout=20)
        assert caught.value.status is GrpcCode.UNKNOWN


def test_a_server_that_is_gone_is_noticed(tmp_path: Path) -> None:
    with PipelineClient() as client:
        with nghttpd(tmp_path) as port:
            client.connect([f"127.0.0.1:{port}"])
            with pytest.raises(CallFailed):
                client.predict({"x": "hello"}, timeout=10)
        with pytest.raises(CallFailed) as caught:
            client.predict({"x": "hello"}, timeout=2)
        assert caught.value.status in (GrpcCode.UNAVAILABLE, GrpcCode.DEADLINE_EXCEEDED)
