"""Rollouts of a repository's versions under load, over HTTP and gRPC.

A version that is slower, fails, hangs or answers differently is taken back without a person, and
harms no caller beyond its share; a good one gets all requests.
"""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from penstock.protocols import standard_messages as messages
from penstock.repository.shares import Shares
from tests.kit.onnx_models import save
from tests.services.process import ServiceProcess, direct, running
from tests.services.repository import SERVE, Repository, index, models, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

STEPS = [10, 50]
USERS = 40
_SIDE = 200
_SLOW, _ENDLESS = 2_000, 10**9  # products of matrices: some tenths of a second, and for ever


def good(file: Path) -> None:
    save(file, "(float[n, 3] x) => (float[n, 3] y) { y = Identity(x) }")


def differs(file: Path) -> None:
    save(file, "(float[n, 3] x) => (float[n, 3] y) { y = Add(x, x) }")


def errs(file: Path) -> None:
    """Fails if a number is 2 or more."""
    save(
        file,
        "(float[n, 3] x) => (float[n, 3] y) <float[2] table = {1.0, 1.0}>"
        " { most = ReduceMax<keepdims=0>(x) at = Cast<to=7>(most) one = Gather(table, at)"
        " y = Mul(x, one) }",
    )


def takes(products: int) -> Callable[[Path], None]:
    """A model that multiplies so many matrices if a number is 2 or more."""

    def make(file: Path) -> None:
        save(
            file,
            "(float[n, 3] x) => (float[n, 3] y)"
            f" <int64 products = {{{products}}}, int64 one = {{1}}, bool yes = {{1}},"
            " float two = {2.0}, float zero = {0.0}>"
            " { most = ReduceMax<keepdims=0>(x) few = Less(most, two)"
            " times = Where(few, one, products)"
            f" last = Loop(times, yes, w) <body = b (int64 i, bool on, float[{_SIDE},{_SIDE}] a)"
            f" => (bool still, float[{_SIDE},{_SIDE}] c)"
            " { still = Identity(on) c = MatMul(a, w) }>"
            " sum = ReduceSum<keepdims=0>(last) none = Mul(sum, zero) y = Add(x, none) }",
            w=np.eye(_SIDE, dtype=np.float32),
        )

    return make


MAKE: dict[str, Callable[[Path], None]] = {
    "good": good,
    "differs": differs,
    "errs": errs,
    "slower": takes(_SLOW),
    "hangs": takes(_ENDLESS),
}


class Site:
    """A repository of the model ``m``, and a service of it that rolls its versions out."""

    def __init__(self, folder: Path) -> None:
        self.repository = Repository(folder / "models")
        self.folder = folder
        self.put("good", 1)

    def put(self, kind: str, version: int) -> None:
        """A further version comes into the repository."""
        made = self.folder / f"made-{version}"
        made.mkdir()
        MAKE[kind](made / "model.onnx")
        self.repository.move(made, "m", version)

    @contextmanager
    def serving(self, engines: int = 1, **rules: Any) -> Iterator[ServiceProcess]:
        """The service; the model says itself how its versions are rolled out."""
        keys: dict[str, Any] = {
            "steps": STEPS, "hold": 1, "samples": 30, "p99_ratio": 1000, "sticky": "x-user", **rules
        }  # fmt: skip
        lines = (
            f'parameters {{ key: "penstock.rollout.{key}" value {{ string_value: "{value}" }} }}'
            for key, value in keys.items()
        )
        self.repository.config("m", "\n".join(lines))
        server: dict[str, Any] = {
            "model_repository": str(self.repository.folder),
            "model_control_mode": "poll",
            "repository_poll_secs": 0.2,
            "model_cache": str(self.folder / "cache"),
            "deadline": 20,
        }
        if engines > 1:
            server |= {"build_dag_each_worker": True, "worker_num": engines}
        config = self.folder / "serve.yml"
        config.write_text(json.dumps({"server": server}))
        environment = {"PENSTOCK_LOG_LEVEL": "info"}
        with running(config, command=(*SERVE[:-1], "--config"), environment=environment) as made:
            yield made
            assert made.stop() == 0
            assert made.leftovers() == []
            assert "Traceback" not in made.log()


@dataclass(frozen=True)
class Answer:
    """What a caller got: the version that it names, and whether it is right."""

    user: str
    version: str | None
    good: bool


