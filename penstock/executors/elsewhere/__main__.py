"""A worker elsewhere: connects to its engine, and runs the user's program again as that worker.

Reads an Opening from standard input, so that no list of processes shows its token.
"""

from __future__ import annotations

import socket
import sys
from typing import Final

from penstock.executors.elsewhere.opening import Opening

_CONNECT_TIMEOUT: Final = 30.0


def main() -> None:
    """Become the worker; returns only with an error."""
    opening = Opening.decode(sys.stdin.buffer.read())
    link = socket.create_connection((opening.host, opening.port), _CONNECT_TIMEOUT)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.sendall(opening.token.encode())
    link.setblocking(True)
    link.set_inheritable(True)
    opening.program.run_again(opening.role(link.fileno()))


if __name__ == "__main__":
    main()
