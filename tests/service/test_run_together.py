"""Several services in one process: one door, routing by name, common readiness."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.service.scripts import PENSTOCK, PYTHON, post, until
from tests.services.process import running

pytestmark = pytest.mark.real

TWO = """
from penstock import Service, op, run

@op({options})
def double(request):
    return {{"y": request["x"] * 2}}

@op({options})
def triple(request):
    return {{"y": request["x"] * 3}}

first = Service("double", double, http_port=0, rpc_port=0)
second = Service("triple", triple{config})
"""


def write_script(tmp_path: Path, end: str = "", options: str = "", config: str = "") -> Path:
    path = tmp_path / "both.py"
    path.write_text(TWO.format(options=options, config=config) + end)
    return path


@pytest.mark.parametrize(
    ("way", "end"),
    [(PYTHON, "run(first, second)"), (PENSTOCK, "run(first, second)"), (PENSTOCK, "")],
    ids=["python", "penstock run", "penstock run of a script that runs nothing"],
)
def test_two_services_share_a_door_and_are_selected_by_name(
    way: tuple[str, ...], end: str, tmp_path: Path
) -> None:
    with running(write_script(tmp_path, end), command=way) as server:
        assert post(server, "double", x="ab").json["value"] == ["abab"]
        assert post(server, "triple", x="ab").json["value"] == ["ababab"]
        assert post(server, "other", x="ab").json["err_no"] != 0
        assert "penstock serves double and triple to this machine only" in server.log()
        assert server.stop() == 0


@pytest.mark.parametrize("options", ["", 'op={"triple": {"executor": "process"}}'])
def test_two_services_run_in_several_engines_and_worker_processes(
    options: str, tmp_path: Path
) -> None:
    config = ", build_dag_each_worker=True, worker_num=2" + (f", {options}" if options else "")
    with running(write_script(tmp_path, "run(first, second)", config=config)) as server:
        for _ in range(8):
            assert post(server, "double", x="ab").json["value"] == ["abab"]
            assert post(server, "triple", x="ab").json["value"] == ["ababab"]
        assert server.stop() == 0


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_the_log_names_an_op_with_its_service(executor: str, tmp_path: Path) -> None:
    config = f', op={{"triple": {{"executor": "{executor}"}}}}'
    with running(write_script(tmp_path, "run(first, second)", config=config)) as server:
        answer = post(server, "triple", other="ab").json
        assert answer["err_msg"].startswith("[triple] failed to predict. ")
        line = "op triple/triple: triple raised (data_ids="
        until(lambda: line in server.log(), "a line of the log")
        assert server.stop() == 0


def test_check_reports_each_service(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PENSTOCK[:-1], "check", write_script(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert [line for line in done.stdout.splitlines() if line.endswith("are good")] == [
        "double: the configuration and the graph are good",
        "triple: the configuration and the graph are good",
    ]


def test_a_flag_for_an_op_of_one_service_is_valid_for_all(tmp_path: Path) -> None:
    check = [*PENSTOCK[:-1], "check", write_script(tmp_path)]
    for flag, status in (("op.triple.concurrency=3", 0), ("op.tenfold.concurrency=3", 1)):
        done = subprocess.run([*check, "-o", flag], capture_output=True, text=True, timeout=60)
        assert done.returncode == status, done.stderr
    assert "there is no such op" in done.stderr
