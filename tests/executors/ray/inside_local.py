"""A service that starts a cluster of Ray for itself; run by test_cluster.py, where there is only
the loopback.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.peers.browser import browsing
from tests.service.scripts import fetch, until
from tests.services.process import running

SCRIPT = """
import os
from penstock import App

app = App("work")

@app.route("/shout", executor="ray", ray={"num_cpus": 0.5})
def shout(line: str) -> tuple[str, int]:
    return line.upper(), os.getpid()

@app.route("/plain")
def plain(line: str) -> int:
    return os.getpid()

@app.route("/double", executor="ray", ray={"num_cpus": 0.5})
def double(line: str) -> str:
    return 2 * line
"""
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
RAY = ("raylet", "gcs_server")


def op_reports(url: str) -> list[dict[str, Any]]:
    return [op for graph in fetch(f"{url}/status").json["graphs"] for op in graph["ops"]]


@pytest.fixture(scope="module", autouse=True)
def _other_address() -> None:
    """The machine has an address of its own, at which nothing may listen."""
    for command in ("addr add 192.0.2.1/32 dev lo", "route add default dev lo src 192.0.2.1"):
        subprocess.run(["ip", *command.split()], check=True)


@pytest.mark.timeout(200)
def test_an_app_needs_no_cluster_and_leaves_none_behind(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(SCRIPT)
    command = (sys.executable, "-m", "penstock", "run")
    with running(path, command=command, timeout=120) as server:
        url = server.http_url
        line, pid = fetch(f"{url}/shout", b'{"line": "abc"}').json
        assert line == "ABC"
        assert fetch(f"{url}/double", b'{"line": "abc"}').json == "abcabc"
        assert pid != fetch(f"{url}/plain", b'{"line": "abc"}').json == server.pid
        of_ray = [each for each in server.descendants() if each.name() in RAY]
        assert len(of_ray) == 2, "the ops share one cluster"
        listening = {
            (each.laddr.ip, process.name())
            for process in server.descendants()
            for each in process.net_connections("inet")
            if each.status == psutil.CONN_LISTEN
        }
        assert {"gcs_server", "raylet"} <= {name for _, name in listening}
        assert {address for address, _ in listening} <= LOOPBACK, listening
        ops = {each["name"].rpartition("/")[2]: each for each in op_reports(url)}
        (place,) = ops["shout"]["places"]
        assert (place["state"], place["pid"], place["why"]) == ("running", pid, "")
        assert place["node"]["address"] == "127.0.0.1"
        assert place["where"] == f"node {place['node']['id']} at 127.0.0.1, pid {pid}"
        assert ops["plain"].get("places") is None
        assert f'node="{place["node"]["host"]}"' in fetch(f"{url}/metrics").body.decode()
        assert server.stop() == 0
        assert server.leftovers(20.0) == []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_ops_are_back_after_the_end_of_the_process_that_talks_to_ray(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(SCRIPT)
    command = (sys.executable, "-m", "penstock", "run")
    with running(path, command=command, timeout=120) as server:
        url = server.http_url
        _, pid = fetch(f"{url}/shout", b'{"line": "abc"}').json
        everyone = server.descendants()
        (holder,) = [each for each in everyone if "penstock.executors.ray.holder" in each.cmdline()]
        of_ray = [each for each in everyone if each.name() in RAY]
        holder.kill()
        until(lambda: not psutil.pid_exists(pid), "the end of the worker", timeout=60)
        assert psutil.wait_procs(of_ray, 60)[1] == []
        assert fetch(f"{url}/shout", b'{"line": "abc"}', timeout=120).json[0] == "ABC"
        assert "the process that talks to Ray on this machine ended: status -9" in server.log()
        assert server.stop() == 0
        assert server.leftovers(90.0) == [], "Ray's agents wait for a while"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_live_page_shows_the_node_of_a_worker_and_its_loss(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(SCRIPT)
    command = (sys.executable, "-m", "penstock", "run")
    with running(path, command=command, timeout=120) as server, browsing(tmp_path) as page:
        url = server.http_url
        _, pid = fetch(f"{url}/shout", b'{"line": "abc"}').json
        page.open(f"{url}/ui")
        row = (
            "[...document.querySelectorAll('#places tr')].find((x) => x.textContent.includes('{}'))"
        )
        page.until(f"document.body && ({row.format(f'shout 0, pid {pid}')}) !== undefined")
        (place,) = (
            each for op in op_reports(url) for each in op.get("places", ()) if each["pid"] == pid
        )
        assert place["node"]["host"] in page.evaluate(f"{row.format(pid)}.textContent")
        os.kill(pid, signal.SIGKILL)
        page.until("document.querySelector('#places li')?.textContent.includes('back after')")
        assert "signal SIGKILL" in page.evaluate("byId('places').textContent")
        page.until(f"({row.format(pid)}) === undefined")
        assert page.console_errors == []
        assert server.stop() == 0


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_worker_without_room_is_an_error_that_says_what_is_free(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(SCRIPT.replace('{"num_cpus": 0.5}', '{"num_cpus": 0, "resources": {"odd": 2}}'))
    command = (sys.executable, "-m", "penstock", "run")
    with running(path, command=command, ready=False) as server:
        assert server.wait_exit(120) == 1, "long before start_timeout"
        assert "worker 0 cannot be started: it has no place in the cluster" in server.log()
        text = "it wants 2 odd (0 of 0 are free), which no node has"
        assert text in server.log()
        assert server.leftovers(20.0) == []
