import pytest

from penstock.config.checks import Ports, ports
from penstock.config.schema import ServiceConfig
from penstock.errors import ConfigError


def never_asked(port: int) -> bool:
    raise AssertionError(f"asked for {port}")


@pytest.mark.parametrize(
    ("rpc", "http", "expected"),
    [
        (18080, 18090, Ports(rpc=18080, http=18090)),
        (18080, None, Ports(rpc=18080, http=None)),
        (0, 0, Ports(rpc=0, http=0)),
        (0, 18090, Ports(rpc=0, http=18090)),
        (None, 0, Ports(rpc=0, http=0, rpc_chosen=True)),
    ],
)
def test_written_ports_are_taken_without_probing(rpc: int, http: int, expected: Ports) -> None:
    assert ports(ServiceConfig(rpc_port=rpc, http_port=http), never_asked) == expected


@pytest.mark.parametrize(
    ("http", "taken", "rpc"),
    [
        (9999, set(), 10000),
        (9999, {10000, 10001}, 10002),
        (65535, set(), 1024),
        (65534, {65535, 1024}, 1025),
    ],
)
def test_the_grpc_port_is_the_next_free_one_after_http(
    http: int, taken: set[int], rpc: int
) -> None:
    chosen = ports(ServiceConfig(http_port=http), lambda port: port not in taken)
    assert chosen == Ports(rpc=rpc, http=http, rpc_chosen=True)


def test_no_free_port_and_no_port_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match="no port is free"):
        ports(ServiceConfig(http_port=9999), lambda port: False)
    with pytest.raises(ConfigError, match="must be set"):
        ports(ServiceConfig(), never_asked)
