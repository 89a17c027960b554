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


def several(**keys: Any) -> ServiceConfig:
    return config(build_dag_each_worker=True, worker_num=3, **keys)


def test_engines_have_a_socket_each_for_a_port_and_one_together_for_a_path(tmp_path: Path) -> None:
    path = tmp_path / "unix"
    with ExitStack() as stack:
        engines = bind_all(several(door={"unix_socket": str(path)}), stack)
        assert len(engines) == 3
        for key, sockets in (("rpc_port", 3), ("http_port", 3), ("door.unix_socket", 1)):
            assert len({each[key] for each in engines}) == sockets
            assert len({each[key].getsockname() for each in engines}) == 1
        assert path.exists()
    assert not path.exists()
    assert all(each.fileno() < 0 for own in engines for each in own.values())


def test_a_socket_file_that_nobody_serves_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "unix"
    unix = {"unix_socket": str(path)}
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()
    with ExitStack() as stack:
        (own,) = bind_all(config(door=unix), stack)
        # Not even before it listens is it taken for one that was left behind.
        with ExitStack() as second, pytest.raises(StartupError, match="it exists"):
            bind_all(config(door=unix), second)
        listen_on_all(config(door=unix), [own])
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))


@pytest.mark.parametrize("kind", ["served by another program", "no socket"])
def test_what_is_in_use_is_not_taken_over(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "unix"
    with ExitStack() as stack, socket.socket(socket.AF_UNIX) as other:
        if kind == "no socket":
            path.write_text("a file")
        else:
            other.bind(str(path))
            other.listen()
        with pytest.raises(StartupError, match="it exists"):
            bind_all(config(door={"unix_socket": str(path)}), stack)
        assert path.exists()


def test_one_engine_has_its_ports_alone() -> None:
    with ExitStack() as stack:
        (own,) = bind_all(config(), stack)
        listen_on_all(config(), [own])
        with pytest.raises(StartupError):
            bind(HOST, port_of(own["rpc_port"]), "port", shared=True)
        at = addresses(config(), own)
        assert (at.rpc_port, at.http_port) == tuple(
            map(port_of, (own["rpc_port"], own["http_port"]))
        )


def test_of_two_services_that_begin_at_once_one_listens() -> None:
    with ExitStack() as stack:
        first = bind_all(several(), stack)
        ports = {key: port_of(first[0][key]) for key in ("rpc_port", "http_port")}
        second = bind_all(several(**ports), stack)  # nobody listens yet
        listen_on_all(several(), first)
        with pytest.raises(
            StartupError, match=r"rpc_port .* cannot be bound: Address already in use"
        ):
            listen_on_all(several(), second)


def test_without_shared_ports_the_second_of_two_services_cannot_listen_either() -> None:
    with ExitStack() as stack:
        (first,) = bind_all(config(), stack)
        ports = {key: port_of(first[key]) for key in ("rpc_port", "http_port")}
        (second,) = bind_all(config(**ports), stack)
        listen_on_all(config(), [first])
        with pytest.raises(StartupError, match="rpc_port: cannot listen on"):
            listen_on_all(config(), [second])
