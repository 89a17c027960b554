"""The demo: starts the service, reads every picture over HTTP and gRPC in turn, and stops it.

What it prints: the lines of every picture with confidence and box, the time each op took, and
what bad input gets. The pictures, with the boxes drawn in, are left in ``.demo`` in the
repository's root, beside the service's log.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc_client
import http_client
from pictures import BLANK, NOT_A_PICTURE, TOO_LARGE, draw_pictures
from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parents[1] / ".demo"
READY_SECONDS = 60
STOP_SECONDS = 20

Ask = Callable[[bytes], tuple[int, str, dict[str, str]]]
Line = dict[str, Any]


class DemoFailed(Exception):
    """Something did not go as it must; the text says what."""


def main() -> int:
    # The service is on this machine; a proxy, if there is one, cannot reach it.
    os.environ["no_proxy"] = ",".join(filter(None, [os.environ.get("no_proxy"), "127.0.0.1"]))
    # Recognised text may hold square brackets, which are no markup.
    console = Console(markup=False, highlight=False)
    pictures = draw_pictures(OUTPUT / "pictures")
    bad = [OUTPUT / "pictures" / name for name in (BLANK, NOT_A_PICTURE, TOO_LARGE)]
    http_port, rpc_port = free_ports()
    doors: list[tuple[str, Ask]] = [
        ("HTTP", lambda p: http_client.ask(p, f"http://127.0.0.1:{http_port}/ocr/prediction")),
        ("gRPC", lambda p: grpc_client.ask(p, f"127.0.0.1:{rpc_port}")),
    ]
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    try:
        with service(console, http_port, rpc_port) as process:
            for turn, path in enumerate(pictures):
                door, ask = doors[turn % 2]
                show_picture(console, path, door, ask, times)
            console.print(times_table(times))
            console.print(bad_input_table(bad, doors))
            stop(console, process)
    except DemoFailed as error:
        console.print(f"The demo failed: {error}", style="bold red")
        return 1
    console.print(f"The pictures with their boxes are in {OUTPUT}")
    return 0


def free_ports() -> tuple[int, int]:
    """Two ports that nobody listens on."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


@contextmanager
def service(console: Console, http_port: int, rpc_port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The service as a process, ready to be asked; ended in any case when the block is left."""
    command = [sys.executable, "-m", "penstock", "run", "ocr_service.py"]
    ports = {"PENSTOCK_HTTP_PORT": str(http_port), "PENSTOCK_RPC_PORT": str(rpc_port)}
    log_path = OUTPUT / "service.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=HERE, env=os.environ | ports, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            with console.status("starting the service and loading three models"):
                began = time.monotonic()
                wait_ready(process, f"http://127.0.0.1:{http_port}/readyz", log_path)
            console.print(f"The service is ready after {time.monotonic() - began:.1f} s")
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Return when the service says that it is ready."""
    deadline = time.monotonic() + READY_SECONDS
    while not answers(url):
        if time.monotonic() > deadline:
            raise DemoFailed(f"the service was not ready within {READY_SECONDS} s, see {log}")
        try:
            # The pause between two looks ends at once when the service ends.
            code = process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        raise DemoFailed(f"the service ended with {code} before it was ready, see {log}")


def answers(url: str) -> bool:
    """Whether the URL answers 200 at this moment."""
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def show_picture(
    console: Console, path: Path, door: str, ask: Ask, times: dict[tuple[str, str], list[float]]
) -> None:
    """Ask for one picture and print what was found."""
    began = time.perf_counter()
    err_no, err_msg, values = ask(path.read_bytes())
    elapsed = (time.perf_counter() - began) * 1000
    if err_no:
        raise DemoFailed(f"{path.name} over {door}: error {err_no}: {err_msg}")
    lines: list[Line] = json.loads(values["result"])
    if not lines:
        raise DemoFailed(f"{path.name} over {door}: no line was found")
    for op, hooks in json.loads(values["times"]).items():
        for hook, milliseconds in hooks.items():
            times[op, hook].append(milliseconds)
    draw_boxes(path, lines)
    table = Table(title=f"{path.name}, over {door} in {elapsed:.0f} ms", title_justify="left")
    table.add_column("text", overflow="fold")
    table.add_column("confidence", justify="right")
    table.add_column("box")
    for line in lines:
        corners = " ".join(f"{x:.0f},{y:.0f}" for x, y in line["box"])
        table.add_row(line["text"], f"{line['confidence']:.3f}", corners)
    console.print(table)


def draw_boxes(path: Path, lines: list[Line]) -> None:
    """Save the picture with the boxes drawn in."""
    picture = Image.open(path).convert("RGB")
    pen = ImageDraw.Draw(picture)
    for line in lines:
        corners = [tuple(corner) for corner in line["box"]]
        pen.line([*corners, corners[0]], fill="red", width=2)
    picture.save(OUTPUT / f"{path.stem}_boxes.png")


def times_table(times: dict[tuple[str, str], list[float]]) -> Table:
    """Mean milliseconds per op and hook."""
    ops = list(dict.fromkeys(op for op, _ in times))
    hooks = list(dict.fromkeys(hook for _, hook in times))
    pictures = max(map(len, times.values()))
    table = Table(title=f"Mean time per op over {pictures} pictures, in ms", title_justify="left")
    table.add_column("op")
    for hook in (*hooks, "together"):
        table.add_column(hook, justify="right")
    for op in ops:
        means = [sum(times[op, hook]) / len(times[op, hook]) for hook in hooks]
        table.add_row(op, *(f"{mean:.1f}" for mean in (*means, sum(means))))
    return table


def bad_input_table(paths: list[Path], doors: list[tuple[str, Ask]]) -> Table:
    """What pictures without text, and files that are no pictures, get over each door."""
    table = Table(title="Bad input", title_justify="left")
    for column in ("file", "over", "err_no", "answer"):
        table.add_column(column, overflow="fold")
    for path in paths:
        for door, ask in doors:
            err_no, err_msg, values = ask(path.read_bytes())
            answer = err_msg if err_no else f"result {values['result']}"
            table.add_row(path.name, door, str(err_no), answer)
            if bool(err_no) == (path.name == BLANK):
                raise DemoFailed(f"{path.name} over {door} was answered with {err_no}: {answer}")
    return table


def stop(console: Console, process: subprocess.Popen[bytes]) -> None:
    """Ask the service to end, as an operator would, and check that it does so cleanly."""
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise DemoFailed(f"the service did not end within {STOP_SECONDS} s") from error
    if code != 0:
        raise DemoFailed(f"the service ended with exit status {code}")
    console.print("The service ended with exit status 0 after SIGTERM")


if __name__ == "__main__":
    sys.exit(main())
