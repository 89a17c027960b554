"""Several engines of one service, and the replacement of their processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.service.scripts import until
from tests.supervisor.supervised import Supervised, has_ended
from tests.supervisor.test_supervisor import FEW_PAIRS

OBEDIENT = """
engines = 3

async def serve(zygote):
    say("started", here.index, here.generation, os.getpid())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, zygote.leaving)
    zygote.ready()
    while True:
        order = await orders.get()
        say(type(order).__name__, here.index, os.getpid())
        if type(order).__name__ != "Serve":
            return 0
"""


def run(folder: Path, script: str) -> Supervised:
    return Supervised(folder, script)


def all_serve(service: Supervised, engines: int = 3) -> dict[int, int]:
    """The engines' pids, once all serve."""
    lines = [service.expect("Serve") for _ in range(engines)]
    return {int(index): int(pid) for index, pid in sorted(lines)}


# The start


def test_the_first_engine_starts_alone_and_the_ports_open_when_all_are_ready(
    tmp_path: Path,
) -> None:
    script = """
engines = 3
async def serve(zygote):
    say("started", here.index, len(os.listdir(folder)))
    open(os.path.join(folder, str(here.index)), "w").close()
    zygote.ready()
    say("then", type(await orders.get()).__name__)
    return 0

def open_ports(models):
    say("open", len(os.listdir(folder)))
"""
    marks = tmp_path / "marks"
    marks.mkdir()
    with run(tmp_path, f"folder = {str(marks)!r}\n{script}") as service:
        assert service.next_line() == ["started", "0", "0"]
        later = [service.next_line() for _ in range(2)]
        assert {words[1] for words in later} == {"1", "2"}
        assert "0" not in {words[2] for words in later}
        assert service.next_line() == ["open", "3"]
        assert [service.expect("then") for _ in range(3)] == [["Serve"]] * 3


@pytest.mark.parametrize("index", [0, 1])
def test_an_engine_s_failed_start_is_raised_by_the_supervisor(tmp_path: Path, index: int) -> None:
    script = f"""
engines = 3
from penstock.supervisor.client import report_failure
def failing(engine_id, control, plain=engine_main):
    if engine_id.index == {index}:
        report_failure(control, "no such model")
        return 1
    return plain(engine_id, control)
engine_main = failing

async def serve(zygote):
    zygote.ready()
    await for_ever()
"""
    with run(tmp_path, script) as service:
        assert service.status() == 1
        errors = service.errors.read_text()
        assert errors.endswith("StartupError: no such model\n")
        assert errors.count("no such model") == 1


@pytest.mark.parametrize("index", [0, 1])
def test_an_engine_without_a_free_descriptor_fails_the_start_with_a_message(
    tmp_path: Path, index: int
) -> None:
    script = """
engines = 3
async def serve(zygote):
    zygote.ready()
    await for_ever()
"""
    with run(tmp_path, FEW_PAIRS.format(nth=index + 2) + script) as service:
        assert service.status() == 1
        wanted = f"StartupError: engine {index} cannot be started: [Errno 23] the table is full\n"
        assert service.errors.read_text().endswith(wanted)


# Deaths


def test_only_the_killed_engine_is_replaced(tmp_path: Path) -> None:
    with run(tmp_path, OBEDIENT) as service:
        engines = all_serve(service)
        os.kill(engines[1], signal.SIGKILL)
        index, generation, pid = map(int, service.expect("started"))
        assert (index, generation) == (1, 1)
        assert service.expect("Serve") == ["1", str(pid)]
        service.signal(signal.SIGTERM)
        stopped = Counter(tuple(service.expect("Stop")) for _ in range(3))
        assert stopped == {("0", str(engines[0])): 1, ("1", str(pid)): 1, ("2", str(engines[2])): 1}
        assert service.status() == 0


def test_an_engine_stopped_by_sigstop_is_replaced(tmp_path: Path) -> None:
    with run(tmp_path, "answer_timeout = 0.5\n" + OBEDIENT) as service:
        engines = all_serve(service)
        os.kill(engines[1], signal.SIGSTOP)
        index, _ = service.expect("Serve")
        assert index == "1"
        assert "its loop has not answered for 0.5 s" in service.errors.read_text()
        service.signal(signal.SIGTERM)
        assert service.status() == 0


def test_no_engine_is_replaced_if_all_processes_were_stopped(tmp_path: Path) -> None:
    with run(tmp_path, "answer_timeout = 0.5\n" + OBEDIENT) as service:
        every = [service.process.pid, *all_serve(service).values()]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in every:
                os.kill(pid, number)
            time.sleep(2.0)  # time must pass here; then some liveness checks follow
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert "not answered" not in service.errors.read_text()


