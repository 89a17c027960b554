"""The process tree, with real processes: starts, deaths, notifications, and remaining processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.supervisor.supervised import DONE, Supervised, has_ended

ONE_WORKER = """
async def serve(zygote):
    say("engine", os.getpid())
    zygote.ready()
    worker = await zygote.spawn(an_op, 0)
    await for_ever()
"""


def run(folder: Path, script: str) -> Supervised:
    return Supervised(folder, script)


# The engine's exit


@pytest.mark.parametrize(
    ("end", "status", "message"),
    [
        ("return 7", 7, ""),
        ("os.kill(os.getpid(), 9)", 128 + signal.SIGKILL, "ended before it was ready"),
        ("raise OSError('no such model')", 1, "no such model"),
    ],
)
def test_the_exit_status_of_an_engine_before_it_is_ready_is_the_service_s(
    tmp_path: Path, end: str, status: int, message: str
) -> None:
    with run(tmp_path, f"async def serve(zygote): {end}") as service:
        assert service.status() == status
        assert message in service.errors.read_text()


def test_a_killed_engine_and_its_workers_are_replaced(tmp_path: Path) -> None:
    with run(tmp_path, ONE_WORKER) as service:
        engine, worker = service.pid("engine"), service.watch(service.pid("worker"))
        started = time.monotonic()
        os.kill(engine, signal.SIGKILL)
        assert has_ended(worker, 1)
        assert service.pid("engine") != engine
        service.pid("worker")
        assert time.monotonic() - started < 2
        assert "killed by SIGKILL" in service.errors.read_text()


def test_an_engine_that_keeps_dying_is_not_restarted(tmp_path: Path) -> None:
    script = """
async def serve(zygote):
    say("engine", os.getpid())
    zygote.ready()
    os._exit(3)
"""
    with run(tmp_path, script) as service:
        lines = service.rest().splitlines()
        assert 3 <= len([line for line in lines if line.startswith("engine")]) <= 6
        assert service.status() == 1
        errors = service.errors.read_text()
        assert "exit status 3" in errors
        assert "too often" in errors


def test_remaining_workers_end_with_their_engine(tmp_path: Path) -> None:
    script = """
async def serve(zygote):
    loop = asyncio.get_running_loop()
    watched = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, watched.set)
    worker = await zygote.spawn(an_op, 0)
    await loop.sock_recv(worker.socket, 1)
    say("engine", os.getpid())
    await watched.wait()
    return done

def worker_main(engine_id, op, index, channel):
    say("worker", os.getpid())
    channel.send(b"!")
    while True:
        signal.pause()
"""
    with run(tmp_path, script) as service:
        worker = service.watch(service.pid("worker"))
        os.kill(service.pid("engine"), signal.SIGUSR1)
        assert service.expect("over") == [str(DONE)]
        assert has_ended(worker, 0)


# The supervisor's death


@pytest.mark.parametrize(
    "stuck",
    [
        "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')",  # native code that holds the GIL
        "subprocess.run(['sleep', '60'])",  # a child process with the same pipe
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); signal.sigwait([10])",
    ],
    ids=["holds the lock", "waits for a program", "blocks signals"],
)
def test_no_process_outlives_a_killed_supervisor(tmp_path: Path, stuck: str) -> None:
    script = f"""
async def serve(zygote):
    worker = await zygote.spawn(an_op, 0)
    zygote.ready()
    await asyncio.get_running_loop().sock_recv(worker.socket, 1)
    say("stuck")
    {stuck}

def worker_main(engine_id, op, index, channel):
    channel.send(b"!")
    {stuck}
    return 0
"""
    with run(tmp_path, script) as service:
        service.expect("stuck")
        service.signal(signal.SIGKILL)
        service.rest(timeout=1)


# Signals


SIGNALLED = """
async def serve(zygote):
    worker = await zygote.spawn(an_op, 0)
    zygote.ready()
    for _ in range(3):
        say("told", await orders.get())
    let_go(worker)
    say("ended", (await zygote.exited(worker.pid)).status)
    return 0
