import ipaddress
import socket

import pytest

from penstock.client import address
from penstock.client.address import KnownAddress, own_address


def test_it_is_an_address() -> None:
    ipaddress.ip_address(own_address())


def test_a_machine_without_a_route_still_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_route(self: socket.socket, address: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", no_route)
    assert own_address() == "127.0.0.1"


def test_a_known_address_is_asked_for_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter(["10.0.0.1", "10.0.0.2"])
    now = 1000.0
    monkeypatch.setattr(address, "own_address", lambda: next(asked))
    monkeypatch.setattr(address.time, "monotonic", lambda: now)
    known = KnownAddress()
    assert [known(), known()] == ["10.0.0.1"] * 2
    now += 5.0
    assert [known(), known()] == ["10.0.0.2"] * 2
