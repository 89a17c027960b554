"""Reloads of a program under load, some of them of broken ones: no request notices them.

A sample of ``python -m tests.faults.reloads``, which also measures memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.supervisor.reload import reload_process
from tests.faults.reloads import run
from tests.service.scripts import BackgroundCall, fetch
from tests.services.repository import Load, Repository, serving, states, until

pytestmark = pytest.mark.faults

SOME = ["worker dies", "exits 0"]
FORMS = ("class", "function", "project", "serve")


@pytest.mark.parametrize(
    ("form", "where", "engines"),
    [
        ("class", "process", 3),
        ("project", "thread", 1),
        *(
            pytest.param(form, where, engines, marks=pytest.mark.long)
            for form in FORMS
            for where in ("process", "thread")
            for engines in (1, 3)
        ),
    ],
)
def test_no_request_notices_that_its_program_changes(form: str, where: str, engines: int) -> None:
    kinds = None if form == "serve" else SOME
    result = run(form, where, engines, 3, rate=60.0, pause=0.0, limit=120, kinds=kinds)
    assert result.answers > 0
    assert result.faults == []
    assert result.early is not None
    assert result.last is not None
    assert result.last.processes == result.early.processes
    assert result.last.descriptors == result.early.descriptors


def test_a_model_that_is_loaded_during_a_reload_serves_and_its_operator_is_told(
    tmp_path: Path,
) -> None:
    repository = Repository(tmp_path / "models")
    repository.add("m", 1)
    supervised = {"PENSTOCK_SUPERVISED": "true"}
    with serving(
        repository, "--load-model", "*", mode="explicit", environment=supervised
    ) as server:
        calls = Load(server, "m", 2, lambda answer: str(answer["model_version"]))
        repository.add("m", 2)
        reloading = BackgroundCall(lambda: reload_process(server.pid, 100))
        until(lambda: "the program is run again" in server.log())
        loaded = fetch(f"{server.http_url}/v2/repository/models/m/load", b"{}", 100)
        assert (loaded.status, loaded.body) == (200, b"{}")
        reloading.result(100)
        assert states(server)["2"] == "READY"
        calls.wait("2")
        calls.stop()
        assert calls.failures == []
