from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.config.schema import ServiceConfig
from penstock.door.listeners import bind, port_of
from penstock.errors import StartupError
from penstock.service.listening import addresses, bind_all, listen_on_all

HOST = "127.0.0.1"


def config(**keys: Any) -> ServiceConfig:
    return ServiceConfig.model_validate({"rpc_port": 0, "http_port": 0, **keys})


def three_engines(**keys: Any) -> ServiceConfig:
    return config(build_dag_each_worker=True, worker_num=3, **keys)


def test_engines_have_a_socket_each_per_port_and_share_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "unix"
    with ExitStack() as stack:
        engines = bind_all(three_engines(door={"unix_socket": str(path)}), stack)
        assert len(engines) == 3
        for key, count in (("rpc_port", 3), ("http_port", 3), ("door.unix_socket", 1)):
            assert len({each[key] for each in engines}) == count
            assert len({each[key].getsockname() for each in engines}) == 1
        assert path.exists()
    assert not path.exists()
    assert all(each.fileno() < 0 for sockets_of in engines for each in sockets_of.values())


def test_the_socket_file_of_a_killed_service_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "unix"
    unix = {"unix_socket": str(path)}
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(str(path))
        abandoned.listen()
    with ExitStack() as stack:
        (sockets,) = bind_all(config(door=unix), stack)
        # A socket that is bound, but does not listen yet, does not count as abandoned.
        with ExitStack() as second, pytest.raises(StartupError, match="another program"):
            bind_all(config(door=unix), second)
        listen_on_all(config(door=unix), [sockets])
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))


@pytest.mark.parametrize("kind", ["served by another program", "no socket"])
def test_a_socket_file_in_use_is_not_replaced(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "unix"
    with ExitStack() as stack, socket.socket(socket.AF_UNIX) as other:
        if kind == "no socket":
            path.write_text("a file")
        else:
            other.bind(str(path))
            other.listen()
        text = "another program has" if kind != "no socket" else "and is no socket"
        with pytest.raises(StartupError, match=text):
            bind_all(config(door={"unix_socket": str(path)}), stack)
        assert path.exists()


@pytest.mark.parametrize("engines", [1, 3])
@pytest.mark.parametrize("keys", [{}, {"rpc_port": 18180, "http_port": 18180}])
def test_one_port_is_bound_once_for_every_protocol(keys: dict[str, int], engines: int) -> None:
    given = {"http_port": 0, **keys, "build_dag_each_worker": True, "worker_num": engines}
    one = ServiceConfig.model_validate(given)
    with ExitStack() as stack:
        bound = bind_all(one, stack, one_port=not keys)
        assert [[*each] for each in bound] == [["http_port"]] * engines
        listen_on_all(one, bound)
        at = addresses(one, bound[0])
        assert at.rpc_port == at.http_port == port_of(bound[0]["http_port"])


def test_a_single_engine_does_not_share_its_ports() -> None:
    with ExitStack() as stack:
        (sockets,) = bind_all(config(), stack)
        listen_on_all(config(), [sockets])
        with pytest.raises(StartupError):
            bind(HOST, port_of(sockets["rpc_port"]), "port", shared=True)
        at = addresses(config(), sockets)
        assert (at.rpc_port, at.http_port) == tuple(
            map(port_of, (sockets["rpc_port"], sockets["http_port"]))
        )


def test_of_two_services_that_start_at_once_only_one_listens() -> None:
    with ExitStack() as stack:
        first = bind_all(three_engines(), stack)
        ports = {key: port_of(first[0][key]) for key in ("rpc_port", "http_port")}
        second = bind_all(three_engines(**ports), stack)  # no service listens yet
        listen_on_all(three_engines(), first)
        with pytest.raises(
            StartupError, match=r"rpc_port .* cannot be bound: Address already in use"
        ):
            listen_on_all(three_engines(), second)


def test_without_shared_ports_only_one_of_two_services_listens_too() -> None:
    with ExitStack() as stack:
        (first,) = bind_all(config(), stack)
        ports = {key: port_of(first[key]) for key in ("rpc_port", "http_port")}
        (second,) = bind_all(config(**ports), stack)
        listen_on_all(config(), [first])
        with pytest.raises(StartupError, match="rpc_port: cannot listen on"):
            listen_on_all(config(), [second])
