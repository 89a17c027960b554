"""A service whose cluster has a node on another machine, which is cut off; run by test_cluster.py,
where there is no network but this file's: two namespaces with one cable between them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.executors.ray.inside_cluster import SCRIPT, answer, both_back, loaded, op_of
from tests.kit.ray_cluster import PORT, Cluster, cluster
from tests.service.scripts import BackgroundCall, post, until
from tests.services.process import ServiceProcess, running

HERE: Final = "10.99.0.1"
FAR: Final = "10.99.0.2"
# The other machine has a folder of its own for what Ray writes.
ON_THE_OTHER_MACHINE: Final = f"""
mount -t tmpfs none /tmp/ray && read -r cable && ip link set lo up &&
ip address add {FAR}/24 dev far && ip link set far up && exec "$@"
"""


def ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, timeout=30)


@contextmanager
def two_machines() -> Iterator[tuple[Cluster, psutil.Process]]:
    """A cluster with a node of one CPU here, and one on another machine; and that node's first
    process. The cable's end here is ``here``.
    """
    Path("/tmp/ray").mkdir(exist_ok=True)
    ip("link", "add", "here", "type", "veth", "peer", "name", "far")
    ip("address", "add", f"{HERE}/24", "dev", "here")
    ip("link", "set", "here", "up")
    program = (sys.executable, "-m", "tests.kit.ray_cluster", "--join", f"{HERE}:{PORT}", FAR)
    other = ("unshare", "--net", "--mount", "sh", "-c", ON_THE_OTHER_MACHINE, "sh", *program)
    with (
        cluster(nodes=1, head=HERE, nodes_at=HERE) as ray,
        subprocess.Popen(other, stdin=subprocess.PIPE, text=True) as far,
    ):
        ours = os.readlink("/proc/self/ns/net")
        until(lambda: os.readlink(f"/proc/{far.pid}/ns/net") != ours, "the other machine")
        ip("link", "set", "far", "netns", str(far.pid))
        assert far.stdin is not None
        far.stdin.write("it is there\n")
        far.stdin.flush()
        yield ray, psutil.Process(far.pid)
        left = psutil.Process(far.pid).children(recursive=True)
        far.stdin.close()
        far.wait(60)
        assert psutil.wait_procs(left, 60)[1] == []


def actor_of(node: psutil.Process) -> psutil.Process:
    """The one actor on a node."""

    def find() -> list[psutil.Process]:
        found = []
        for each in node.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "ray::Host" in each.name() or "ray::Host" in "".join(each.cmdline()):
                    found.append(each)
        return found

    until(lambda: len(find()) == 1, "the actor", timeout=60)
    return find()[0]


def has_ended(process: psutil.Process) -> bool:
    """Also if nobody has waited for it: its parent may have ended before it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def addresses(server: ServiceProcess) -> set[str]:
    return {each["where"].split()[3].strip(",") for each in loaded(server)}


def call(server: ServiceProcess, number: int) -> dict[str, Any]:
    return post(server, timeout=120, x=str(number), wait="0.2").json


@pytest.mark.timeout(600)
def test_a_node_that_is_cut_off_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "service.py"
    path.write_text(SCRIPT)
    environment = {"RAY_ADDRESS": f"{HERE}:{PORT}"}
    with (
        two_machines() as (ray, far),
        running(path, environment=environment, timeout=120) as server,
    ):
        assert addresses(server) == {HERE, FAR}
        (gone,) = [each["pid"] for each in loaded(server) if FAR in each["where"]]
        actor, worker = actor_of(far), psutil.Process(gone)
        before = op_of(server)

        # Shorter than our limits, and than Ray's: it is only slow.
        calls = [BackgroundCall(partial(call, server, number)) for number in range(10)]
        ip("link", "set", "here", "down")
        until(lambda: sum(each.is_over for each in calls) >= 5, "answers from here", timeout=60)
        ip("link", "set", "here", "up")
        assert {each.result(120)["err_no"] for each in calls} == {0}
        assert op_of(server)["deaths"] == before["deaths"]
        assert not has_ended(worker)

        calls = [BackgroundCall(partial(call, server, number)) for number in range(20)]
        ip("link", "set", "here", "down")
        cut = time.monotonic()
        until(lambda: op_of(server)["deaths"] > before["deaths"], "its loss", timeout=120)
        print(f"its worker is given up after {time.monotonic() - cut:.0f} s")
        ray.add()
        until(lambda: FAR not in addresses(server), "the end of its place", timeout=120)
        both_back(server)
        print(f"another one is there after {time.monotonic() - cut:.0f} s")
        for number, each in enumerate(calls):
            reply = each.result(120)
            assert reply["err_no"] == 0, reply
            answers = dict(zip(reply["key"], reply["value"], strict=True))
            assert float(answers["x"].strip("[]")) == 2 * number
            assert answers["pid"] != str(gone) or number < 10
        assert addresses(server) == {HERE}

        ip("link", "set", "here", "up")
        back = time.monotonic()
        until(lambda: has_ended(worker), "the end of its worker", timeout=120)
        print(f"its worker ended {time.monotonic() - back:.0f} s after it was back")
        until(lambda: has_ended(actor), "the end of its actor", timeout=120)
        print(f"its actor ended {time.monotonic() - back:.0f} s after it was back")
        assert answer(server, x="1")["x"] == "[2.]"
        assert op_of(server)["deaths"] == before["deaths"] + 1, "nothing came from it any more"
        assert server.stop() == 0
        assert server.leftovers() == []