class Callers:
    """Callers over HTTP and gRPC, each with several users, until the end of the block.

    Attributes:
        answers: in order, of each caller.
    """

    def __init__(self, server: ServiceProcess, count: int = 6) -> None:
        self._server = server
        self._over = threading.Event()
        self.answers: list[list[Answer]] = [[] for _ in range(count)]
        calls = (self._over_http, self._over_grpc)
        self._threads = [
            threading.Thread(target=calls[number % 2], args=(number,)) for number in range(count)
        ]

    def __enter__(self) -> Callers:
        for each in self._threads:
            each.start()
        try:
            until(lambda: all(len(each) > 5 for each in self.answers))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def _inputs(self, caller: int) -> Iterator[tuple[str, list[float]]]:
        number = 0
        while not self._over.is_set():
            number += 1
            # Each caller has users of its own, so that the order of its answers is theirs.
            yield f"user-{caller}-{number % USERS}", [1.0 + number // USERS % 3] * 3

    def _over_http(self, caller: int) -> None:
        link = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=60)
        for user, x in self._inputs(caller):
            tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": x}
            body = json.dumps({"inputs": [tensor]})
            try:
                link.request("POST", "/v2/models/m/infer", body, {"x-user": user})
                got = link.getresponse()
                found = json.loads(got.read())
            except (OSError, http.client.HTTPException):  # its engine was killed
                link.close()
                continue
            right = got.status == 200 and found["outputs"][0]["data"] == x
            self.answers[caller].append(Answer(user, found.get("model_version"), right))
        link.close()

    def _over_grpc(self, caller: int) -> None:
        request_class, response_class = messages.inference_messages("ModelInfer")
        with grpc.insecure_channel(self._server.rpc_endpoint) as channel:
            call = channel.unary_unary(
                f"/{messages.INFERENCE}/ModelInfer",
                request_class.SerializeToString,
                response_class.FromString,
            )
            for user, x in self._inputs(caller):
                request = request_class(model_name="m")
                contents = request.inputs.add(name="x", datatype="FP32", shape=[1, 3]).contents
                contents.fp32_contents.extend(x)
                try:
                    got = call(request, metadata=(("x-user", user),), timeout=60)
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:  # its engine was killed
                        self.answers[caller].append(Answer(user, None, good=False))
                    continue
                right = [*got.outputs[0].contents.fp32_contents] == x
                self.answers[caller].append(Answer(user, got.model_version, right))

    @property
    def all(self) -> list[Answer]:
        return [each for answers in self.answers for each in answers]

    @property
    def harmed(self) -> set[str]:
        """The users who got an error, or a wrong answer."""
        return {each.user for each in self.all if not each.good}

    def paths(self) -> set[tuple[str, ...]]:
        """The versions that users got, one after the other."""
        seen: dict[str, list[str]] = {}
        for each in self.all:
            path = seen.setdefault(each.user, [])
            if each.version is not None and path[-1:] != [each.version]:
                path.append(each.version)
        return {tuple(path) for path in seen.values()}


def in_share(user: str, version: str = "2", share: int = STEPS[0]) -> bool:
    """Whether a user is in the share that a new version has at a step."""
    return Shares("m", {"1": 100 - share, version: share}).drawn_by(user.encode()) == version


def rollout(server: ServiceProcess) -> dict[str, Any]:
    """The state of the rollout, or of the last one; empty if the first engine is being replaced."""
    with direct.open(f"{server.http_url}/status", timeout=30) as answer:
        found = json.load(answer).get("rollouts") or [{}]
    return dict(found[0])


def begun(server: ServiceProcess, version: str = "2") -> dict[str, Any]:
    until(lambda: rollout(server).get("version") == version)
    return rollout(server)


def ended(server: ServiceProcess, version: str = "2") -> dict[str, Any]:
    def is_over() -> dict[str, Any] | None:
        found = rollout(server)
        return found if found.get("version") == version and found["state"] != "running" else None

    found: dict[str, Any] = until(is_over, 180)
    return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


long = pytest.mark.long


@long
@pytest.mark.parametrize("engines", [3, 1])
def test_a_good_version_gets_all_requests(site: Site, engines: int) -> None:
    with site.serving(engines) as server, Callers(server) as callers:
        site.put("good", 2)
        over = ended(server)
        assert over["state"] == "promoted", over
        until(lambda: index(server)["1"]["reason"] == "unloaded")
    assert callers.harmed == set()
    assert callers.paths() <= {("1",), ("2",), ("1", "2")}  # nobody went back


@pytest.mark.parametrize("engines", [3, pytest.param(1, marks=long)])
def test_a_version_that_fails_is_taken_back_and_stays_so(site: Site, engines: int) -> None:
    with site.serving(engines, hold=600) as server:
        with Callers(server) as callers:
            site.put("errs", 2)
            over = ended(server)
            assert over["state"] == "taken back", over
            assert "answers failed, and 0 of the" in over["why"]
            until(lambda: index(server)["2"]["state"] == "UNAVAILABLE")
            assert index(server)["2"]["reason"] == over["why"]
        assert callers.harmed != set()
        assert [each for each in callers.harmed if not in_share(each)] == []
        assert callers.paths() <= {("1",), ("1", "2"), ("1", "2", "1")}
        assert server.log().count("version 2 gets 10 % of the requests") == 1  # not tried again
        assert models(server, "load", "m").returncode == 0
        until(lambda: rollout(server)["state"] == "running")


