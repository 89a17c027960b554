"""What the process that talks to Ray says, and the actor: without Ray."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from penstock.executors.elsewhere.opening import Opening
from penstock.executors.ray import actor
from penstock.executors.ray.actor import Host
from penstock.executors.ray.holder import NoPlaceError, check_keys, is_there, missing, reason
from penstock.version import VERSION
from tests.executors.elsewhere.workers import OPENING

NODE = {"id": "ab", "address": "127.0.0.1", "host": "one"}


@pytest.mark.parametrize(
    ("wants", "expected"),
    [
        ({"CPU": 1, "GPU": 0}, "no place in the cluster: it wants 1 CPU (0.5 of 3 are free)"),
        ({"CPU": 0.5, "GPU": 1}, "0.5 CPU (0.5 of 3 are free) and 1 GPU (0 of 1 are free)"),
        ({"CPU": 3}, "it wants 3 CPU (0.5 of 3 are free), which no node has"),
        ({"CPU": 2, "GPU": 1}, "1 GPU (0 of 1 are free), which no node has"),
        ({"odd": 1}, "it wants 1 odd (0 of 0 are free), which no node has"),
    ],
)
def test_what_is_missing(wants: dict[str, float], expected: str) -> None:
    nodes = [{"CPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}]
    found = missing(wants, [{"CPU": 0.5}, {}], nodes)
    assert found.text.endswith(expected)
    assert found.possible is not expected.endswith("no node has")
    assert found.wants is wants


def test_a_worker_for_which_there_is_room_is_only_slow() -> None:
    text = "Ray has not started it yet: it wants 0.5 CPU (0.5 of 1 are free)"
    assert missing({"CPU": 0.5, "GPU": 0}, [{"CPU": 0.5}], [{"CPU": 1.0}]).text == text
    assert missing({"CPU": 0}, [{}], [{}]).text == "Ray has not started it yet: it wants nothing"
    assert missing({"CPU": 0.6}, [{"CPU": 0.5}], [{"CPU": 1.0}]).text.startswith("it has no place")


def test_what_is_free_on_several_nodes_is_no_place_on_one() -> None:
    nodes = [{"CPU": 2.0}] * 3
    found = missing({"CPU": 2}, [{"CPU": 1.9}, {"CPU": 1.9}, {"CPU": 1.8}], nodes)
    assert found.text == (
        "it has no place in the cluster: it wants 2 CPU (5.6 of 6 are free),"
        " but not together on one node"
    )
    assert found.possible
    assert missing({"CPU": 3}, nodes, nodes).text.endswith(", which no node has")
    apart = missing({"CPU": 1, "GPU": 1}, [{"CPU": 1}, {"GPU": 1}], [{"CPU": 1, "GPU": 1}] * 2)
    assert apart.text.endswith("but not together on one node")


def test_an_error_of_ray_is_one_line() -> None:
    stack = "ray::Host.begin()\nTraceback (most recent call last):\n  File 'x'\nOSError: no file"
    assert reason(RuntimeError(stack)) == "RuntimeError: OSError: no file"
    assert reason(RuntimeError("Version mismatch:\n    Ray: 1\n\n    Ray: 2")) == (
        "RuntimeError: Version mismatch: Ray: 1 Ray: 2"
    )
    assert reason(NoPlaceError("it has no place")) == "it has no place"
    caused = RuntimeError("outer")
    caused.cause = OSError("inner")  # type: ignore[attr-defined]
    assert reason(caused) == "OSError: inner"
    hidden = ConnectionError("Failed to connect")
    hidden.__cause__ = RuntimeError(stack)
    assert reason(hidden) == "ConnectionError: Failed to connect: RuntimeError: OSError: no file"


def test_a_cause_that_the_error_repeats_is_told_once() -> None:
    error = RuntimeError("Failed to upload: Package size exceeds")
    error.__cause__ = ValueError("Package size exceeds")
    assert reason(error) == "RuntimeError: Failed to upload: Package size exceeds"


def test_keys_of_runtime_env_that_ray_ignores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_keys({"working_dir": ".", "env_vars": {}, "pip": []})
    with pytest.raises(ValueError, match=r"unknown keys: workin_dir; Ray has .*working_dir"):
        check_keys({"workin_dir": "."})
    monkeypatch.setenv("RAY_RUNTIME_ENV_PLUGINS", "[]")
    check_keys({"workin_dir": "."})


def test_a_head_that_is_not_there_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        is_there(address)
    with pytest.raises(OSError, match=f"nothing answers at {address}: .*refused"):
        is_there(address)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    is_there("auto")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(OSError, match="nothing answers"):
        is_there("auto")


def test_a_node_with_another_version_is_refused() -> None:
    with pytest.raises(RuntimeError, match=rf"the node has Penstock {VERSION}, the service 9"):
        Host("9")


@contextmanager
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Opening, socket.socket]]:
    """What a worker is to connect to."""
    monkeypatch.setattr(actor, "_node", lambda: NODE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        yield replace(OPENING, host=host, port=port, output_token="secret"), server


def output_of(server: socket.socket) -> str:
    link, _ = server.accept()
    with link, link.makefile("rb") as file:
        return file.read().decode()


@pytest.mark.real
def test_the_worker_of_an_actor_ends_with_an_error_or_a_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = threading.Event().set  # the end of an actor would be that of this process
    with engine(monkeypatch) as (opening, server):
        host = Host(VERSION, left)
        wrong = replace(opening, program=replace(opening.program, folder="/no/such/folder"))
        begun = host.begin(wrong.encode().decode(), False)
        where = begun["where"]
        assert begun["node"] == NODE
        assert where.startswith("node ab at 127.0.0.1, pid ")
        output = output_of(server)
        assert host.wait() == "exit status 1"
        assert output.startswith(f"secret{where}\nTraceback")
        assert output.endswith("No such file or directory: '/no/such/folder'\n")
        other = Host(VERSION, left)
        monkeypatch.setattr(actor, "_COMMAND", ("sleep", "60"))
        other.begin(opening.encode().decode(), False)
        other.kill()
        assert other.wait() == "signal SIGKILL"
        lost = Host(VERSION, left)
        monkeypatch.setattr(actor, "_COMMAND", ("/no/such/program",))
        with pytest.raises(OSError, match="No such file"):
            lost.begin(opening.encode().decode(), False)


@pytest.mark.real
def test_an_actor_that_nobody_ends_ends_after_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    left = threading.Event()
    with engine(monkeypatch) as (opening, _):
        monkeypatch.setattr(actor, "_COMMAND", ("true",))
        host = Host(VERSION, left.set, 0.0)
        host.begin(opening.encode().decode(), False)
        assert host.wait() == "exit status 0"
        assert left.wait(30.0)


def test_a_node_that_cannot_reach_the_service_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(monkeypatch) as (opening, _):
        pass
    text = (
        f"node ab at 127.0.0.1 cannot connect to the service at 127.0.0.1:{opening.port}: .*refused"
    )
    with pytest.raises(OSError, match=text):
        Host(VERSION, print).begin(opening.encode().decode(), False)


PARENT = """
import os, subprocess, sys
command = [sys.executable, "-m", "penstock.executors.elsewhere", "--with-parent", str(os.getpid())]
child = subprocess.Popen(command, stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.real
def test_a_worker_ends_with_its_actors_process() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        import psutil

        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert psutil.wait_procs([child], 30)[1] == []
