"""Seats against a fixed batch: texts of 8 to 256 tokens, 32 callers at once.

python -m benchmarks.seats

Prints tokens a second, and the time to the first token: with a fixed batch that of the whole text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

SERVER = Path(__file__).parent / "servers" / "seats.py"
CALLERS = 32
LENGTHS = (8, 16, 32, 64, 128, 256)


async def ask(port: int, path: str, length: int) -> tuple[int, float]:
    """The number of tokens of an answer, and the seconds until its first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"length": length}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    asked = time.perf_counter()
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = b""
    first = None
    while data := await reader.read(65536):
        answer += data
        if first is None and b'"token"' in answer:
            first = time.perf_counter() - asked
    writer.close()
    tokens = answer.count(b'"token"')
    if first is None or tokens != length:
        raise RuntimeError(f"{tokens} tokens of {length}: {answer[:200]!r}")
    return tokens, first


async def load(port: int, path: str, seconds: float) -> tuple[float, list[float]]:
    """Tokens a second, and the times to the first token."""
    choose = random.Random(7)
    began = time.perf_counter()
    tokens, firsts = 0, list[float]()

    async def call() -> None:
        nonlocal tokens
        while time.perf_counter() < began + seconds:
            made, first = await ask(port, path, choose.choice(LENGTHS))
            tokens += made
            firsts.append(first)

    await asyncio.gather(*[call() for _ in range(CALLERS)])
    return tokens / (time.perf_counter() - began), sorted(firsts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each of the two loads")
    seconds = parser.parse_args().seconds
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "penstock", "run", str(SERVER), "--set", f"http_port={port}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        for line in server.stdout:  # it has started when its last start line is there
            if "/batches" in line:
                break
        found = {path: asyncio.run(load(port, path, seconds)) for path in ("/seats", "/batches")}
    finally:
        server.terminate()
        server.wait()
    for path, (rate, firsts) in found.items():
        p95 = firsts[int(0.95 * len(firsts))]
        print(
            f"{path:<9} {rate:7.0f} tokens/s   first token: median {median(firsts):.3f} s,"
            f" 95 % {p95:.3f} s"
        )
    (seats, first), (batches, whole) = found["/seats"], found["/batches"]
    print(
        f"seats: {seats / batches:.2f} x the tokens, {median(first) / median(whole):.2f} x the time"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