"""
STOPS = (["Stop(hurry=False)"], ["Stop(hurry=True)"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_engine_and_the_next_one_hurries_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    with run(tmp_path, SIGNALLED) as service:
        assert service.expect("told") == ["Serve()"]
        for stop in STOPS:
            service.signal(number)
            assert service.expect("told") == stop
        assert service.expect("ended") == ["0"]
        assert service.status() == 0


def test_ctrl_c_in_the_terminal_only_reaches_the_supervisor(tmp_path: Path) -> None:
    with run(tmp_path, SIGNALLED) as service:
        assert service.expect("told") == ["Serve()"]
        for stop in STOPS:
            os.killpg(service.process.pid, signal.SIGINT)
            assert service.expect("told") == stop
        assert service.expect("ended") == ["0"]
        assert service.status() == 0


def test_a_stop_before_the_engine_is_ready_is_a_clean_exit(tmp_path: Path) -> None:
    script = """
def engine_main(engine_id, control):
    say("engine")
    while True:
        signal.pause()
"""
    with run(tmp_path, script) as service:
        service.expect("engine")
        service.signal(signal.SIGTERM)
        assert service.status() == 0


def test_a_stop_while_no_engine_runs_ends_the_service(tmp_path: Path) -> None:
    script = """
async def serve(zygote):
    zygote.ready()
    os._exit(3)

import penstock.supervisor.engine_slot
class Patient:
    def died(self, now, *, had_worked):
        say("waits")
        return 3600.0
penstock.supervisor.engine_slot.Restarts = Patient
"""
    with run(tmp_path, script) as service:
        service.expect("waits")
        service.signal(signal.SIGTERM)
        assert service.status() == 0


def test_an_engine_that_fails_during_a_stop_is_not_replaced(tmp_path: Path) -> None:
    script = """
async def serve(zygote):
    zygote.ready()
    await orders.get()
    say("engine")
    await orders.get()
    os._exit(9)
"""
    with run(tmp_path, script) as service:
        service.expect("engine")
        service.signal(signal.SIGTERM)
        assert service.status() == 9
        assert "ended with an error: exit status 9" in service.errors.read_text()


def test_an_engine_s_death_just_before_the_stop_does_not_change_the_exit_status(
    tmp_path: Path,
) -> None:
    with run(tmp_path, ONE_WORKER) as service:
        engine = service.pid("engine")
        service.expect("worker")
        end = service.watch(engine)
        service.signal(signal.SIGSTOP)
        os.kill(engine, signal.SIGKILL)
        assert has_ended(end, 20)
        service.signal(signal.SIGTERM)
        service.signal(signal.SIGCONT)  # both events are reported at once
        assert service.status() == 0
        assert "died: killed by SIGKILL" in service.errors.read_text()


def test_an_ignored_sigchld_does_not_lose_the_exit_status(tmp_path: Path) -> None:
    script = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
async def serve(zygote): return 7
"""
    with run(tmp_path, script) as service:
        assert service.status() == 7


# Workers


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("return 3", 3 << 8),
        ("sys.exit(4)", 4 << 8),
        ("os._exit(5)", 5 << 8),
        ("raise ValueError('bad day')", 1 << 8),
        ("os.kill(os.getpid(), signal.SIGSEGV)", signal.SIGSEGV),
    ],
)
def test_a_worker_s_exit_status_is_sent_to_the_engine(
    tmp_path: Path, end: str, status: int
) -> None:
    script = f"""
async def serve(zygote):
    worker = await zygote.spawn(an_op, 0)
    say("status", (await zygote.exited(worker.pid)).status)
    let_go(worker)
    return done

def worker_main(engine_id, op, index, channel):
    {end}
"""
    with run(tmp_path, script) as service:
        assert service.pid("status") == status
        assert service.status() == DONE
        assert ("bad day" in service.errors.read_text()) == ("bad day" in end)


def test_a_hundred_killed_workers_leave_no_descriptor_and_no_process(tmp_path: Path) -> None:
    script = """
import psutil

def held(pid):
    kinds = []
    for each in os.scandir(f"/proc/{pid}/fd"):
        try:
            kinds.append(os.readlink(each).split(":")[0])
        except FileNotFoundError:  # that of this scan
            continue
    return sorted(kinds)

async def once(zygote):
    worker = await zygote.spawn(an_op, 0)
    signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
    assert (await zygote.exited(worker.pid)).status == signal.SIGKILL
    let_go(worker)

async def serve(zygote):
    supervisor = os.getppid()
    await once(zygote)
    before = held(supervisor), len(held(os.getpid()))
    for _ in range(100):
        await once(zygote)
    assert (held(supervisor), len(held(os.getpid()))) == before, (before, held(supervisor))
    assert [each.pid for each in psutil.Process(supervisor).children()] == [os.getpid()]
    say("workers", len(zygote._exits))
    return done
"""
    with run(tmp_path, script) as service:
        assert service.expect("workers", timeout=50) == ["0"]
        assert service.status() == DONE


