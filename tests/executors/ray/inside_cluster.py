"""A service whose op runs on a cluster of Ray; run by test_cluster.py, where there is only the
loopback.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock import PipelineClient
from penstock.executors.ray.link import COMMAND, Holder
from penstock.executors.workers.pool import NoWorkerError
from tests.kit.ray_cluster import Cluster, cluster
from tests.service.scripts import BackgroundCall, fetch, post, until
from tests.services.process import ServiceProcess, running

SCRIPT = """
import ctypes, logging, os, time
import numpy as np
from penstock import Service, op

@op(executor="ray", workers=2, retry_on_crash=True, ray={"address": "auto", "placement": "spread"})
def double(request):
    time.sleep(float(request.get("wait", "0")))
    if request.get("say"):
        print(request["say"], "is printed")
        logging.getLogger("mine").error("%s is logged", request["say"], exc_info=ValueError("odd"))
    if request.get("crash"):
        ctypes.string_at(0)
    x = np.array(request["x"].split(","), np.float32)
    return {"x": str(x * 2), "pid": str(os.getpid())}

Service("work", double, http_port=0, rpc_port=0).run()
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture(scope="module")
def server(ray: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    path = tmp_path_factory.mktemp("ray") / "service.py"
    path.write_text(SCRIPT)
    environment = {"RAY_ADDRESS": ray.address}
    with running(path, environment=environment, timeout=120) as server:
        yield server
        assert server.stop() == 0
        assert server.leftovers() == []


def op_of(server: ServiceProcess) -> dict[str, Any]:
    ((op,),) = [each["ops"] for each in fetch(f"{server.http_url}/status").json["graphs"]]
    found: dict[str, Any] = op
    return found


def loaded(server: ServiceProcess) -> list[dict[str, Any]]:
    return [each for each in op_of(server)["loaded"] if each is not None]


def both_back(server: ServiceProcess) -> None:
    until(lambda: len(loaded(server)) == 2, "two workers", timeout=120)


def answer(server: ServiceProcess, **pairs: str) -> dict[str, str]:
    reply = post(server, timeout=120, **pairs).json
    assert reply["err_no"] == 0, reply
    return dict(zip(reply["key"], reply["value"], strict=True))


@pytest.mark.timeout(200)
def test_it_answers_from_two_nodes_and_says_which(server: ServiceProcess) -> None:
    assert answer(server, x="1,2.5")["x"] == "[2. 5.]"
    with PipelineClient() as client:
        client.connect([server.rpc_endpoint])
        reply = client.predict({"x": "3"}, fetch=["x"], name="work")
    assert reply.value[0] == "[6.]"
    nodes = {each["where"].partition(",")[0] for each in loaded(server)}
    assert len(nodes) == 2
    assert all(each.startswith("node ") and each.endswith(" at 127.0.0.1") for each in nodes)
    assert {each["where"].partition(", ")[2] for each in loaded(server)} == {
        f"pid {each['pid']}" for each in loaded(server)
    }


@pytest.mark.parametrize("whose", ["worker", "actor"])
@pytest.mark.timeout(200)
def test_a_process_killed_under_load_costs_no_request_that_may_run_again(
    server: ServiceProcess, whose: str
) -> None:
    calls = [
        BackgroundCall(lambda: [answer(server, x="1", wait="0.02") for _ in range(50)])
        for _ in range(3)
    ]
    deaths = op_of(server)["deaths"]
    pid = loaded(server)[0]["pid"]
    victim = psutil.Process(pid)
    os.kill(pid if whose == "worker" else victim.ppid(), signal.SIGKILL)
    assert psutil.wait_procs([victim], 30)[1] == [], "it ends with its actor"
    for each in calls:
        assert {a["x"] for a in each.result(120)} == {"[2.]"}
    both_back(server)
    assert op_of(server)["deaths"] == deaths + 1
    assert str(pid) not in {str(each["pid"]) for each in loaded(server)}


@pytest.mark.timeout(200)
def test_what_a_worker_writes_is_in_the_log_with_its_op_and_node(server: ServiceProcess) -> None:
    pid = answer(server, x="1", say="coffee")["pid"]
    (where,) = [each["where"] for each in loaded(server) if str(each["pid"]) == pid]
    who = f"op double: worker {{}} ({where}): "
    until(lambda: "coffee is logged" in server.log(), "both lines")
    lines = server.log().splitlines()
    (printed,) = [each for each in lines if each.endswith("coffee is printed")]
    assert any(printed.endswith(f"{who.format(n)}coffee is printed") for n in range(2))
    (at,) = [n for n, each in enumerate(lines) if each.endswith("coffee is logged")]
    assert lines[at].startswith("ERROR ")
    assert " [mine] op double: worker " in lines[at]
    assert lines[at + 1] == "    ValueError: odd"


@pytest.mark.timeout(200)
def test_the_last_words_of_a_worker_are_in_the_log_before_its_end(server: ServiceProcess) -> None:
    reply = post(server, timeout=120, x="1", say="tea", crash="yes").json
    assert reply["err_no"] == 9000, "it crashes again when it runs again"
    until(lambda: server.log().count("died: signal SIGSEGV") == 2, "the ends", timeout=60)
    lines = server.log().splitlines()
    ends = [n for n, each in enumerate(lines) if "died: signal SIGSEGV" in each]
    for kind in ("tea is printed", "Fatal Python error: Segmentation fault", "service.py"):
        found = [n for n, each in enumerate(lines) if kind in each and "op double: worker" in each]
        assert len([n for n in found if n < ends[1]]) >= 2, kind
    both_back(server)


@pytest.mark.timeout(200)
def test_the_workers_of_a_node_that_is_lost_move_when_there_is_room(
    server: ServiceProcess, ray: Cluster
) -> None:
    before = {each["where"].partition(",")[0] for each in loaded(server)}
    ray.remove(1)
    until(lambda: len(loaded(server)) == 1, "the loss of a worker", timeout=60)
    assert answer(server, x="1")["x"] == "[2.]"
    until(
        lambda: "it wants 1 CPU (0 of 1 are free)" in server.log(),
        "the reason why it waits",
        timeout=60,
    )
    (waiting,) = [each for each in op_of(server)["places"] if each["state"] != "running"]
    assert (waiting["state"], waiting["wants"], waiting["possible"]) == (
        "waiting",
        {"CPU": 1},
        True,
    )
    (gone,) = [each for each in op_of(server)["lost"] if each["back"] is None]
    assert gone["worker"] == waiting["worker"]
    ray.add()
    both_back(server)
    assert op_of(server)["lost"][-1]["back"] > 0.0
    where = [each["node"]["id"] for each in op_of(server)["places"]]
    assert gone["node"]["id"] not in where
    after = {each["where"].partition(",")[0] for each in loaded(server)}
    assert len(before & after) == 1
    assert len(after) == 2


@asynccontextmanager
async def holder(
    address: str, command: tuple[str, ...] = COMMAND, **more: Any
) -> AsyncIterator[Holder]:
    given = {"address": address, "namespace": None, "runtime_env": {}, **more}
    made = Holder(asyncio.get_running_loop(), f"Ray at {address}", given, command)
    try:
        yield made
    finally:
        await made.close()


MAIN = "from penstock.executors.ray.holder import main; main()"
OTHER = {
    "Ray": f"import ray; ray.__version__ = '1.2.3'; {MAIN}",
    "Python": f"import ray, sys; sys.version_info = (1, 2, 3); {MAIN}",
}


@pytest.mark.parametrize("what", OTHER)
@pytest.mark.timeout(200)
async def test_a_cluster_of_another_version_is_refused_in_one_line(ray: Cluster, what: str) -> None:
    async with holder(ray.address) as made:
        assert await made.address() == "127.0.0.1"
    async with holder(ray.address, (sys.executable, "-c", OTHER[what])) as made:
        with pytest.raises(NoWorkerError) as caught:
            await made.address()
    text = str(caught.value)
    assert text.startswith(f"Ray at {ray.address} cannot be used: ")
    assert "Version mismatch" in text
    assert f"{what}: 1.2.3" in text
    assert "\n" not in text


@pytest.mark.timeout(200)
def test_check_says_that_no_node_is_large_enough(ray: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "service.py"
    path.write_text(SCRIPT.replace('"address": "auto"', '"address": "auto", "num_cpus": 2'))
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "check", "--open", str(path)],
        env={**os.environ, "RAY_ADDRESS": ray.address},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0
    assert "  warning  op double: it has no place in the cluster: it wants 2 CPU" in done.stdout
    assert ", which no node has" in done.stdout


async def environment_of(made: Holder) -> str:
    """Start a worker with an opening that is none: what comes is what happened before, or that."""
    wants = {"CPU": 0.0, "GPU": 0.0}
    order = {"opening": "", "folder_is_here": False, "wants": wants, "placement": "default"}
    with pytest.raises(NoWorkerError) as caught:
        await made.start_worker("op a: worker 0", order, 120.0, lambda lack: None)
    return str(caught.value)


NO_OPENING = "JSONDecodeError: Expecting value"


@pytest.mark.timeout(200)
async def test_two_services_may_have_one_namespace(ray: Cluster) -> None:
    async with holder(ray.address, namespace="ours") as one:
        assert NO_OPENING in await environment_of(one)
        async with holder(ray.address, namespace="ours") as other:
            assert NO_OPENING in await environment_of(other)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"working_dir": "/no/such/folder"}, "directory /no/such/folder must be an existing"),
        ({"workin_dir": "."}, "runtime_env has unknown keys: workin_dir; Ray has "),
        ({"pip": 5}, "must be of type str or"),
        ({"env_vars": {"A": 1}}, "must be of type Dict"),
    ],
)
@pytest.mark.timeout(200)
async def test_an_environment_that_is_none_is_refused(
    ray: Cluster, given: dict[str, Any], why: str
) -> None:
    async with holder(ray.address, runtime_env=given) as made:
        with pytest.raises(NoWorkerError) as caught:
            await made.address()
    assert str(caught.value).startswith(f"Ray at {ray.address} cannot be used: ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(200)
async def test_a_folder_is_copied(ray: Cluster, tmp_path: Path) -> None:
    folder = {"working_dir": str(tmp_path)}
    (tmp_path / "module.py").touch()
    async with holder(ray.address, runtime_env=folder) as made:
        assert NO_OPENING in await environment_of(made)


@pytest.mark.timeout(200)
async def test_an_environment_that_a_node_cannot_make_is_told(ray: Cluster) -> None:
    async with holder(ray.address, runtime_env={"conda": "no-such-environment"}) as made:
        assert (await environment_of(made)).startswith("RuntimeEnvSetupError: ")


@pytest.mark.timeout(200)
async def test_a_cluster_that_is_not_there_is_told_at_once() -> None:
    async with holder("127.0.0.1:1") as made:
        with pytest.raises(NoWorkerError, match=r"nothing answers at 127.0.0.1:1: .*refused"):
            await made.address()
