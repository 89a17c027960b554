"""A reload of a service's code, by ``penstock reload`` and SIGHUP: with whole services.

``tests.faults.test_exactly_one_end`` reloads under load.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.security.keys import line_of
from tests.service.scripts import BackgroundCall, fetch, post, script, until
from tests.service.test_run_engines import TWO
from tests.services.process import ServiceProcess, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

HOOKS = """
def process(self, feed_batch, typical_logid):
    import os, pathlib
    feed = feed_batch[0]
    if "began" in feed:
        pathlib.Path(feed["began"]).write_text(str(os.getpid()))
        while not pathlib.Path(feed["gate"]).exists():
            time.sleep(0.005)
    if feed.get("die"):
        os.kill(os.getpid(), 9)
    return {"code": "1", "pid": str(os.getpid())}
"""
PROCESSES = '"dag": {"is_thread_op": False}'
TWO_WITH_PROCESSES = f"{TWO}, {PROCESSES}"
ALL = ("template", "engine 0", "engine 1", "work/0", "work/0", "work/1", "work/1")
"""The titles of its processes after a reload."""
SUPERVISED = '"supervised": True'


def write(folder: Path, code: str, config: str = TWO_WITH_PROCESSES, **given: str) -> Path:
    """The script with this code."""
    return script(folder, given.pop("hooks", HOOKS).replace('"1"', repr(code)), config, **given)


def asked(server: ServiceProcess, **pairs: str) -> tuple[str, int]:
    """The code that answers, and its process."""
    answer = post(server, **{"x": "1", **pairs})
    assert answer.status == 200
    assert answer.json["err_no"] == 0, answer.json
    values = dict(zip(answer.json["key"], answer.json["value"], strict=True))
    return values["code"], int(values["pid"])


def codes(server: ServiceProcess) -> set[str]:
    return {asked(server)[0] for _ in range(8)}


def reload(server: ServiceProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``penstock reload`` with the service's address, or with these arguments."""
    given = arguments or (f"127.0.0.1:{server.http_port}",)
    command = [sys.executable, "-m", "penstock", "reload", *given]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def reloads(server: ServiceProcess, *arguments: str) -> None:
    """Reload, and expect that it succeeds."""
    done = reload(server, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), server.log()
    assert done.stdout.startswith("reloaded in ")


def processes(server: ServiceProcess, title: str = "") -> dict[int, str]:
    """The titles of the service's processes, without those that end."""
    found = {}
    for each in server.descendants():
        try:
            if each.status() != psutil.STATUS_ZOMBIE and title in each.name():
                found[each.pid] = each.name()
        except psutil.NoSuchProcess:
            continue
    return found


def until_only(server: ServiceProcess, *titles: str) -> None:
    """Wait until the service has just these processes."""
    until(lambda: sorted(processes(server).values()) == sorted(titles), f"{titles}")


# What a reload does


def test_the_changed_script_serves_in_all_engines_and_old_requests_end_in_the_old_one(
    tmp_path: Path,
) -> None:
    gate, began = tmp_path / "gate", tmp_path / "began"
    with running(write(tmp_path, "1")) as server:
        before = processes(server)
        held = BackgroundCall(lambda: asked(server, began=str(began), gate=str(gate)))
        until(lambda: began.exists() and began.read_text(), "the request has begun")
        write(tmp_path, "2")
        assert codes(server) == {"1"}
        reloads(server)
        assert codes(server) == {"2"}
        gate.touch()
        assert held.result()[0] == "1"
        until_only(server, *ALL)
        assert not before.keys() & processes(server).keys()
        assert server.log().count("the changed program serves") == 1
        report = fetch(f"{server.http_url}/status").json
        assert report["engines"] == 2
        assert report["ready"]
        assert report["requests"]["answered"] == 17, "counters include the engines that have ended"
        write(tmp_path, "3")
        reloads(server, "--pid", str(server.pid))
        assert codes(server) == {"3"}
        until_only(server, *ALL)
        assert server.stop() == 0
        assert server.leftovers() == []


