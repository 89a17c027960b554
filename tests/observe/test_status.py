"""Reading the status of servers."""

from __future__ import annotations

import socket
import threading

import pytest

from penstock.observe.status import NoStatus, ask_status


def test_the_status_of_a_server_of_another_protocol_cannot_be_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send_settings() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(4096)
                link.sendall(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))  # as gRPC servers do

        thread = threading.Thread(target=send_settings)
        thread.start()
        with pytest.raises(NoStatus, match="the status cannot be read"):
            ask_status(f"127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