def test_workers_do_not_inherit_descriptors_of_each_other(tmp_path: Path) -> None:
    script = """
async def serve(zygote):
    loop = asyncio.get_running_loop()
    first, second, third = [await zygote.spawn(an_op, index) for index in range(3)]
    for each in (first, second, third):
        say("more", (await loop.sock_recv(each.socket, 99)).decode())
    signal.pidfd_send_signal(first.pidfd, signal.SIGKILL)
    say("end", await loop.sock_recv(first.socket, 1))  # nobody else holds the worker's end
    let_go(second)
    say("status", (await zygote.exited(second.pid)).status)  # nor the engine's
    let_go(first), let_go(third)
    return done

def opened():
    return len(os.listdir("/proc/self/fd"))

def worker_main(engine_id, op, index, channel):
    channel.send(str(opened() - before).encode())
    return 17 + len(channel.recv(1))

before = opened()
"""
    with run(tmp_path, script) as service:
        for _ in range(3):
            assert service.expect("more") == ["2"]  # its socket and its parent_death pipe
        assert service.expect("end") == ["b''"]
        assert service.pid("status") == 17 << 8
        assert service.status() == DONE


def test_workers_do_not_inherit_the_listeners(tmp_path: Path) -> None:
    script = """
listeners = [socket.create_server(("127.0.0.1", 0))]
port = listeners[0].getsockname()[1]

def listening():
    import psutil
    return [each.laddr.port for each in psutil.Process().net_connections("tcp")]

async def serve(zygote):
    worker = await zygote.spawn(an_op, 0)
    heard = await asyncio.get_running_loop().sock_recv(worker.socket, 99)
    say("listening", listening() == [port], heard.decode())
    let_go(worker)
    return done

def worker_main(engine_id, op, index, channel):
    channel.send(str(listening()).encode())
    return 0
"""
    with run(tmp_path, script) as service:
        assert service.expect("listening") == ["True", "[]"]


def test_a_stopping_engine_can_close_the_ports(tmp_path: Path) -> None:
    script = """
listeners = [socket.create_server(("127.0.0.1", 0))]

async def serve(zygote):
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    worker = await zygote.spawn(an_op, 0)
    await asyncio.get_running_loop().sock_recv(worker.socket, 1)  # it has closed its own
    say("port", listeners[0].getsockname()[1])
    await told.wait()
    listeners[0].close()
    say("closed")
    await for_ever()

def worker_main(engine_id, op, index, channel):
    channel.send(b"!")
    return len(channel.recv(1))
"""
    with run(tmp_path, script) as service:
        address = ("127.0.0.1", service.pid("port"))
        socket.create_connection(address, 10).close()
        service.signal(signal.SIGTERM)
        service.expect("closed")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 10)


def test_connections_wait_for_the_next_engine(tmp_path: Path) -> None:
    script = """
listeners = [socket.create_server(("127.0.0.1", 0))]

async def serve(zygote):
    zygote.ready()
    if os.path.exists(mark):
        connection, _ = listeners[0].accept()
        connection.send(b"!")
        connection.close()
        return 0
    open(mark, "w").close()
    say("port", listeners[0].getsockname()[1], os.getpid())
    await for_ever()
"""
    with run(tmp_path, f"mark = {str(tmp_path / 'mark')!r}\n{script}") as service:
        port, engine = map(int, service.expect("port"))
        with socket.create_connection(("127.0.0.1", port), 10) as connection:
            os.kill(engine, signal.SIGKILL)
            assert connection.recv(1) == b"!"


FEW_PAIRS = """
import errno
supervisor, pairs = os.getpid(), 0
def pair(*kind, make=socket.socketpair):
    global pairs
    if os.getpid() == supervisor:
        pairs += 1
        if pairs == {nth}:
            raise OSError(errno.ENFILE, "the table is full")
    return make(*kind)
socket.socketpair = pair
"""


def test_a_spawn_without_a_free_descriptor_fails_and_the_next_one_succeeds(
    tmp_path: Path,
) -> None:
    script = """
async def serve(zygote):
    try:
        await zygote.spawn(an_op, 0)
    except Exception as error:
        say("refused", type(error).__name__, error)
    let_go(await zygote.spawn(an_op, 0))
    return done
"""
    with run(tmp_path, FEW_PAIRS.format(nth=3) + script) as service:
        refused = "StartupError [Errno 23] the table is full"
        assert " ".join(service.expect("refused")) == refused
        assert service.status() == DONE