def test_processes_that_are_replaced_later_have_the_code_of_the_reload(tmp_path: Path) -> None:
    with running(write(tmp_path, "1")) as server:
        write(tmp_path, "2")
        reloads(server)
        write(tmp_path, "not reloaded yet")
        until_only(server, *ALL)
        (engine,) = processes(server, "engine 1")
        os.kill(engine, signal.SIGKILL)
        until(lambda: "engine 1 (pid" in server.log(), "the death")
        until_only(server, *ALL)
        until(server.is_ready, "the service is ready")
        for worker in processes(server, "work/0"):
            os.kill(worker, signal.SIGKILL)
        until(lambda: codes(server) == {"2"}, "answers")
        for pid in processes(server, "engine"):
            os.kill(pid, signal.SIGTERM)  # each is replaced
        until(lambda: server.log().count("has ended: exit status 0") == 4, "the replacements")
        assert codes(server) == {"2"}


def test_a_second_reload_during_one_runs_the_program_again_afterwards(tmp_path: Path) -> None:
    gate, at = tmp_path / "gate", tmp_path / "at"
    waits = f"""
import pathlib
pathlib.Path({str(at)!r}).touch()
while not pathlib.Path({str(gate)!r}).exists():
    time.sleep(0.005)
"""
    with running(write(tmp_path, "1")) as server:
        write(tmp_path, "2", before=waits)
        first = BackgroundCall(lambda: reload(server))
        until(at.exists, "the program runs again")
        write(tmp_path, "3")
        second = BackgroundCall(lambda: reload(server, "--pid", str(server.pid)))
        server.send_signal(signal.SIGHUP)
        until(lambda: server.log().count("when this reload is over"), "it is heard")
        gate.touch()
        for each in (first, second):
            assert each.result(60).returncode == 0, server.log()
        until(lambda: codes(server) == {"3"}, "the last code")
        until(lambda: len(processes(server)) == len(ALL), "the old engines have ended")


def test_threads_of_the_script_are_no_obstacle(tmp_path: Path) -> None:
    thread = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    with running(write(tmp_path, "1", SUPERVISED, before=thread)) as server:
        write(tmp_path, "2", SUPERVISED, before=thread)
        reloads(server)
        assert codes(server) == {"2"}
        until_only(server, "engine")
        write(tmp_path, "3", SUPERVISED)
        reloads(server)
        assert codes(server) == {"3"}
        until_only(server, "engine", "template")
        assert server.stop() == 0


def test_the_environment_is_that_of_the_start(tmp_path: Path) -> None:
    before = 'import os; os.environ.setdefault("MINE", {!r})'
    hooks = HOOKS.replace('"1"', 'os.environ["MINE"]')
    given = {"hooks": hooks, "config": SUPERVISED}
    with running(write(tmp_path, "", **given, before=before.format("first"))) as server:
        assert codes(server) == {"first"}
        write(tmp_path, "", **given, before=before.format("second"))
        reloads(server)
        assert codes(server) == {"second"}


def test_a_link_to_the_current_release_is_followed_again(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, name, SUPERVISED)
    link = tmp_path / "current"
    link.symlink_to("1")
    start = f"cd {link} && exec {sys.executable} service.py"
    with running(link / "service.py", command=("/bin/sh", "-c", start)) as server:
        assert codes(server) == {"1"}
        link.unlink()
        link.symlink_to("2")
        reloads(server)
        assert codes(server) == {"2"}


# What does not start changes nothing


HANG = "time.sleep(600)"


def starting(text: str) -> str:
    """The hooks of an op that does this when it starts."""
    return f"{HOOKS}\ndef init_op(self):\n    {text}\n"


