"""What the tests of the generators share."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest

from benchmarks.load import Report
from tests.benchmarks.fake_servers import Protocol, serving

RunMain = Callable[..., Awaitable[tuple[int, Report]]]


@pytest.fixture
def run_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunMain:
    """Runs a generator's ``main`` against a server; gives its exit status and its report."""

    async def run(
        main: Callable[[], int], server: Protocol, *options: object
    ) -> tuple[int, Report]:
        async with serving(server) as port:
            monkeypatch.setattr(sys, "argv", ["load", "--port", str(port), *map(str, options)])
            status = await asyncio.to_thread(main)
        return status, Report.from_json(capsys.readouterr().out)

    return run
