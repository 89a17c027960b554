import ipaddress
import socket

import pytest

from penstock.client import channels
from penstock.client.channels import Channel
from penstock.client.endpoints import Endpoint, own_address, parse_endpoints


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9993", "127.0.0.1", 9993),
        ("localhost:1", "localhost", 1),
        ("model_server.example.org:65535", "model_server.example.org", 65535),
        ("[::1]:9993", "::1", 9993),
    ],
)
def test_an_endpoint_is_parsed_and_converted_back_to_its_text(
    text: str, host: str, port: int
) -> None:
    (endpoint,) = parse_endpoints([text])
    assert endpoint == Endpoint(host=host, port=port)
    assert str(endpoint) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        ":9993",
        "localhost:",
        "localhost:0",
        "localhost:65536",
        "localhost:９９９３",
        "localhost:+1",
        "::1:9993",
        "[::g]:9993",
        "[127.0.0.1]:9993",
        "unix:/run/socket:1",
        "http://localhost:9993",
        "a b:1",
        "a,b:1",
        "a\n:1",
    ],
)
def test_an_invalid_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        parse_endpoints([text])


@pytest.mark.parametrize("endpoints", ["localhost:9993", None, {"localhost:9993"}, [9993]])
def test_endpoints_must_be_a_list_of_strings(endpoints: object) -> None:
    with pytest.raises(TypeError, match="host:port"):
        parse_endpoints(endpoints)


def test_an_empty_list_of_endpoints_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        parse_endpoints([])


def test_own_address_is_an_ip_address() -> None:
    ipaddress.ip_address(own_address())


def test_own_address_without_a_route_is_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_route(self: socket.socket, address: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", no_route)
    assert own_address() == "127.0.0.1"


def test_a_channel_looks_up_its_own_address_once(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = iter(["10.0.0.1", "10.0.0.2"])
    monkeypatch.setattr(channels, "own_address", lambda: next(addresses))
    first, second = (Channel(parse_endpoints(["localhost:1"]), None) for _ in range(2))
    assert [first.own_address(), first.own_address()] == ["10.0.0.1"] * 2
    assert second.own_address() == "10.0.0.2"