@pytest.mark.parametrize(
    "broken",
    [
        {
            "SyntaxError: ": {"before": "def ("},
            "no such file: model": {"hooks": starting('raise OSError("no such file: model")')},
            "the number of engines is 3, and the running service has 2": {
                "config": TWO_WITH_PROCESSES.replace('"worker_num":  2', '"worker_num": 3')
            },
        },
        pytest.param(
            {
                "ModuleNotFoundError: No module named 'nowhere'": {"before": "import nowhere"},
                "with exit status 3": {"before": "raise SystemExit(3)"},
                "with exit status 0": {"before": "raise SystemExit"},
                "killed by SIGSEGV": {"before": "import os; os.kill(os.getpid(), 11)"},
            },
            marks=pytest.mark.long,
        ),
        pytest.param(
            {
                "(SIGKILL)": {"hooks": starting("import os; os.kill(os.getpid(), 9)")},
                "start_timeout": {
                    "hooks": starting(HANG),
                    "config": f'{TWO_WITH_PROCESSES}, "start_timeout": 1',
                },
            },
            marks=pytest.mark.long,
        ),
        pytest.param(
            {
                "concurrencies": {
                    "config": TWO_WITH_PROCESSES.replace("concurrency", "concurrencies")
                },
                "admin_port is 0, and the running service has None": {
                    "config": f'{TWO_WITH_PROCESSES}, "admin_port": 0'
                },
            },
            marks=pytest.mark.long,
        ),
    ],
    ids=["one of each", "programs", "models", "settings"],
)
def test_a_script_that_does_not_start_changes_nothing(
    tmp_path: Path, broken: dict[str, dict[str, str]]
) -> None:
    with running(write(tmp_path, "1")) as server:
        before, files = processes(server), descriptors(server)
        for number, (reason, given) in enumerate(broken.items()):
            write(tmp_path, "2", **given)
            done = reload(server)
            assert (done.returncode, done.stdout) == (1, "")
            assert reason in done.stderr
            assert server.log().count("reload: nothing has changed") == number + 1
            assert codes(server) == {"1"}
            until(lambda: processes(server) == before, "the new processes have ended")
        until(lambda: descriptors(server) == files, "the descriptors are closed")
        write(tmp_path, "2")
        reloads(server)
        assert codes(server) == {"2"}


def test_a_program_that_does_not_reach_its_service_in_time_changes_nothing(tmp_path: Path) -> None:
    config = f'{SUPERVISED}, "start_timeout": 8'
    with running(write(tmp_path, "1", config)) as server:
        before = processes(server)
        write(tmp_path, "2", config, before="time.sleep(600)")
        assert "has not reached its service within" in reload(server).stderr
        until(lambda: processes(server) == before, "the new process has ended")
        assert codes(server) == {"1"}


def descriptors(server: ServiceProcess) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


@pytest.fixture
def gated(tmp_path: Path) -> Callable[[], Path]:
    """Writes a script whose engine 1 waits in its start until the file ``gate`` exists; returns the
    file that it then makes.
    """

    def write_it() -> Path:
        gate, at = tmp_path / "gate", tmp_path / "at"
        hooks = f"""{HOOKS}
def init_op(self):
    import pathlib
    if not pathlib.Path({str(at)!r}).exists():
        pathlib.Path({str(at)!r}).touch()
        while not pathlib.Path({str(gate)!r}).exists():
            time.sleep(0.005)
"""
        write(tmp_path, "2", hooks=hooks)
        return at

    return write_it


def test_sigterm_during_a_reload_ends_the_service(
    tmp_path: Path, gated: Callable[[], Path]
) -> None:
    with running(write(tmp_path, "1")) as server:
        at = gated()
        reloading = BackgroundCall(lambda: reload(server))
        until(at.exists, "a new engine starts")
        assert server.stop() == 0
        assert server.leftovers() == []
        done = reloading.result()
        assert done.returncode == 1
        assert "the service stops" in server.log()
        assert "Traceback" not in server.log()


def test_an_old_engine_that_dies_during_a_reload_is_replaced_by_the_old_and_then_the_new_code(
    tmp_path: Path, gated: Callable[[], Path]
) -> None:
    with running(write(tmp_path, "1")) as server:
        at = gated()
        old = processes(server, "engine")
        reloading = BackgroundCall(lambda: reload(server, "--pid", str(server.pid)))
        until(at.exists, "a new engine starts")
        os.kill(min(old), signal.SIGKILL)
        until(lambda: "killed by SIGKILL" in server.log(), "the death")
        until(lambda: len(processes(server, "engine")) == 3, "its replacement")
        assert codes(server) == {"1"}
        (tmp_path / "gate").touch()
        assert reloading.result(60).returncode == 0
        until(lambda: codes(server) == {"2"}, "the new code")
        until_only(server, *ALL)
        assert server.stop() == 0


def test_a_new_engine_that_is_killed_before_all_are_ready_changes_nothing(
    tmp_path: Path, gated: Callable[[], Path]
) -> None:
    with running(write(tmp_path, "1")) as server:
        old = processes(server)
        at = gated()
        reloading = BackgroundCall(lambda: reload(server))
        until(at.exists, "a new engine starts")
        (new,) = processes(server, "engine").keys() - old.keys()
        os.kill(new, signal.SIGKILL)
        done = reloading.result()
        assert done.returncode == 1
        assert "engine 0 ended before it was ready: killed by SIGKILL" in done.stderr
        until(lambda: processes(server) == old, "only the old ones are left")
        assert codes(server) == {"1"}


