"""A repository of models in a folder, a service of it, and callers that check each answer."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tests.kit.onnx_models import scale
from tests.services.process import ServiceProcess, direct, running

SERVE = (sys.executable, "-m", "penstock", "serve", "--model-repository")


class Repository:
    """A folder with models ``y = x * VERSION``: the answer tells the version that gave it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, version: int, factor: float | None = None) -> Path:
        """Add a version, which is complete at once."""
        made = self.folder.parent / f"made-{name}-{version}"
        made.mkdir()
        scale(made / "model.onnx", version if factor is None else factor)
        return self.move(made, name, version)

    def put(self, name: str, version: int, content: bytes) -> Path:
        """Add a version with this content of its file."""
        made = self.folder.parent / f"made-{name}-{version}"
        made.mkdir()
        (made / "model.onnx").write_bytes(content)
        return self.move(made, name, version)

    def move(self, made: Path, name: str, version: int) -> Path:
        """Give a folder its place, or its contents if there is one."""
        place = self.folder / name / str(version)
        place.parent.mkdir(exist_ok=True)
        if place.exists():
            shutil.copytree(made, place, dirs_exist_ok=True)
            shutil.rmtree(made)
        else:
            made.rename(place)
        return place

    def config(self, name: str, text: str) -> None:
        """Give a model a configuration."""
        (self.folder / name).mkdir(exist_ok=True)
        (self.folder / name / "config.pbtxt").write_text(text)


@contextmanager
def serving(
    repository: Repository,
    *arguments: str,
    mode: str = "poll",
    url: str | None = None,
    **more: Any,
) -> Iterator[ServiceProcess]:
    """A service of a repository, maybe at a URL, with a cache of its own."""
    environment = {
        "XDG_CACHE_HOME": str(repository.folder.parent / "cache"),
        **more.pop("environment", {}),
    }
    flags = ["--model-control-mode", mode]
    if mode == "poll":
        flags += ["--repository-poll-secs", "0.2"]
    place = repository.folder if url is None else url
    more.setdefault("cwd", repository.folder.parent)
    with running(
        place, *flags, *arguments, command=SERVE, environment=environment, **more
    ) as server:
        yield server


def infer(
    link: http.client.HTTPConnection, name: str, version: str | None = None
) -> tuple[int, Any]:
    """One request; the status and the answer."""
    path = f"/v2/models/{name}" + (f"/versions/{version}" if version else "") + "/infer"
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 1.0, 1.0]}
    link.request("POST", path, json.dumps({"inputs": [tensor]}))
    answer = link.getresponse()
    return answer.status, json.loads(answer.read())


def once(server: ServiceProcess, name: str = "m", version: str | None = None) -> tuple[int, Any]:
    """One request on a connection of its own."""
    link = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    try:
        return infer(link, name, version)
    finally:
        link.close()


class Load:
    """Callers without a pause, each on its own connection.

    Attributes:
        versions: those that answered, in the order of the answers.
        answers: each caller's, in order: when it was asked for, when it was there (seconds of the
            monotonic clock), and the version that gave it.
        failures: answers that are none, or are not those of their version.
    """

    def __init__(
        self, server: ServiceProcess, name: str, callers: int, version_of: Callable[[Any], str]
    ) -> None:
        self.versions: list[str] = []
        self.answers: list[list[tuple[float, float, str]]] = [[] for _ in range(callers)]
        self.failures: list[Any] = []
        self._server = server
        self._name = name
        self._version_of = version_of
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(x,)) for x in self.answers]
        for each in self._threads:
            each.start()

    def _call(self, answers: list[tuple[float, float, str]]) -> None:
        link = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=30)
        while not self._stop.is_set():
            begun = monotonic()
            try:
                status, answer = infer(link, self._name)
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                link.close()
                continue
            if status != 200:
                self.failures.append((status, answer))
                continue
            version = self._version_of(answer)
            values = {each["name"]: each["data"] for each in answer["outputs"]}
            if values["y"] != [float(version)] * 3:
                self.failures.append(answer)
            answers.append((begun, monotonic(), version))
            self.versions.append(version)
        link.close()

    def stop(self) -> None:
        """End, when the requests in flight are answered."""
        self._stop.set()
        for each in self._threads:
            each.join()

    def wait(self, version: str) -> None:
        """Wait until a version answers."""
        until(lambda: version in self.versions[-20:])


def told(answer: Any) -> str:
    """The version that an answer tells."""
    return str(answer["model_version"])


@contextmanager
def load(
    server: ServiceProcess,
    name: str = "m",
    callers: int = 3,
    version_of: Callable[[Any], str] = told,
) -> Iterator[Load]:
    """Load on a model for the time of the block."""
    made = Load(server, name, callers, version_of)
    try:
        yield made
    finally:
        made.stop()


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until something is so; returns it."""
    end = monotonic() + seconds
    while not (found := condition()):
        assert monotonic() < end, "it did not become so"
        sleep(0.02)
    return found


def models(server: ServiceProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``penstock models``."""
    command = [sys.executable, "-m", "penstock", "models", *arguments]
    command += ["--address", f"127.0.0.1:{server.http_port}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def index(
    server: ServiceProcess, name: str = "m", port: int | None = None
) -> dict[str, dict[str, Any]]:
    """The rows of the index of a model, by version."""
    link = http.client.HTTPConnection("127.0.0.1", port or server.http_port, timeout=30)
    link.request("POST", "/v2/repository/index")
    answer = link.getresponse()
    rows = json.loads(answer.read())
    link.close()
    if answer.status != 200:  # the engine that knows is being replaced
        raise ConnectionError(rows)
    return {each["version"]: each for each in rows if each["name"] == name}


def states(server: ServiceProcess, name: str = "m", port: int | None = None) -> dict[str, str]:
    """The states of a model's versions."""
    return {version: each["state"] for version, each in index(server, name, port).items()}


def workers(server: ServiceProcess, version: str, name: str = "m") -> list[int]:
    """The pids of the worker processes of a version."""
    with direct.open(f"{server.http_url}/status", timeout=30) as answer:
        graphs = json.load(answer)["graphs"]
    ops = [op for x in graphs if (x["name"], x["version"]) == (name, version) for op in x["ops"]]
    return [each["pid"] for op in ops for each in op["loaded"] or () if each]


def alive(pids: Iterable[int]) -> list[int]:
    """Those of the processes that have not ended."""
    return [each for each in pids if Path(f"/proc/{each}").exists()]


def in_order(answers: list[tuple[float, float, str]]) -> bool:
    """Whether no request that began after an answer of a version was answered by an older one."""
    newest: list[tuple[float, int]] = []  # when each version gave its first answer
    for _, done, version in sorted(answers, key=lambda each: each[1]):
        if not newest or int(version) > newest[-1][1]:
            newest.append((done, int(version)))
    return all(
        int(version) >= max((of for first, of in newest if first < begun), default=0)
        for begun, _, version in answers
    )


def engine_pids(server: ServiceProcess) -> list[str]:
    """The engines, the first one first."""
    return [pid for pid, title in sorted(titles(server).items(), key=_pid) if "engine" in title]


def _pid(item: tuple[str, str]) -> int:
    return int(item[0])


def titles(server: ServiceProcess) -> dict[str, str]:
    """The titles of the processes of a service, by their ids."""
    found = {}
    for each in server.descendants():
        with suppress(OSError):  # it has ended
            found[str(each.pid)] = Path(f"/proc/{each.pid}/comm").read_text().strip()
    return found
