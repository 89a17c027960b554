"""Many changes of a model under load, half of them broken, with a check of every answer.

    python -m tests.faults.swaps --swaps 100

A service of a model repository runs with workers in processes or threads, and one engine or three.
Callers in processes of their own ask for batches of differing sizes over HTTP and gRPC, at a fixed
rate. One version after another is loaded; every other one is broken. The table shows:

* failed: requests without a good answer;
* wrong: answers with an element that is not ``x * VERSION`` of the version that they name, so that
  an answer of two versions is one;
* disordered: requests that began after an answer of a newer version and got an older one; with
  several engines, on one connection;
* p99: of the requests during changes, beside that of the pauses before each of them;
* memory of all processes after a tenth of the changes and after all, and the numbers of their
  descriptors, processes, threads, files and bytes in the cache.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import grpc
import numpy as np
import psutil

from penstock.protocols.standard_messages import inference_messages
from tests.faults.callers import Answer, Told, Use, callers, percentile, use_of
from tests.kit.onnx_models import save
from tests.services.process import ServiceProcess
from tests.services.repository import Repository, serving, states, until

NAME: Final = "m"
KINDS: Final = ("http", "http", "grpc", "grpc")
"""One caller of each."""
MOST_ROWS: Final = 8
GOOD: Final = "good"
CACHE_MIB: Final = 64
ENDS: Final = 0.2
"""Seconds in which the version before ends; they count among those of the change."""

CONFIG: Final = f"""
max_batch_size: {MOST_ROWS}
dynamic_batching {{ max_queue_delay_microseconds: 500 }}
model_warmup {{
  name: "row" batch_size: 1
  inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: 3 zero_data: true }} }}
}}
model_warmup {{
  name: "full" batch_size: {MOST_ROWS}
  inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: 3 random_data: true }} }}
}}
"""
THREADS: Final = 'parameters { key: "penstock.executor" value { string_value: "thread" } }\n'

_SIGNATURE = "(float[n, 3] x) => (float[n, 3] y)"
_ENDLESS = """
    y = Loop(most, yes, x)
        <body = step (int64 i, bool go, float[n, 3] before) => (bool on, float[n, 3] after)
        { on = Identity(go)  after = Identity(before) }>"""
_CONSTANTS = "int64 most = {9223372036854775807}, bool yes = {1}"


# The callers.


class _OverHttp:
    def __init__(self, port: int) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def ask(self, x: np.ndarray[Any, Any]) -> tuple[int, np.ndarray[Any, Any]]:
        tensor = {"name": "x", "datatype": "FP32", "shape": x.shape, "data": x.ravel().tolist()}
        body = json.dumps({"inputs": [tensor]})
        try:
            self._link.request("POST", f"/v2/models/{NAME}/infer", body)
            answer = self._link.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self._link.close()
            raise
        if answer.status != 200:
            raise RuntimeError(f"{answer.status} {content[:200]!r}")
        plain = json.loads(content)
        (found,) = (each for each in plain["outputs"] if each["name"] == "y")
        return int(plain["model_version"]), np.array(found["data"]).reshape(found["shape"])


class _OverGrpc:
    def __init__(self, port: int) -> None:
        self._request, self._response = inference_messages("ModelInfer")
        self._call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=bytes,
            response_deserializer=self._response.FromString,
        )

    def ask(self, x: np.ndarray[Any, Any]) -> tuple[int, np.ndarray[Any, Any]]:
        request = self._request(model_name=NAME, raw_input_contents=[x.tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=x.shape)
        answer = self._call(request.SerializeToString(), timeout=30)
        at = [each.name for each in answer.outputs].index("y")
        found = np.frombuffer(answer.raw_output_contents[at], "<f4")
        return int(answer.model_version), found.reshape([*answer.outputs[at].shape])


def call(kind: str, port: int, seed: int, rate: float, pipe: Connection) -> None:
    """Ask ``rate`` times a second until the pipe says so; then tell what was seen."""
    found, chance = Told(), random.Random(seed)
    service = _OverHttp(port) if kind == "http" else _OverGrpc(port)
    due = monotonic()
    for number in itertools.count():
        due += chance.expovariate(rate)
        if pipe.poll(max(0.0, due - monotonic())):
            break
        rows = chance.randint(1, MOST_ROWS)
        x = np.empty((rows, 3), np.float32)
        x[:, 0], x[:, 1], x[:, 2] = seed + 1, number % 1000, np.arange(1, rows + 1)
        begun = monotonic()
        try:
            version, y = service.ask(x)
        except Exception as error:  # whatever it is, the request has failed
            found.failures.append(f"{kind}: {error!r:.500}")
            continue
        found.answers.append(Answer(due, begun, monotonic(), version))
        if y.shape != x.shape or (y != x * version).any():
            found.wrong.append(f"{kind}: version {version}: {x.tolist()}: {y.tolist()}")
    pipe.send(found)


# The versions.


def whole(file: Path, version: int) -> None:
    """A model of ``y = x * VERSION`` with 4 MiB of weights, so that what stays would be seen."""
    save(
        file,
        f"{_SIGNATURE} <float[1] factor = {{{float(version)}}}> {{ scaled = Mul(x, factor)"
        " h = MatMul(x, before) k = MatMul(h, square) none = MatMul(k, after)"
        " y = Add(scaled, none) }",
        before=np.zeros((3, 1024), np.float32),
        square=np.full((1024, 1024), version, np.float32),
        after=np.zeros((1024, 3), np.float32),
    )


@dataclass
class Bench:
    """A service, its repository, and what the changes need.

    Attributes:
        made: a folder for versions that are being made, beside the repository.
    """

    server: ServiceProcess
    repository: Repository
    made: Path

    def new(self) -> Path:
        """An empty folder."""
        shutil.rmtree(self.made, ignore_errors=True)
        self.made.mkdir()
        return self.made

    def place(self, version: int, *, manifest: bool = True, **lie: Any) -> None:
        """Put what was made into the repository, with a manifest that may have other values."""
        if manifest:
            files = [
                {
                    "path": each.name,
                    "size": each.stat().st_size,
                    "sha256": hashlib.sha256(each.read_bytes()).hexdigest(),
                    **lie,
                }
                for each in sorted(self.made.iterdir())
            ]
            plain = {"format": 1, "model": NAME, "version": str(version), "files": files}
            (self.made / "penstock-manifest.json").write_text(json.dumps(plain))
        self.repository.move(self.made, NAME, version)

    def load(self) -> tuple[int, str]:
        """Load the model as an operator does; the status and the reason."""
        link = http.client.HTTPConnection("127.0.0.1", self.server.http_port, timeout=120)
        link.request("POST", f"/v2/repository/models/{NAME}/load", "{}")
        answer = link.getresponse()
        text = answer.read().decode()
        link.close()
        return answer.status, text


def _of_text(bench: Bench, version: int, text: str) -> None:
    save(bench.new() / "model.onnx", text)
    bench.place(version)


def good(bench: Bench, version: int) -> None:
    whole(bench.new() / "model.onnx", version)
    bench.place(version)


def truncated(bench: Bench, version: int) -> None:
    file = bench.new() / "model.onnx"
    whole(file, version)
    os.truncate(file, file.stat().st_size // 2)
    bench.place(version)


def wrong_digest(bench: Bench, version: int) -> None:
    whole(bench.new() / "model.onnx", version)
    bench.place(version, sha256="0" * 64)


def half_copied(bench: Bench, version: int) -> None:
    """The manifest is there, and a half of the file."""
    whole(bench.new() / "model.onnx", version)
    bench.place(version)
    file = bench.repository.folder / NAME / str(version) / "model.onnx"
    os.truncate(file, file.stat().st_size // 2)


def no_model(bench: Bench, version: int) -> None:
    (bench.new() / "readme.txt").write_text("no model")
    bench.place(version)


def link_out(bench: Bench, version: int) -> None:
    outside = bench.repository.folder.parent / "outside.onnx"
    whole(outside, version)
    (bench.new() / "model.onnx").symlink_to(outside)
    bench.place(version, manifest=False)


def other_signature(bench: Bench, version: int) -> None:
    _of_text(bench, version, "(float[n, 3] x) => (double[n, 3] y) { y = Cast<to = 11>(x) }")


def too_large(bench: Bench, version: int) -> None:
    """Its first batch needs more memory than there is."""
    _of_text(
        bench,
        version,
        f"{_SIGNATURE} <int64[2] shape = {{1099511627776, 3}}> {{ all = ConstantOfShape(shape)"
        " none = ReduceSum<keepdims = 1>(all) y = Add(x, none) }",
    )


def hangs(bench: Bench, version: int) -> None:
    """At warm-up."""
    _of_text(bench, version, f"{_SIGNATURE} <{_CONSTANTS}> {{ {_ENDLESS} }}")


def hangs_in_batches(bench: Bench, version: int) -> None:
    """Its first batch of several rows never ends."""
    _of_text(
        bench,
        version,
        f"""{_SIGNATURE} <{_CONSTANTS}, int64[1] one = {{1}}, int64[1] zero = {{0}}>
        {{
            shape = Shape(x)
            rows = Slice(shape, zero, one)
            many = Greater(rows, one)
            several = Squeeze(many)
            y = Loop(most, several, x)
                <body = step (int64 i, bool go, float[n, 3] before) => (bool on, float[n, 3] after)
                {{ on = Identity(go)  after = Identity(before) }}>
        }}""",
    )


def fails_in_batches(bench: Bench, version: int) -> None:
    """Its first batch of several rows is an error."""
    _of_text(
        bench,
        version,
        f"{_SIGNATURE} <int64[2] one = {{1, 3}}> {{ y = Reshape(x, one) }}",
    )


@contextmanager
def _once(action: Callable[[], bool]) -> Iterator[None]:
    """Do something while a version is loaded, as soon as it is possible."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set() and not action():
            sleep(0.02)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _kill_new(bench: Bench, before: set[int], number: int) -> bool:
    """End a process that was started since, and has begun to compute."""
    for each in bench.server.descendants():
        with suppress(psutil.NoSuchProcess):
            if each.pid not in before and each.cpu_times().user > 0.4:
                os.kill(each.pid, number)
                return True
    return False