@long
@pytest.mark.parametrize("engines", [1, 3])
def test_a_slower_version_is_taken_back(site: Site, engines: int) -> None:
    with site.serving(engines, hold=600, p99_ratio=1.5) as server, Callers(server) as callers:
        site.put("slower", 2)
        over = ended(server)
        assert over["state"] == "taken back", over
        assert "1.5 times the p99 of version 1" in over["why"]
    assert callers.harmed == set()


@long
@pytest.mark.parametrize("engines", [1, 3])
def test_a_version_that_hangs_is_taken_back_before_its_requests_are_over(
    site: Site, engines: int
) -> None:
    with site.serving(engines, hold=600, p99_ratio=1.5) as server, Callers(server, 40) as callers:
        site.put("hangs", 2)
        over = ended(server)
        assert over["state"] == "taken back", over
    assert [each for each in callers.harmed if not in_share(each)] == []


@pytest.mark.parametrize("engines", [1, pytest.param(3, marks=long)])
def test_a_version_that_answers_differently_is_taken_back_before_a_caller_gets_it(
    site: Site, engines: int
) -> None:
    rules = {"steps": [0, 50], "disagreement": 0.02, "shadow.share": 50}
    with site.serving(engines, **rules) as server, Callers(server) as callers:
        site.put("differs", 2)
        over = ended(server)
        assert over["state"] == "taken back", over
        assert "compared answers differ from those of version 1" in over["why"]
    assert callers.harmed == set()
    assert callers.paths() == {("1",)}


def engine(server: ServiceProcess, number: int) -> psutil.Process:
    """The process of an engine."""
    names = [each.name() for each in server.descendants()]
    return server.descendants()[names.index(f"engine {number}")]


@long
@pytest.mark.parametrize("number", [0, 1])
def test_a_rollout_outlives_an_engine(site: Site, number: int) -> None:
    with site.serving(2, hold=600) as server:
        with Callers(server) as callers:
            site.put("good", 2)
            begun(server)
            engine(server, number).kill()
            until(lambda: is_running(server))
            assert models(server, "promote", "m", "2").returncode == 0
            until(lambda: index(server)["1"]["state"] == "UNAVAILABLE")
        assert callers.harmed == set()
        assert callers.paths() <= {("1",), ("2",), ("1", "2")}


@long
def test_a_version_is_taken_back_and_barred_after_the_death_of_the_first_engine(
    site: Site,
) -> None:
    with site.serving(2, hold=600) as server:
        site.put("errs", 2)
        begun(server)
        engine(server, 0).kill()
        until(lambda: is_running(server))
        with Callers(server):
            over = ended(server)
            assert over["state"] == "taken back", over
            site.put("good", 3)  # and a later one is rolled out
            begun(server, "3")
        assert server.log().count("version 2 gets 10 % of the requests") == 1
        assert index(server)["2"]["state"] == "UNAVAILABLE"


def is_running(server: ServiceProcess) -> bool:
    try:
        return rollout(server).get("state") == "running" and len(index(server)) > 0
    except OSError:  # its engine was killed
        return False


@long
def test_operators_end_rollouts_two_at_once_and_a_newer_version_takes_the_place(
    site: Site,
) -> None:
    with site.serving(2, hold=600) as server:
        with Callers(server):
            site.put("good", 2)
            begun(server)
            site.put("good", 3)
            begun(server, "3")
            until(lambda: index(server)["2"]["reason"] == "unloaded")
            done = at_once(
                lambda: models(server, "promote", "m", "3"),
                lambda: models(server, "rollback", "m"),
            )
            # One after the other: a rollback after a promotion goes back to version 1.
            assert [each.returncode for each in done] in ([0, 0], [1, 0])
            until(lambda: [x for x, each in index(server).items() if each.get("default")] == ["1"])
            site.put("good", 4)
            begun(server, "4")
            done = at_once(*[lambda: models(server, "rollback", "m")] * 2)
            assert sorted(each.returncode for each in done) == [0, 1]
            assert index(server)["1"]["default"]
            assert models(server, "load", "m").returncode == 0
            until(lambda: rollout(server)["state"] == "running")
            assert models(server, "unload", "m").returncode == 0
            until(lambda: not any(x["state"] == "READY" for x in index(server).values()))


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Call functions at the same time; what they return."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [each.result() for each in [threads.submit(call) for call in calls]]


@long
def test_a_reload_of_the_service_does_not_end_a_rollout(site: Site) -> None:
    with site.serving(2, hold=600) as server:
        with Callers(server) as callers:
            site.put("good", 2)
            begun(server)
            old = [engine(server, number) for number in (0, 1)]
            server.send_signal(signal.SIGHUP)
            until(lambda: not any(each.is_running() for each in old))
            until(lambda: is_running(server))
            assert models(server, "promote", "m", "2").returncode == 0
        assert callers.harmed == set()
