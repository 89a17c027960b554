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
def test_an_endpoint_is_host_and_port_and_writes_itself_back(
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
def test_what_is_no_endpoint_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        parse_endpoints([text])


@pytest.mark.parametrize("endpoints", ["localhost:9993", None, {"localhost:9993"}, [9993]])
def test_only_a_list_of_texts_is_taken(endpoints: object) -> None:
    with pytest.raises(TypeError, match="host:port"):
        parse_endpoints(endpoints)


def test_no_endpoint_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        parse_endpoints([])


def test_it_is_an_address() -> None:
    ipaddress.ip_address(own_address())


def test_a_machine_without_a_route_still_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_route(self: socket.socket, address: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", no_route)
    assert own_address() == "127.0.0.1"


def test_a_connected_client_asks_for_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter(["10.0.0.1", "10.0.0.2"])
    monkeypatch.setattr(channels, "own_address", lambda: next(asked))
    first, second = (Channel(parse_endpoints(["localhost:1"]), None) for _ in range(2))
    assert [first.own_address(), first.own_address()] == ["10.0.0.1"] * 2
    assert second.own_address() == "10.0.0.2"
