"""Peers of every kind at once: each answer belongs to its question, and nothing is left behind."""

from __future__ import annotations

import itertools
import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from penstock.client import PipelineClient
from penstock.protocols.pb import Request, Response
from tests.peers.programs import NODE, node_packages, run
from tests.peers.site import INFERENCE, Site, serving

SECONDS = 3.0
GZIP = grpc.Compression.Gzip
MOST_MORE_BYTES = 32 << 20
MOST_MORE_FILES = 8
"""What a proxy in front may keep open, more or less."""


class Traffic:
    """One round of all peers until its time is over; each gives how many answers it got."""

    def __init__(self, site: Site, stamp: str, grpc_body: Path) -> None:
        self._site = site
        self._stamp = stamp
        self._grpc_body = grpc_body
        self._numbers = itertools.count()
        self._end = time.monotonic() + SECONDS

    def run(self) -> dict[str, int]:
        peers: list[Callable[[], int]] = [
            self.node,
            self.httpx,
            self.http1,
            self.http1,
            self.curl,
            self.calls,
            self.calls,
            self.inference,
            self.our_client,
            self.cancellers,
            self.leavers,
            self.h2load,
        ]
        with ThreadPoolExecutor(len(peers)) as threads:
            futures = [(peer.__name__, threads.submit(peer)) for peer in peers]
        return {name: future.result() for name, future in futures}

    def nonces(self, kind: str) -> Iterator[str]:
        """Texts that nobody else asks, some of them large, until the time is over."""
        while time.monotonic() < self._end:
            number = next(self._numbers)
            size = 100_000 if number % 50 == 0 else number % 7 * 100
            yield f"{self._stamp} {kind} {number} {'.' * size}"

    def node(self) -> int:
        told = self._site.for_script() | {"seconds": SECONDS, "stamp": self._stamp}
        ran = run("node", NODE / "mixed.js", json.dumps(told), timeout=SECONDS + 20)
        return int(ran.good())

    def httpx(self) -> int:
        url = f"http://127.0.0.1:{self._site.h2c}/echo/prediction"
        count = 0
        with httpx.Client(http1=False, http2=True, trust_env=False, timeout=20) as client:
            for nonce in self.nonces("httpx"):
                answer = client.post(url, json={"key": ["x"], "value": [nonce]})
                assert answer.json()["value"] == [nonce]
                count += 1
        return count

    def http1(self) -> int:
        count = 0
        line = HTTPConnection("127.0.0.1", self._site.http, timeout=20)
        for nonce in self.nonces("http1"):
            line.request("POST", "/echo/prediction", json.dumps({"key": ["x"], "value": [nonce]}))
            assert json.loads(line.getresponse().read())["value"] == [nonce]
            count += 1
        line.close()
        return count

    def curl(self) -> int:
        url = f"https://localhost:{self._site.tls}/echo/prediction"
        trust = ["--cacert", self._site.certificate]
        count = 0
        for nonce in self.nonces("curl"):
            body = json.dumps({"key": ["x"], "value": [nonce]}).encode()
            ran = run("curl", "-sS", *trust, "--data-binary", "@-", url, given=body)
            assert json.loads(ran.good())["value"] == [nonce]
            count += 1
        return count

    def calls(self) -> int:
        count = 0
        with grpc.insecure_channel(f"127.0.0.1:{self._site.kinds}") as channel:
            unary = channel.unary_unary("/peers.Kinds/Unary")
            bidi = channel.stream_stream("/peers.Kinds/Bidi")
            for nonce in self.nonces("calls"):
                data = nonce.encode()
                assert unary(data, timeout=20) == data
                pieces = [data[:1000], data[1000:], data[:10]]
                assert list(bidi(iter(pieces), timeout=20)) == pieces
                count += 2
        return count

    def inference(self) -> int:
        count = 0
        with grpc.insecure_channel(f"127.0.0.1:{self._site.rpc}") as channel:
            ask = channel.unary_unary(INFERENCE)
            for nonce in self.nonces("inference"):
                request = Request(name="echo", key=["x"], value=[nonce])
                data = request.SerializeToString()
                answer = Response.FromString(ask(data, timeout=20, compression=GZIP))
                assert answer.value == [nonce]
                count += 1
        return count

    def our_client(self) -> int:
        count = 0
        with PipelineClient() as client:
            client.connect([f"127.0.0.1:{self._site.rpc}"])
            for nonce in self.nonces("ours"):
                futures = [client.predict({"x": nonce + str(n)}, asyn=True) for n in range(4)]
                for number, future in enumerate(futures):
                    assert future.result().value == [nonce + str(number)]
                    count += 1
        return count

    def cancellers(self) -> int:
        count = 0
        with grpc.insecure_channel(f"127.0.0.1:{self._site.kinds}") as channel:
            stream = channel.unary_stream("/peers.Kinds/ServerStream")
            for _ in self.nonces("cancelled"):
                call = stream(b"50 1000", timeout=20)
                assert int(next(call).rstrip(b".")) == 0
                call.cancel()
                count += 1
        return count

    def leavers(self) -> int:
        count = 0
        dice = random.Random(1)
        body = b'{"key": ["x"], "value": ["leaver"]}'
        asked = b"POST /echo/prediction HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        asked = asked % len(body) + body
        greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)
        for _ in self.nonces("leaver"):
            port, data = dice.choice(
                [(self._site.http, asked), (self._site.kinds, greeting), (self._site.rpc, greeting)]
            )
            with socket.create_connection(("127.0.0.1", port)) as line:
                line.sendall(data[: dice.randrange(1, len(data) + 1)])
                if dice.random() < 0.5:  # with a reset instead of an orderly end
                    linger = struct.pack("ii", 1, 0)
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            count += 1
        return count

    def h2load(self) -> int:
        url = f"http://127.0.0.1:{self._site.rpc}{INFERENCE}"
        headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        out = run("h2load", "-n300", "-c3", "-m10", *headers, "-d", self._grpc_body, url).good()
        assert b"300 succeeded" in out, out.decode()
        return 300


def left(site: Site) -> tuple[int, int, int]:
    """Descriptors, threads and bytes of the service's two processes."""
    processes = [psutil.Process(site.server.pid), psutil.Process(site.kinds_pid)]
    files = sum(process.num_fds() for process in processes)
    threads = sum(process.num_threads() for process in processes)
    return files, threads, sum(process.memory_info().rss for process in processes)


def settled(site: Site, most: int | None = None) -> tuple[int, int, int]:
    """What is left once the descriptors are no more than ``most``, or no longer fall."""
    deadline = time.monotonic() + 5
    found = left(site)
    while time.monotonic() < deadline and (most is None or found[0] > most):
        time.sleep(0.2)
        before, found = found, left(site)
        if most is None and found[0] >= before[0]:
            break
    return found


@pytest.mark.timeout(90)
def test_no_answer_is_another_s_and_nothing_is_left_behind(tmp_path: Path) -> None:
    node_packages()
    message = Request(name="echo", key=["x"], value=["load"]).SerializeToString()
    body = tmp_path / "body"
    body.write_bytes(struct.pack("!BI", 0, len(message)) + message)
    with serving(tmp_path / "site") as site:
        Traffic(site, "first", body).run()
        first = settled(site)
        answered = Traffic(site, "second", body).run()
        second = settled(site, first[0] + MOST_MORE_FILES)
    print(answered, first, second)
    assert all(answered.values()), answered
    assert second[0] <= first[0] + MOST_MORE_FILES
    assert second[1] <= first[1] + 4
    assert second[2] <= first[2] + MOST_MORE_BYTES
