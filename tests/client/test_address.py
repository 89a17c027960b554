import ipaddress
import socket

import pytest

from penstock.client.address import own_address


def test_it_is_an_address() -> None:
    ipaddress.ip_address(own_address())


def test_a_machine_without_a_route_still_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_route(self: socket.socket, address: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", no_route)
    assert own_address() == "127.0.0.1"
