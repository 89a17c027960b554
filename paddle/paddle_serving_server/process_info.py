"""``ProcessInfo.json``: lists the servers that were started from a folder, and stops them.

The file is in ``SERVING_HOME``, or else in the working directory. It has an object for each server:
``{"pid": 7, "port": [9393], "model": "['uci']", "start_time": 1700000000, "started": "…"}``. A pid
may be reused: ``started`` has the boot id and the start time of the process, and a process with
another start time is never signalled.
"""

import fcntl
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

from penstock.service import flags

_log = logging.getLogger(__name__)

Server: TypeAlias = dict[str, Any]

_FILE: Final = "ProcessInfo.json"
_STATE: Final = 0  # index of a field of /proc/<pid>/stat, after the process name
_BEGAN: Final = 19
_STOP_TIMEOUT: Final = 40.0  # seconds until a server must have ended; longer than its usual drain


def path() -> Path:
    """Return the path of the file."""
    return Path(os.environ.get("SERVING_HOME") or ".").absolute() / _FILE


@contextmanager
def recorded(ports: Iterable[int | None], model: str) -> Iterator[None]:
    """List this process in the file while the context is open, if it serves.

    If the file cannot be written, a warning is logged.
    """
    from penstock.service.role import spawned_role

    if flags.only_defines() or flags.current().check_only or spawned_role() is not None:
        yield
        return
    own: Server = {
        "pid": os.getpid(),
        "port": [port for port in ports if port is not None],
        "model": model,
        "start_time": int(time.time()),
        "started": _started(os.getpid()),
    }
    _try_to_update(lambda servers: [*filter(_runs, servers), own])
    try:
        yield
    finally:
        if os.getpid() == own["pid"]:  # not in a forked child
            _try_to_update(lambda servers: [each for each in servers if each != own])


def end(number: signal.Signals, port: int | None = None) -> int:
    """Send a signal to the servers in the file, or to those with a port, and wait for their end.

    Returns:
        The exit status: 0 if all have ended, 1 if one has not, or none was running.
    """
    wanted: list[Server] = []

    def take(servers: list[Server]) -> list[Server]:
        wanted.extend(each for each in servers if port is None or port in each["port"])
        return [each for each in servers if _runs(each)]

    try:
        if path().exists():
            _update(take)
        running = [(each, fd) for each in wanted if (fd := _signalled(each, number)) is not None]
    except (OSError, ValueError) as error:
        return _failed(f"{path()}: {error}")
    if not running:
        which = "" if port is None else f" with port {port}"
        return _failed(f"{path()} names no running server{which}")
    deadline = time.monotonic() + _STOP_TIMEOUT
    status = 0
    for each, pidfd in running:
        if _ends(pidfd, deadline - time.monotonic()):
            print(f"{_described(each)} has ended")
        else:
            status = _failed(f"{_described(each)} has not ended within {_STOP_TIMEOUT:g} s")
        os.close(pidfd)
    _try_to_update(lambda servers: [each for each in servers if _runs(each)])
    return status


def _failed(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return 1


def _described(server: Server) -> str:
    return f"process {server['pid']} (port {', '.join(map(str, server['port']))})"


def _try_to_update(change: Callable[[list[Server]], list[Server]]) -> None:
    try:
        _update(change)
    except (OSError, ValueError) as error:
        text = "%s, by which serve stop finds its servers, cannot be updated: %s"
        _log.warning(text, path(), error)


def _update(change: Callable[[list[Server]], list[Server]]) -> None:
    """Replace the list in the file.

    Raises:
        OSError: the file cannot be opened or written.
        ValueError: the file has no such list.
    """
    with path().open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        file.seek(0)
        servers = json.loads(file.read() or "[]")
        if not isinstance(servers, list) or not all(map(_is_server, servers)):
            raise ValueError("it has no list of servers")
        changed = json.dumps(change(servers))
        file.truncate(0)
        file.write(changed)


def _is_server(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("pid"), int)
        and value["pid"] > 0
        and isinstance(value.get("port"), list)
    )


def _started(pid: int) -> str | None:
    """Return the boot id and the start time of a process; None if it does not run."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[_STATE] in (b"Z", b"X"):  # it has ended, and is not reaped yet
        return None
    return f"{boot} {fields[_BEGAN].decode()}"


def _runs(server: Server) -> bool:
    """Whether the server's process runs, with the start time in the file."""
    started = _started(server["pid"])
    return started is not None and server.get("started") == started


def _signalled(server: Server, number: signal.Signals) -> int | None:
    """Send a signal to a server. Returns a pidfd of its process; None if it does not run."""
    try:
        pidfd = os.pidfd_open(server["pid"])
    except ProcessLookupError:
        return None
    # Checked after opening the pidfd, which always refers to the same process.
    try:
        if _runs(server):
            signal.pidfd_send_signal(pidfd, number)
            return pidfd
    except ProcessLookupError:
        pass  # it has just ended
    os.close(pidfd)
    return None


def _ends(pidfd: int, seconds: float) -> bool:
    from penstock.supervisor.child_processes import ends_within

    return ends_within(pidfd, max(0.0, seconds))