def test_a_worker_gets_its_engine_s_id(tmp_path: Path) -> None:
    script = """
engines = 2
async def serve(zygote):
    worker = await zygote.spawn(an_op, 5)
    heard = await asyncio.get_running_loop().sock_recv(worker.socket, 99)
    say("worker", here.index, heard.decode())
    zygote.ready()
    await for_ever()

def worker_main(engine_id, op, index, channel):
    channel.send(f"{engine_id.index} of {engine_id.engines}: {index}".encode())
    return len(channel.recv(1))
"""
    with run(tmp_path, script) as service:
        assert service.expect("worker") == ["0", "0", "of", "2:", "5"]
        assert service.expect("worker") == ["1", "1", "of", "2:", "5"]


def test_the_port_of_an_engine_that_is_not_restarted_is_served_by_the_others(
    tmp_path: Path,
) -> None:
    script = """
engines = 2
from penstock.door.listeners import bind_shared
shared = bind_shared("127.0.0.1", 0, "port", 2)
one_for_all = socket.create_server(("127.0.0.1", 0))
of_each = [(each, one_for_all) for each in shared]

def open_ports(models):
    for each in shared:
        each.listen()

def engine_main(engine_id, control, plain=engine_main):
    if engine_id.generation and engine_id.index:
        os._exit(3)
    return plain(engine_id, control)

async def serve(zygote):
    zygote.ready()
    await orders.get()
    say("pid", os.getpid(), shared[here.index].getsockname()[1], one_for_all.getsockname()[1])
    if here.index:
        os._exit(3)
    while True:
        connection, _ = shared[0].accept()
        connection.close()

import penstock.supervisor.engine_slot
class Fixed:
    deaths = 0
    def died(self, now, *, had_worked):
        self.deaths += 1
        return 0.0 if self.deaths < 3 else None
penstock.supervisor.engine_slot.Restarts = Fixed
"""
    with run(tmp_path, script) as service:
        ports = [service.expect("pid")[1:] for _ in range(2)]
        until(lambda: "is not restarted" in service.errors.read_text(), "the last death")
        port, unshared = map(int, ports[0])
        for _ in range(20):  # a connection to a socket without an engine would wait forever
            with socket.create_connection(("127.0.0.1", port), 10) as connection:
                assert connection.recv(1) == b""
        socket.create_connection(("127.0.0.1", unshared), 10).close()
        errors = service.errors.read_text()
        assert errors.count("engine 1 (pid") == 3
        assert "engine 1 has died too often, and is not restarted" in errors
        assert "engine 0" not in errors


def test_killed_engines_leave_no_descriptor_in_the_supervisor(tmp_path: Path) -> None:
    script = """
import penstock.supervisor.engine_slot
class Fixed:
    def died(self, now, *, had_worked):
        return 0.0
penstock.supervisor.engine_slot.Restarts = Fixed
"""
    with run(tmp_path, OBEDIENT + script) as service:
        engines = all_serve(service)

        def descriptors() -> list[str]:
            folder = Path(f"/proc/{service.process.pid}/fd")
            return sorted(os.readlink(each).split(":")[0] for each in folder.iterdir())

        def kill(index: int) -> None:
            os.kill(engines[index], signal.SIGKILL)
            again, pid = map(int, service.expect("Serve"))
            assert again == index
            engines[index] = pid

        kill(0)
        before = descriptors()
        for round in range(20):
            kill(round % 3)
        assert descriptors() == before


# Replacements


def test_a_hangup_replaces_engines_one_by_one_each_after_its_successor_serves(
    tmp_path: Path,
) -> None:
    with run(tmp_path, OBEDIENT) as service:
        before = all_serve(service)
        service.signal(signal.SIGHUP)
        lines = [service.next_line() for _ in range(9)]
        events = [(words[0], int(words[1])) for words in lines]
        assert sorted(events) == [(w, n) for w in ("Leave", "Serve", "started") for n in range(3)]
        # A process may report late, and the one that left was the predecessor.
        one_by_one = [(word, n) for n in range(3) for word in ("started", "Leave")]
        assert [each for each in events if each[0] != "Serve"] == one_by_one
        for word, index, *rest in lines:
            assert word != "Leave" or rest == [str(before[int(index)])]
            assert word != "started" or rest[0] == "1"
        for n in range(3):
            assert events.index(("Serve", n)) > events.index(("started", n))
        service.signal(signal.SIGTERM)
        for _ in range(3):
            service.expect("Stop")
        assert service.status() == 0


def test_a_hangup_of_an_engine_s_own_process_does_nothing(tmp_path: Path) -> None:
    with run(tmp_path, OBEDIENT) as service:
        before = all_serve(service)
        for pid in before.values():
            os.kill(pid, signal.SIGHUP)
        service.signal(signal.SIGTERM)
        lines = {tuple(service.expect("Stop")) for _ in before}
        assert lines == {(str(index), str(pid)) for index, pid in before.items()}
        assert service.status() == 0


