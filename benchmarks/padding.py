"""``python -m benchmarks --only padding``: a model server's modes on requests of different sizes.

The experiment of Paddle Serving's page on its asynchronous framework, made small: 1 to 70 clients,
each with one request in flight, a picture of one row whose sides differ by up to 50 in 224, here 12
in 56, through layers shaped like those of ResNet. Rows: each request by itself (sync), batches of
equal sizes (async), and batches of padded ones, by the policies ``fifo`` and ``learned``. Then 32
clients with one row each of two small models, one of which gains from batches, and with texts of 1
to 128 tokens.

The servers of all modes run on one core and are measured in turn for half a second each, forwards
and backwards, so that a machine whose speed changes treats them alike. A ratio is the median of
those to the first mode in the same turn. CPU time is the server's, for each answer. The clients
have another core. The plot is kept as ``padding.svg``.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.graphs import token_lists
from benchmarks.models import model_folder

NAME: Final = "padding"
CLIENTS: Final = (1, 5, 10, 20, 30, 40, 50, 70)
SIDE, SPREAD = 56, 12
_SLICE: Final = 0.5
"""Seconds of one measurement."""
_ASYNC: Final = ("--runtime_thread_num", "1")
_FIFO: Final = ("--policy", "fifo")
# The model averages over the picture, so that padding changes its answers.
_PADDED: Final = (*_ASYNC, "--pad", "--verify_batches", "off")
_LEARNED: Final = ("--policy", "learned")
MODES: Final = {
    "sync": ("--thread", "2"),
    "async": (*_ASYNC, *_FIFO),
    "async + padding": (*_PADDED, *_FIFO),
    "async, learned": (*_ASYNC, *_LEARNED),
    "async + padding, learned": (*_PADDED, *_LEARNED),
}
_ADDRESS = re.compile(r"http\S*127\.0\.0\.1:(\d+)")
_LENGTH: Final = re.compile(rb"(?i)\ncontent-length: *(\d+)")
_COLOURS = ("#555555", "#1f77b4", "#d62728", "#2ca02c", "#9467bd")


class Mode(NamedTuple):
    """What a mode reached with a number of clients.

    Attributes:
        rate: answers a second.
        ratio: of rates, to the first mode.
        cpu_us: CPU time of an answer.
    """

    rate: float
    ratio: float
    cpu_us: float


def main(turns: int, results: Path) -> int:
    """Measure, print the tables, and keep them with the plot."""
    cores = sorted(os.sched_getaffinity(0))
    with _servers("small-resnet", MODES, results, cores[0]) as servers:
        measured = {
            count: _compared(servers, "small-resnet", _pictures(), count, turns, cores[-1])
            for count in CLIENTS
        }
        filled = {mode: _filled_in(port) for mode, (port, _) in servers.items()}
    lines = ["Answers a second (ratio, CPU us):", ""]
    lines.append("| Clients | " + " | ".join(map(str, CLIENTS)) + " | filled in |")
    lines.append("| --- " * (len(CLIENTS) + 2) + "|")
    for mode in MODES:
        row = [_cell(measured[count][mode]) for count in CLIENTS]
        lines.append(f"| {mode} | " + " | ".join(row) + f" | {filled[mode]} |")
    numbers: list[NDArray[Any]] = [np.random.default_rng(1).random((1, 13), np.float32)]
    texts = [each[None] for each in token_lists()]
    lines += ["", "| 32 clients, one row each | answers/s (ratio, CPU us) |", "| --- | --- |"]
    for model, inputs, modes in (
        ("small-dense", numbers, ("async", "async, learned", "sync")),
        ("wide-dense", numbers, ("async", "async, learned", "sync")),
        ("reader", texts, ("sync", "async + padding", "async + padding, learned")),
    ):
        flags = {mode: MODES[mode] for mode in modes}
        with _servers(model, flags, results, cores[0]) as servers:
            found = _compared(servers, model, inputs, 32, turns, cores[-1])
        lines += [f"| {model}, {mode} | {_cell(found[mode])} |" for mode in modes]
    text = "\n".join(lines) + "\n"
    (results / "padding.md").write_text(text, encoding="utf-8")
    rates = {mode: [measured[count][mode].rate for count in CLIENTS] for mode in MODES}
    (results / "padding.svg").write_text(plot(rates), encoding="utf-8")
    print(text)
    return 0


def _cell(mode: Mode) -> str:
    return f"{mode.rate:.0f} ({mode.ratio:.2f}, {mode.cpu_us:.0f})"


def _compared(
    servers: Mapping[str, tuple[int, int]],
    model: str,
    inputs: list[NDArray[Any]],
    clients: int,
    turns: int,
    core: int,
) -> dict[str, Mode]:
    """Every mode with so many clients, in turn."""
    taken: dict[str, list[tuple[float, float]]] = {mode: [] for mode in servers}
    for turn in range(-1, turns):  # the first one is a warm-up
        for mode in [*servers] if turn % 2 else reversed([*servers]):
            port, process = servers[mode]
            before = _cpu_seconds(process)
            rate = _rate(port, model, inputs, clients, _SLICE, core)
            cpu = _cpu_seconds(process) - before
            if turn >= 0:
                taken[mode].append((rate, 1e6 * cpu / max(1.0, rate * _SLICE)))
    first = [rate for rate, _ in next(iter(taken.values()))]
    return {
        mode: Mode(
            median(rate for rate, _ in found),
            median(rate / one for (rate, _), one in zip(found, first, strict=True)),
            median(cpu for _, cpu in found),
        )
        for mode, found in taken.items()
    }


def plot(rates: dict[str, list[float]]) -> str:
    """Answers a second by clients, as SVG."""
    width, height, left, bottom = 640, 400, 60, 40
    top = max(max(row) for row in rates.values()) or 1.0
    across = (width - left - 20) / CLIENTS[-1]
    up = (height - bottom - 30) / top
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{left} 20V{height - bottom}H{width - 20}" fill="none" stroke="black"/>',
        f'<text x="{left}" y="14">answers a second</text>',
        f'<text x="{width - 70}" y="{height - 8}">clients</text>',
    ]
    for count in CLIENTS:
        parts.append(
            f'<text x="{left + count * across:.0f}" y="{height - bottom + 16}"'
            f' text-anchor="middle">{count}</text>'
        )
    for step in range(5):
        value = top * step / 4
        parts.append(
            f'<text x="{left - 6}" y="{height - bottom - value * up + 4:.0f}"'
            f' text-anchor="end">{value:.0f}</text>'
        )
    for index, (mode, row) in enumerate(rates.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        points = " ".join(
            f"{left + count * across:.1f},{height - bottom - rate * up:.1f}"
            for count, rate in zip(CLIENTS, row, strict=True)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(
            f'<text x="{width - 150}" y="{height - bottom - 60 + 16 * index}" fill="{colour}">'
            f"{mode}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def _pictures() -> list[NDArray[Any]]:
    random = np.random.default_rng(45)
    sides = random.integers(SIDE - SPREAD, SIDE + SPREAD + 1, (64, 2))
    return [np.ones((1, 3, height, width), np.float32) for height, width in sides.tolist()]


def _request(port: int, model: str, array: NDArray[Any]) -> bytes:
    """A request of the Open Inference Protocol, with a binary tensor both ways."""
    tensor = {
        "name": "x" if array.dtype == np.float32 else "tokens",
        "shape": list(array.shape),
        "datatype": "FP32" if array.dtype == np.float32 else "INT64",
        "parameters": {"binary_data_size": array.nbytes},
    }
    inner = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"content-length: {len(inner) + array.nbytes}\r\n"
        f"inference-header-content-length: {len(inner)}\r\n\r\n"
    )
    return head.encode() + inner + array.tobytes()


@contextmanager
def _servers(
    model: str, modes: Mapping[str, Sequence[str]], cache: Path, core: int
) -> Iterator[dict[str, tuple[int, int]]]:
    """A server for each mode: its port and its process."""
    with ExitStack() as stack:
        yield {
            mode: stack.enter_context(_server(model, flags, cache, core))
            for mode, flags in modes.items()
        }


@contextmanager
def _server(model: str, flags: Sequence[str], cache: Path, core: int) -> Iterator[tuple[int, int]]:
    path = model_folder(model, cache)
    command = [sys.executable, "-m", "penstock", "serve", "--model", f"{model}={path}", *flags]
    with subprocess.Popen(
        [*command, "--port", "0", "--log-level", "warning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    ) as process:
        try:
            assert process.stdout is not None
            output: list[str] = []
            for line in process.stdout:
                output.append(line)
                if match := _ADDRESS.search(line):
                    break
            else:
                raise RuntimeError("the model server does not start: " + "".join(output))
            _await_ready(int(match[1]))
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield int(match[1]), process.pid
        finally:
            process.terminate()


def _cpu_seconds(process: int) -> float:
    """Of all its threads, in the scheduler's nanoseconds."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks) / 1e9


def _await_ready(port: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()
    raise RuntimeError("the model server does not become ready")


def _rate(
    port: int, model: str, arrays: list[NDArray[Any]], clients: int, seconds: float, core: int
) -> float:
    """Answers a second to ``clients`` clients, each with one request in flight."""
    os.sched_setaffinity(0, {core})
    requests = [_request(port, model, each) for each in arrays]
    return asyncio.run(_answered(port, requests, clients, seconds)) / seconds


async def _answered(port: int, requests: list[bytes], clients: int, seconds: float) -> int:
    count = 0
    until = time.monotonic() + seconds

    async def client(index: int) -> None:
        nonlocal count
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        number = index
        while time.monotonic() < until:
            writer.write(requests[number % len(requests)])
            number += clients + 1
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            assert length is not None
            text = await reader.readexactly(int(length[1]))
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(text[:200])
            count += time.monotonic() < until
        writer.close()

    await asyncio.gather(*map(client, range(clients)))
    return count


def _filled_in(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/status")
    report = json.load(connection.getresponse())
    connection.close()
    (op,) = report["graphs"][0]["ops"]
    share = op["filled_in"] / op["elements"] if op["elements"] else 0.0
    return f"{100 * share:.0f} %"
