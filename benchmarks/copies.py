"""How often an array of 5 MiB is copied on its way from one op to the next: counted, not timed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.echoes import echo_json
from benchmarks.processes import BenchmarkError, Server, ask_http, two_cores
from benchmarks.scenario import Contender

REQUESTS = 5


IN_PLACE = "process, in place"
"""An op in a process that writes its array where the next one reads it."""


def count_copies(executor: str, folder: Path) -> float:
    """Copies into shared memory for each request, in a graph where one op hands on to another.

    Args:
        executor: where both ops run, or ``IN_PLACE``. Those in threads share what they hand on.
        folder: for the server's files.

    Raises:
        BenchmarkError: the server does not start, or answers wrongly.
    """
    more = ["--in-place"] if executor == IN_PLACE else []
    executor = executor.split(",")[0]
    folder = folder / f"copies-{executor}{''.join(more)}"
    folder.mkdir(parents=True, exist_ok=True)
    noted = folder / "copies"
    noted.write_bytes(b"")
    options = ("--executor", executor, "--ops", "2", "--every-core", "--copies", str(noted), *more)
    contender = Contender(name="copies", server="penstock_arrays", options=options)
    with Server(contender, two_cores()[0], folder, folder) as server:
        server.wait_until_ready()
        for _ in range(REQUESTS):
            ask_http(server.http_port, "/echo/prediction", echo_json())
    return noted.stat().st_size / REQUESTS


def count_all(executors: Sequence[str], folder: Path) -> tuple[dict[str, float], list[str]]:
    """The copies by executor, and why some could not be counted."""
    copies: dict[str, float] = {}
    failures = []
    for executor in executors:
        try:
            copies[executor] = count_copies(executor, folder)
        except (BenchmarkError, OSError) as error:
            failures.append(f"copies, {executor}: {error}")
    return copies, failures
