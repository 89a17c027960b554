"""A worker elsewhere: connects to its engine, and runs the user's program again as that worker.

Reads an Opening from standard input, so that no list of processes shows its token. With the
argument ``--with-parent PID`` it ends together with that process, which has started it.
"""

from __future__ import annotations

import socket
import sys
from typing import Final

from penstock.executors.elsewhere.keepalive import keep_alive
from penstock.executors.elsewhere.opening import Opening
from penstock.executors.elsewhere.parent import end_with_parent

_CONNECT_TIMEOUT: Final = 30.0


def main() -> None:
    """Become the worker; returns only with an error."""
    if sys.argv[1:2] == ["--with-parent"]:
        end_with_parent(int(sys.argv[2]))
    opening = Opening.decode(sys.stdin.buffer.read())
    link = socket.create_connection((opening.host, opening.port), _CONNECT_TIMEOUT)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(link)
    link.sendall(opening.token.encode())
    link.setblocking(True)
    link.set_inheritable(True)
    opening.program.run_again(opening.role(link.fileno()))


if __name__ == "__main__":
    main()
