"""How a worker opens its op, as plain data, and runs the program again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.executors.elsewhere.listener import Listener
from penstock.executors.elsewhere.opening import VARIABLE, Opening, Program
from penstock.executors.executor import OpSource

AGAIN = "import json, os, sys; print(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]))"


def opening(folder: Path, **more: object) -> Opening:
    program = Program(
        arguments=("-c", AGAIN, "one"), folder=str(folder), variables={"PENSTOCK_NAME": "set"}
    )
    source = OpSource(op="work", description={"name": "a", "version": "2"})
    engine = {"index": 1, "engines": 2}
    given = {"service": 2, "engine": engine, "source": source, "index": 3, **more}
    return Opening(program=program, **given)  # type: ignore[arg-type]


def test_it_is_the_same_after_its_encoding(tmp_path: Path) -> None:
    first = opening(tmp_path, host="127.0.0.1", port=5, token="secret")
    again = Opening.decode(first.encode())
    assert again.encode() == first.encode()
    assert again.source == first.source
    assert again.program.variables == {"PENSTOCK_NAME": "set"}


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"program": {}}', b'{"program": {"x": 1}}'])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"opening|Expecting"):
        Opening.decode(data)


@pytest.mark.real
async def test_a_worker_connects_and_runs_the_program_again_with_its_role(tmp_path: Path) -> None:
    import asyncio

    listener = Listener("work", "127.0.0.1", asyncio.get_running_loop())
    token, connected = listener.expect()
    given = opening(tmp_path, host=listener.host, port=listener.port, token=token)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock.executors.elsewhere"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate(given.encode())
    arguments, folder, variables = json.loads(output)
    assert arguments == ["-c", "one"]
    assert folder == os.path.realpath(tmp_path)
    assert variables["PENSTOCK_NAME"] == "set"
    role = json.loads(variables[VARIABLE])
    assert role["pid"] == process.pid
    assert (role["service"], role["source"]["op"], role["index"]) == (2, "work", 3)
    assert role["engine_id"] == {"index": 1, "engines": 2}
    assert token not in output.decode()
    link = await connected
    link.close()
    listener.close()