def _delete(bench: Bench, version: int) -> bool:
    if states(bench.server).get(str(version)) != "LOADING":
        return False
    shutil.rmtree(bench.repository.folder / NAME / str(version))
    return True


@dataclass(frozen=True)
class Kind:
    """A kind of broken versions.

    Attributes:
        make: makes a version of it.
        kills: what its new worker gets meanwhile.
        deleted: whether its files are removed meanwhile: then it may serve.
        threads: whether it may be tried with workers in threads: what ends a worker ends the
            service there, and what never returns is never freed.
    """

    make: Callable[[Bench, int], None]
    kills: int = 0
    deleted: bool = False
    threads: bool = True


BROKEN: Final[dict[str, Kind]] = {
    "truncated": Kind(truncated),
    "wrong digest": Kind(wrong_digest),
    "another signature": Kind(other_signature),
    "crash at warm-up": Kind(hangs, kills=signal.SIGSEGV, threads=False),
    "does not fit in memory": Kind(too_large),
    "hang at warm-up": Kind(hangs, threads=False),
    "deleted while loading": Kind(good, deleted=True),
    "half-copied folder": Kind(half_copied),
    "crash at the first batch": Kind(hangs_in_batches, kills=signal.SIGBUS, threads=False),
    "killed for memory": Kind(hangs, kills=signal.SIGKILL, threads=False),
    "hang at the first batch": Kind(hangs_in_batches, threads=False),
    "error at the first batch": Kind(fails_in_batches),
    "no model": Kind(no_model),
    "a link out": Kind(link_out),
}