def test_a_killed_template_is_replaced_by_a_reload(tmp_path: Path) -> None:
    with running(write(tmp_path, "1", SUPERVISED)) as server:
        write(tmp_path, "2", SUPERVISED)
        reloads(server)
        write(tmp_path, "3", SUPERVISED, before="raise SystemExit(3)")
        until_only(server, "engine", "template")
        (template,) = processes(server, "template")
        os.kill(template, signal.SIGKILL)
        until(lambda: "is tried when one ends" in server.log(), "the program does not start")
        assert codes(server) == {"2"}
        write(tmp_path, "3", SUPERVISED)
        (engine,) = processes(server, "engine")
        os.kill(engine, signal.SIGKILL)
        until_only(server, "engine", "template")
        until(server.is_ready, "the service is ready")
        assert codes(server) == {"3"}


# Who may, and where


def test_a_service_of_one_process_says_how_to_start_it(tmp_path: Path) -> None:
    with running(write(tmp_path, "1", "")) as server:
        done = reload(server)
        assert (done.returncode, done.stdout) == (1, "")
        assert "supervised: true" in done.stderr
        done = reload(server, "--pid", str(server.pid))
        assert done.returncode == 1
        assert "supervised: true" in done.stderr
        assert codes(server) == {"1"}, "it did not get SIGHUP"


def test_a_process_that_is_no_service_is_not_signalled(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "reload", "--pid", str(other.pid)],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 1
        assert "no main process of a service" in done.stderr
        assert other.stdin is not None
        other.stdin.write(b"\n")
    assert other.returncode == 0


def test_operators_reload_by_a_key_and_over_their_own_port(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    lines = line_of("ann", "s3cr3t-of-ann", ["admin"]), line_of("bob", "other-of-bob", ["infer"])
    keys.write_text("\n".join([*lines, ""]))
    keys.chmod(0o600)
    config = f'{SUPERVISED}, "admin_port": 0, "security": {{"keys": {str(keys)!r}}}'
    with running(write(tmp_path, "1", config)) as server:
        write(tmp_path, "2", config)
        where = f"127.0.0.1:{server.http_port}"
        assert "HTTP 401" in reload(server, where).stderr
        assert "the scope admin" in reload(server, where, "--token", "other-of-bob").stderr
        reloads(server, where, "--token", "s3cr3t-of-ann")


# Versions


VERSIONS = """
import sys
sys.path.insert(0, {root!r})
from penstock import run
from tests.seams.toy_admin import Admin

def versions(description):
    made = Work("work")
    made.prepare_pipeline_config(yml_dict={{"rpc_port": 0, {config}}})
    {check}
    return made

service = Work("work", applications=[Admin])
service.prepare_pipeline_config(yml_dict={{"rpc_port": 0, {config}}})
run(service, versions=versions)
"""


def test_the_changed_program_serves_the_versions_that_were_changed_meanwhile(
    tmp_path: Path,
) -> None:
    root = str(Path(__file__).parents[2])
    hooks = HOOKS.replace('"1"', 'f"{self.text}"').replace(
        "def process", 'text = "1"\n\ndef process'
    )

    def write_it(code: str, check: str = "pass") -> Path:
        path = write(tmp_path, "", SUPERVISED, hooks=hooks.replace('"1"', repr(code)))
        text = path.read_text()
        start = text[: text.index("service = ")]
        end = VERSIONS.format(root=root, config=SUPERVISED, check=check)
        path.write_text(start + end)
        return path

    def swap(server: ServiceProcess, version: str) -> int:
        body = json.dumps({"name": "work", "version": version}).encode()
        return fetch(f"{server.http_url}/swap", body).status

    def version(server: ServiceProcess) -> list[str]:
        graphs: list[dict[str, Any]] = fetch(f"{server.http_url}/status").json["graphs"]
        return [each["version"] for each in graphs if each.get("default")]

    with running(write_it("1"), cwd=tmp_path) as server:
        assert swap(server, "2") == 200
        write_it("2")
        reloads(server)
        assert codes(server) == {"2"}
        assert version(server) == ["2"]
        assert swap(server, "3") == 200
        write_it("3", check='raise ValueError("this code has no such version")')
        done = reload(server)
        assert done.returncode == 1
        assert "version 3 cannot be made of its description" in done.stderr
        assert "this code has no such version" in done.stderr
        assert codes(server) == {"2"}
        assert swap(server, "4") == 200
