"""Ops whose external workers connect to a socket: configuration keys, and the socket's binding."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock import Op
from penstock.errors import ConfigError, StartupError
from penstock.service.banner import check_report
from penstock.service.blueprint import deploy
from penstock.service.listening import bind_worker_sockets
from tests.service.in_process import blueprint_of, root


def blueprint(config: dict[str, Any] | None = None, **op: Any) -> Any:
    return blueprint_of(Op("work", input_ops=[root()]), {**(config or {}), "op": {"work": op}})


@pytest.mark.parametrize(
    ("op", "config", "problem"),
    [
        ({"executor": "external"}, {}, "op.work.socket: must be set"),
        ({"socket": "x"}, {}, "op.work.socket: is for ops with executor: external"),
        (
            {"executor": "external", "socket": "x"},
            {"build_dag_each_worker": True, "worker_num": 2},
            "op.work.socket: cannot be shared",
        ),
        ({"executor": "external", "socket": "x", "max_batches": 5}, {}, "op.work.max_batches"),
    ],
)
def test_conflicting_keys_are_errors(
    op: dict[str, Any], config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        blueprint(config, **op)
    assert problem in str(caught.value)


def test_the_report_names_the_socket_and_warns_about_keys_without_effect() -> None:
    made = blueprint(executor="external", socket="/run/work.sock", concurrency=3)
    assert "external workers at /run/work.sock" in check_report(made)
    assert any("concurrency of 3 has no effect" in each for each in made.warnings)


def test_a_socket_is_private_to_its_user_and_an_abandoned_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "work.sock"
    deployment = deploy([blueprint(executor="external", socket=str(path))])
    with ExitStack() as stack:
        (listener,) = bind_worker_sockets(deployment, stack).values()
        assert path.stat().st_mode & 0o777 == 0o600
        with ExitStack() as second, pytest.raises(StartupError, match="cannot be bound"):
            bind_worker_sockets(deployment, second)
        assert path.exists()
        listener.detach()
        abandoned = path.with_name("kept")
        path.rename(abandoned)
    abandoned.rename(path)
    with ExitStack() as stack:
        bind_worker_sockets(deployment, stack)
    assert not path.exists()