# The run.


def settled(server: ServiceProcess, version: str) -> str | None:
    """The state of a version that is not about to change; None if it is."""
    state = states(server).get(version, "UNAVAILABLE")
    return None if state in ("LOADING", "UNLOADING") else state


@dataclass
class Result:
    """Of one run; see the module."""

    where: str
    engines: int
    answers: int = 0
    failures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    disordered: int = 0
    surprises: list[str] = field(default_factory=list)
    quiet: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    by_kind: dict[str, list[float]] = field(default_factory=dict)
    early: Use | None = None
    late: Use | None = None

    def row(self) -> str:
        """Its row of the table."""
        early, late = self.early, self.late
        assert early is not None
        assert late is not None
        quiet, during = percentile(self.quiet, 0.99), percentile(self.during, 0.99)
        cells = [
            f"{self.where}, {self.engines}",
            f"{self.answers:,}",
            f"{len(self.failures)}",
            f"{len(self.wrong)}",
            f"{self.disordered}",
            f"{1e3 * quiet:.2f}",
            f"{1e3 * during:.2f}",
            f"{during / quiet:.2f}",
            f"{early.memory / 2**20:.1f}",
            f"{late.memory / 2**20:.1f}",
            f"{100 * (late.memory / early.memory - 1):+.1f} %",
            f"{late.descriptors - early.descriptors:+d}",
            f"{late.processes - early.processes:+d}",
            f"{late.threads - early.threads:+d}",
            f"{late.cached_files - early.cached_files:+d}",
            f"{late.cached_bytes / 2**20:.1f}",
        ]
        return "| " + " | ".join(cells) + " |"


