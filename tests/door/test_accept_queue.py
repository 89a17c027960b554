"""Who has connected, and who comes as the door closes."""

from __future__ import annotations

import errno
import select
import socket
import sys
from pathlib import Path

import pytest

from penstock.door.listeners import bind, let_nobody_in, port_of
from tests.door.site import PATIENCE

_SYN_SENT = 2  # of TCP_INFO, in its first byte


def connecting(port: int) -> socket.socket:
    link = socket.socket()
    link.setblocking(False)
    assert link.connect_ex(("127.0.0.1", port)) == errno.EINPROGRESS
    return link


def state_of(link: socket.socket) -> int:
    return link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


@pytest.mark.skipif(sys.platform != "linux", reason="this system has no such filters")
def test_nobody_new_gets_in_and_everybody_else_is_left_alone() -> None:
    with bind("127.0.0.1", 0, "http_port") as listener:
        listener.listen(8)
        port = port_of(listener)
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as before:
            let_nobody_in(listener)
            with connecting(port) as newcomer:
                accepted, _ = listener.accept()
                with accepted:
                    before.sendall(b"?" * 100_000)
                    assert accepted.recv(100_000, socket.MSG_WAITALL) == b"?" * 100_000
                assert state_of(newcomer) == _SYN_SENT
                listener.close()
                # It asks again, and is told now: nobody listens.
                assert select.select([], [newcomer], [], PATIENCE)[1]
                assert newcomer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == (
                    errno.ECONNREFUSED
                )


def test_a_unix_socket_has_no_such_door(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as link:
        listener.bind(str(tmp_path / "door"))
        listener.listen(1)
        let_nobody_in(listener)
        link.connect(str(tmp_path / "door"))
        accepted, _ = listener.accept()
        accepted.close()
