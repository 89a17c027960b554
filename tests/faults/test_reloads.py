"""Reloads of a program under load, some of them of broken ones: no request notices them.

A sample of ``python -m tests.faults.reloads``, which also measures memory.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from penstock.supervisor.reload import reload_process
from tests.faults.callers import callers
from tests.faults.reloads import (
    FORMS,
    GOOD,
    KINDS,
    Broken,
    Call,
    late_answers,
    reload,
    run,
    write,
)
from tests.service.scripts import BackgroundCall, fetch
from tests.services.process import running
from tests.services.repository import Load, Repository, serving, states, until

pytestmark = pytest.mark.faults

SOME = ["worker dies", "exits 0"]


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
    assert result.last.processes <= result.early.processes  # one may have been ending
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
        calls.wait("2")
        until(lambda: states(server).get("2") == "READY")
        calls.stop()
        assert calls.failures == []


@pytest.mark.parametrize(
    "victim",
    [
        "m/0",
        pytest.param("template", marks=pytest.mark.long),
        pytest.param("engine", marks=pytest.mark.long),
    ],
)
def test_a_reload_whose_process_is_killed_changes_nothing_and_no_request_notices(
    tmp_path: Path, victim: str
) -> None:
    gate, at = tmp_path / "gate", tmp_path / "at"
    waits = f"""
import pathlib
def wait():
    pathlib.Path({str(at)!r}).touch()
    while not pathlib.Path({str(gate)!r}).exists():
        time.sleep(0.01)
"""
    form = FORMS["function"]
    write(form, tmp_path, 1, GOOD, "process")
    environment = {"PENSTOCK_SUPERVISED": "true"}
    with running(tmp_path / form.file, command=form.command, environment=environment) as server:
        before = {each.pid for each in server.descendants()}
        with callers(server, KINDS, 20.0, Call("function")) as told:
            write(form, tmp_path, 2, Broken(before=waits, warm_up="wait()"), "process")
            reloading = BackgroundCall(lambda: reload(server, 1))
            until(at.exists)
            new = {each.pid: each.name() for each in server.descendants() if each.pid not in before}
            os.kill(next(pid for pid, name in new.items() if name == victim), signal.SIGKILL)
            assert reloading.result(60) is not None
            until(lambda: {each.pid for each in server.descendants()} == before)
            assert late_answers(server, "function", 1) == []
            write(form, tmp_path, 3, GOOD, "process")
            assert reload(server, 1) is None
            assert late_answers(server, "function", 3) == []
        assert [each.failures + each.wrong for each in told] == [[]] * len(KINDS)
        assert server.stop() == 0
        assert server.leftovers() == []