HEAD: Final = (
    "| workers, engines | answers | failed | wrong | disordered | p99 before, ms | during, ms |"
    " ratio | MiB early | late | change | descriptors | processes | threads | cached files |"
    " cached MiB |\n" + "| --- " + "| ---: " * 15 + "|"
)


def disordered(told: Sequence[Told], *, together: bool) -> int:
    """Requests that began after an answer of a newer version and got an older one."""
    groups = [[x for each in told for x in each.answers]] if together else [x.answers for x in told]
    found = 0
    for answers in groups:
        newest: list[tuple[float, int]] = []  # when each version gave its first answer
        for each in sorted(answers, key=lambda each: each.done):
            if not newest or each.version > newest[-1][1]:
                newest.append((each.done, each.version))
        at, known = 0, 0
        for each in sorted(answers, key=lambda each: each.begun):
            while at < len(newest) and newest[at][0] < each.begun:
                known, at = newest[at][1], at + 1
            found += each.version < known
    return found


def run(
    where: str,
    engines: int,
    swaps: int,
    *,
    rate: float,
    pause: float,
    limit: int = 10,
    kinds: Sequence[str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Result:
    """Change the model so often, under load.

    Args:
        where: the workers: ``process`` or ``thread``.
        engines: their number.
        swaps: how often.
        rate: requests a second, of all callers together.
        pause: seconds before each change.
        limit: seconds in which a version must be ready; only those that hang take longer.
        kinds: of broken versions; None for all.
        tell: called with a line of text after each change.
    """
    result = Result(where, engines)
    environment = {"PENSTOCK_START_TIMEOUT": str(limit)}
    if engines > 1:
        environment |= {
            "PENSTOCK_BUILD_DAG_EACH_WORKER": "true",
            "PENSTOCK_WORKER_NUM": str(engines),
        }
    broken = [
        (name, kind)
        for name, kind in BROKEN.items()
        if (kinds is None or name in kinds) and (kind.threads or where == "process")
    ]
    of_kinds = itertools.cycle(broken)
    with tempfile.TemporaryDirectory(prefix="swaps-") as temporary:
        repository = Repository(Path(temporary) / "models")
        repository.config(NAME, CONFIG + (THREADS if where == "thread" else ""))
        whole(repository.folder.parent / "first.onnx", 1)
        repository.put(NAME, 1, (repository.folder.parent / "first.onnx").read_bytes())
        cache = repository.folder.parent / "cache"
        flags = ("--load-model", "*", "--model-cache-limit-mib", str(CACHE_MIB))
        with serving(repository, *flags, mode="explicit", environment=environment) as server:
            bench = Bench(server, repository, repository.folder.parent / "made")
            windows: list[tuple[float, float, str]] = []
            refused: list[int] = []
            with callers(server, KINDS, rate / len(KINDS), call) as told:
                sleep(2.0)  # until all of them call
                serves = 1
                for number in range(2, swaps + 2):
                    name, kind = (GOOD, Kind(good)) if number % 2 else next(of_kinds)
                    kind.make(bench, number)
                    before = {each.pid for each in server.descendants()}
                    action: Callable[[], bool] | None = None
                    if kind.kills:
                        action = partial(_kill_new, bench, before, kind.kills)
                    elif kind.deleted:
                        action = partial(_delete, bench, number)
                    begun = monotonic()
                    sleep(pause)
                    windows.append((begun, monotonic(), ""))
                    begun = monotonic()
                    with nullcontext() if action is None else _once(action):
                        status, text = bench.load()
                    sleep(ENDS)
                    windows.append((begun, monotonic(), name))
                    took = monotonic() - begun
                    state = until(lambda of=str(number): settled(server, of))
                    served = state == "READY"
                    if not served:
                        refused.append(number)
                    if served != (status == 200) or (not kind.deleted and served != (name == GOOD)):
                        result.surprises.append(f"{name}, version {number}: {status} {text}")
                    if served:
                        until(lambda of=serves: settled(server, str(of)) == "UNAVAILABLE")
                        shutil.rmtree(repository.folder / NAME / str(serves), ignore_errors=True)
                        serves = number
                    else:
                        shutil.rmtree(repository.folder / NAME / str(number), ignore_errors=True)
                    what = f"{number - 1}: {name}: {took:.1f} s: {status} {text}"
                    tell(f"{where}, {engines}: {what[:200]}")
                    if number - 1 in (max(2, swaps // 10), swaps):
                        sleep(pause)
                        use = use_of(server, cache)
                        result.early, result.late = result.early or use, use
                        tell(f"{use}")
            log = server.log()
            told_of = [
                # The second of one that is deleted between two looks at it.
                max(
                    log.count(f"version {each} {how}") for how in ("cannot be served", "is awaited")
                )
                for each in refused
            ]
            if {*told_of} - {1}:
                result.surprises.append(f"versions {refused} were told of {told_of} times")
            code = server.stop()
            if code or server.leftovers():
                result.surprises.append(f"exit status {code}, left over {server.leftovers()}")
            if "Traceback" in log:
                result.surprises.append(
                    "the log has a traceback: " + log[log.index("Traceback") :][:3000]
                )
    _judge(result, told, windows)
    return result


def _judge(
    result: Result, told: Sequence[Told], windows: Sequence[tuple[float, float, str]]
) -> None:
    for each in told:
        result.answers += len(each.answers)
        result.failures += each.failures
        result.wrong += each.wrong
    result.disordered = disordered(told, together=result.engines == 1)
    answers = [x for each in told for x in each.answers]
    starts = np.array([each[0] for each in windows])
    for each in answers:
        at = int(np.searchsorted(starts, each.due, "right")) - 1
        if at < 0 or each.due > windows[at][1]:
            continue
        (result.during if windows[at][2] else result.quiet).append(each.done - each.due)
        result.by_kind.setdefault(windows[at][2] or "before", []).append(each.done - each.due)


def main() -> int:
    """Run what was asked for, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.swaps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds before each change")
    parser.add_argument("--where", action="append", choices=("process", "thread"))
    parser.add_argument("--engines", action="append", type=int)
    parser.add_argument("--kind", action="append", choices=[*BROKEN], help="only these are broken")
    options = parser.parse_args()
    rows, faults = [], 0
    for where in options.where or ("process", "thread"):
        for engines in options.engines or (1, 3):
            result = run(
                where,
                engines,
                options.swaps,
                rate=options.rate,
                pause=options.pause,
                kinds=options.kind,
                tell=lambda text: print(
                    f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True
                ),
            )
            rows.append(result.row())
            for each in (*result.failures[:3], *result.wrong[:3], *result.surprises):
                print(each, file=sys.stderr)
            for name, values in result.by_kind.items():
                line = [1e3 * percentile(values, share) for share in (0.5, 0.9, 0.99, 0.999)]
                print(f"{name}: {len(values)}", *(f"{x:.2f}" for x in line), file=sys.stderr)
            faults += len(result.failures) + len(result.wrong) + result.disordered
            faults += len(result.surprises)
    print(HEAD, *rows, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