def test_an_engine_that_gets_sigterm_serves_until_its_successor_does(tmp_path: Path) -> None:
    with run(tmp_path, OBEDIENT) as service:
        before = all_serve(service)
        os.kill(before[2], signal.SIGTERM)
        assert service.expect("started")[:2] == ["2", "1"]
        lines = {tuple(service.next_line()), tuple(service.next_line())}
        assert ("Leave", "2", str(before[2])) in lines
        assert {words[:2] for words in lines} == {("Leave", "2"), ("Serve", "2")}


def test_if_a_replacement_fails_the_old_engine_continues_and_others_are_not_replaced(
    tmp_path: Path,
) -> None:
    script = """
from penstock.supervisor.client import report_failure
def failing(engine_id, control, plain=engine_main):
    if engine_id.generation == 1:
        report_failure(control, "the model is half written")
        return 1
    return plain(engine_id, control)
engine_main = failing
"""
    with run(tmp_path, OBEDIENT + script) as service:
        before = all_serve(service)
        service.signal(signal.SIGHUP)
        until(lambda: "half written" in service.errors.read_text(), "the failure")
        errors = service.errors.read_text()
        assert "engine 0: its new process" in errors
        assert "the old one continues: the model is half written" in errors
        service.signal(signal.SIGHUP)  # again, after the fix
        assert service.expect("started")[:2] == ["0", "2"]
        assert service.expect("Leave") == ["0", str(before[0])]


def test_a_script_s_own_hangup_handler_is_kept(tmp_path: Path) -> None:
    script = """
signal.signal(signal.SIGHUP, lambda *_: say("mine"))
"""
    with run(tmp_path, OBEDIENT + script) as service:
        all_serve(service)
        service.signal(signal.SIGHUP)
        service.expect("mine")
        service.signal(signal.SIGTERM)
        lines = service.rest()
        assert "started" not in lines
        assert "Leave" not in lines


@pytest.mark.parametrize("end", ["a stop", "a replacement"])
def test_a_process_that_does_not_exit_in_time_is_killed(tmp_path: Path, end: str) -> None:
    script = """
engines = 1
stop_timeout = 0.2
async def serve(zygote):
    zygote.ready()
    while True:
        say(type(await orders.get()).__name__, os.getpid())
"""
    with run(tmp_path, script) as service:
        engine = service.watch(service.pid("Serve"))
        if end == "a stop":
            service.signal(signal.SIGTERM)
            service.expect("Stop")
            assert service.status() == 128 + signal.SIGKILL
        else:
            service.signal(signal.SIGHUP)
            assert has_ended(engine, 10)
            service.pid("Serve")
        assert "does not end, and is killed" in service.errors.read_text()


# Versions

CHANGING = """
from penstock.repository.served import Served

engines = 2
is_started, tell_started = os.pipe()
is_changed, tell_changed = os.pipe()
state = Served(name=None).with_version({{"name": None, "version": "2"}})

async def serve(zygote):
    say("engine", here.index, here.generation, len(of_all.changed))
    if (here.index, here.generation) == (1, 1):
        os.write(tell_started, b"x")
        os.read(is_changed, 1)
    zygote.ready()
    while True:
        order = await orders.get()
        match type(order).__name__:
            case "Serve" if here.index == 0:
                change = asyncio.create_task(zygote.change(0, state))
            case "Prepare" if here.index == 1:
                if here.generation == 0:
                    os._exit(1)
                say("prepares", here.index, here.generation)
                zygote.prepared(order.change, {problem!r})
            case "Prepare":
                os.read(is_started, 1)
                zygote.prepared(order.change, None)
            case "Commit":
                zygote.committed(order.change)
            case "Retire" if here.index == 0:
                await change
                say("changed")
                os.write(tell_changed, b"x")
            case "Serve":
                say("serves", here.index, here.generation)
"""


def test_an_engine_that_becomes_ready_without_a_version_makes_it_ready_before_it_serves(
    tmp_path: Path,
) -> None:
    with run(tmp_path, CHANGING.format(problem=None)) as service:
        assert service.next_line() == ["engine", "0", "0", "0"]
        assert service.next_line() == ["engine", "1", "0", "0"]
        service.expect("open")
        assert service.expect("engine") == ["1", "1", "0"]  # the other one died in the change
        service.expect("changed")
        assert service.next_line() == ["prepares", "1", "1"]
        assert service.next_line() == ["serves", "1", "1"]


def test_an_engine_that_cannot_make_ready_what_the_others_serve_is_replaced(
    tmp_path: Path,
) -> None:
    with run(tmp_path, CHANGING.format(problem="no memory")) as service:
        assert service.expect("prepares") == ["1", "1"]
        assert service.expect("engine") == ["1", "2", "1"]  # from the table
        assert service.expect("serves") == ["1", "2"]
        assert "died: no memory" in service.errors.read_text()
