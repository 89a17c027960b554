"""Connections that the system has accepted, and the door has not.

The system shakes hands by itself and keeps the connection in the listening socket's queue; when
that socket closes, everybody in it is reset. So whoever closes it for good takes them out before.
Under load new ones always come. Linux is told to let nobody new in meanwhile: a client whose SYN
is dropped sends it again after a second, and is then refused, or reaches a successor.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

_HANDSHAKE: Final = 0.1
"""Seconds in which a handshake that has begun ends; a guess at a round trip across a network."""

_SO_ATTACH_FILTER: Final = 26  # of asm-generic/socket.h; Python does not name it

_NO_SYN: Final = array(
    "B",
    b"".join(
        struct.pack("HBBI", *each)
        for each in (
            (0x30, 0, 0, 13),  # load the byte with the flags; a TCP socket's filter sees its header
            (0x45, 0, 1, 0x02),  # is SYN among them?
            (0x06, 0, 0, 0),  # yes: take nothing of the segment
            (0x06, 0, 0, 0xFFFFFFFF),  # no: take all
        )
    ),
)


async def take_the_rest(listeners: Sequence[socket.socket], timeout: float) -> None:
    """Let the loop accept whoever is connected, and nobody new where the system can see to that.

    Args:
        listeners: accepted on by the running loop; nobody else is to accept on them afterwards.
        timeout: seconds.
    """
    loop = asyncio.get_running_loop()
    queues = select.poll()
    for each in listeners:
        let_nobody_in(each)
        queues.register(each, select.POLLIN)
    await asyncio.sleep(min(_HANDSHAKE, timeout))
    until = loop.time() + min(_HANDSHAKE, timeout)
    while queues.poll(0) and loop.time() < until:
        await asyncio.sleep(0)


def let_nobody_in(listener: socket.socket) -> None:
    """Drop what begins a connection; handshakes that have begun go on. For good: it stays with the
    socket, whoever else has it. Does nothing where the system cannot.
    """
    if sys.platform != "linux" or listener.family == socket.AF_UNIX:
        return
    address, size = _NO_SYN.buffer_info()
    with suppress(OSError):
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", size // 8, address)
        )
