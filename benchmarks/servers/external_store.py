"""Two ops in processes of their own, which are not the engine's children in shared memory: a value
of the wanted size goes from the first to the second. With STORE an external store carries it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import numpy as np

from penstock import Service, op
from penstock.executors.elsewhere.executor import ElsewhereExecutor
from penstock.executors.elsewhere.opening import Opening
from penstock.executors.kinds import ExecutorKind, register


class Subprocess:
    """A worker; see ``penstock.executors.elsewhere.executor.Started``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.where = f"pid {process.pid}"

    async def ended(self) -> str:
        """See Started."""
        return f"exit status {await self._process.wait()}"

    def kill(self) -> None:
        """See Started."""
        if self._process.returncode is None:
            self._process.kill()


async def _start(opening: Opening) -> Subprocess:
    command = [sys.executable, "-m", "penstock.executors.elsewhere"]
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(opening.encode())
    process.stdin.close()
    return Subprocess(process)


register(
    ExecutorKind(
        name="subprocess", make=lambda spec: ElsewhereExecutor(spec, _start), elsewhere=True
    )
)


@op(executor="subprocess")
def make(request: dict[str, Any]) -> dict[str, Any]:
    """An array of so many bytes."""
    return {"x": np.ones(request["bytes"], np.uint8)}


@op(make, executor="subprocess")
def size(made: dict[str, Any]) -> dict[str, Any]:
    """Its size."""
    return {"bytes": int(made["x"].nbytes)}


store = os.environ.get("STORE")
dag = {"external_store": store, "external_store_options": {"min_bytes": 1}} if store else {}
Service("sizes", size, http_port=0, dag=dag).run()
