"""Many reloads of a program under load, half of them of broken programs, with a check of every
answer.

    python -m tests.faults.reloads --reloads 20

The program is an App with a class that has a state, a typed function, a project with a
``config.yml``, or the models of ``penstock serve``; its ops run in threads or processes, with one
engine or three. Callers in processes of their own ask over HTTP/1.1 on kept connections, HTTP/2
and gRPC. The program is changed again and again, to the next version or to one that does not start,
and reloaded by ``POST /reload`` and by SIGHUP in turn. The table shows:

* failed: requests without a good answer;
* wrong: answers that are not wholly those of one version;
* older: answers that are older than one which the same connection has already got;
* late: answers of an older version on connections that were opened after the reload had been
  reported;
* the longest of all answers, and the longest during a reload, in milliseconds;
* memory of all processes after a tenth of the reloads and after all, and the numbers of their
  descriptors, processes and threads.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import random
import select
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, Protocol

import grpc
import httpx
import numpy as np
import psutil

from penstock.errors import StartupError
from penstock.protocols.pb import Request, Response
from penstock.protocols.standard_messages import inference_messages
from penstock.supervisor.reload import reload_process
from tests.faults.callers import Answer, Told, Use, callers, use_of
from tests.kit import frames as f
from tests.kit.http1 import connect
from tests.kit.http2 import Link, client_of
from tests.kit.onnx_models import scale
from tests.service.scripts import PENSTOCK, fetch
from tests.services.process import ServiceProcess, running

KINDS: Final = ("http", "http kept", "http/2", "grpc")
"""The callers: one connection; many connections, which are used in turn; HTTP/2; grpcio."""
ALL_CALLERS: Final = (*KINDS, "httpx")
KEPT: Final = 24
"""Connections of a caller of many."""
GOOD: Final = "good"
DRAIN: Final = 20.0
LONGEST: Final = 120.0
"""Seconds for a reload to have a result, and for the old processes to end."""
ROWS: Final = 2


# Programs.

FUNCTION: Final = """
import time
from typing import Annotated

import numpy as np
from penstock import App, Array

{before}
VERSION = {version}
Rows = Annotated[np.ndarray, Array("float32", (None, 3))]
app = App("m"{settings})


@app.route("/m", batch=4, workers=2, executor={executor!r}, examples=[{{"x": [[1, 2, 3]]}}])
def m(x: list[Rows]) -> list[Rows]:
    {warm_up}
    return [each * VERSION for each in x]
"""

CLASS: Final = """
import os, signal, time
from typing import Annotated

import numpy as np
from penstock import App, Array

{before}
VERSION = {version}
Rows = Annotated[np.ndarray, Array("float32", (None, 3))]
app = App("m"{settings})


@app.route("/m", batch=4, workers=2, executor={executor!r}, examples=[{{"x": [[1, 2, 3]]}}])
class m:
    def load(self):
        {start}
        self.weights = np.full((512, 1024), VERSION, np.float32)

    def predict(self, x: list[Rows]) -> list[Rows]:
        {warm_up}
        return [each * self.weights[0, 0] for each in x]
"""

PROJECT: Final = """
import os, signal, time

from penstock import Op, WebService

{before}
VERSION = {version}


class First(Op):
    def process(self, feed_batch, typical_logid):
        return {{"x": feed_batch[0]["x"], "first": str(VERSION)}}


class Second(Op):
    def init_op(self):
        {start}

    def process(self, feed_batch, typical_logid):
        {warm_up}
        return {{**feed_batch[0], "second": str(VERSION)}}


class M(WebService):
    def get_pipeline_response(self, read_op):
        return Second("second", input_ops=[First("first", input_ops=[read_op])])
"""

PROJECT_CONFIG: Final = """
service: service.py:M
name: m
dag:
  is_thread_op: {threads}
op:
  first: {{concurrency: 2}}
  second: {{concurrency: 2}}
{settings}
"""


@dataclass(frozen=True)
class Broken:
    """What is wrong with a program.

    Attributes:
        before: code at its beginning.
        start: at the start of its op.
        warm_up: in each call of its op.
        settings: further settings, by key.
        text: replaces the program's.
        slow: it fails after ``start_timeout`` only.
    """

    before: str = ""
    start: str = "pass"
    warm_up: str = "pass"
    settings: Mapping[str, Any] = field(default_factory=dict)
    text: str | None = None
    slow: bool = False


BROKEN: Final[dict[str, Broken]] = {
    "syntax error": Broken(text="def ("),
    "exception at import": Broken(before='raise RuntimeError("no such file")'),
    "exits 0": Broken(before="raise SystemExit(0)"),
    "exits without a word": Broken(before="import os; os._exit(0)"),
    "hangs at import": Broken(before="time.sleep(600)", slow=True),
    "port in use": Broken(before="import socket; socket.create_server(('127.0.0.1', {port}))"),
    "another port": Broken(settings={"admin_port": 1999}),
    "model fails": Broken(start='raise OSError("no such model")'),
    "fails at warm-up": Broken(warm_up='raise ValueError("a bad model")'),
    "worker dies": Broken(start="os.kill(os.getpid(), signal.SIGSEGV)"),
    "hangs at its start": Broken(start="time.sleep(600)", slow=True),
    "unknown key": Broken(settings={"concurrencies": 1}),
    "empty": Broken(text=""),
}
MODELS: Final = ("no file", "truncated", "no model")
"""What is wrong with a model's file."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of services.

    Attributes:
        command: what comes before the file.
        file: that is started.
        program: the file that is changed.
        text: of the program; None: it is a model.
        lacks: kinds of broken programs that it cannot have.
        tensors: whether the callers send tensors, in the Open Inference Protocol.
    """

    command: Sequence[str]
    file: str
    program: str
    text: str | None
    lacks: Sequence[str] = ()
    tensors: bool = True


FORMS: Final[dict[str, Form]] = {
    "class": Form(command=PENSTOCK, file="service.py", program="service.py", text=CLASS),
    "function": Form(
        command=PENSTOCK,
        file="service.py",
        program="service.py",
        text=FUNCTION,
        lacks=("model fails", "worker dies", "hangs at its start"),
    ),
    "project": Form(
        command=PENSTOCK,
        file="config.yml",
        program="service.py",
        text=PROJECT,
        lacks=("fails at warm-up",),  # it has no examples
        tensors=False,
    ),
    "serve": Form(
        command=(*PENSTOCK[:-1], "serve", "--model"),
        file="m.onnx",
        program="m.onnx",
        text=None,
    ),
}


def write(
    form: Form, folder: Path, version: int, kind: str | Broken, where: str, port: int = 0
) -> None:
    """Write the program of a version, whole at once, as those do who deploy one.

    Args:
        form: of the service.
        folder: its folder.
        version: of the program.
        kind: ``GOOD``, or what is wrong with it.
        where: its ops run: ``process`` or ``thread``.
        port: one that is in use.
    """
    place, new = folder / form.program, folder / "new"
    if form.text is None:
        scale(new, version)
        if kind == "no file":
            new.unlink()
            place.unlink()
            return
        if kind == "truncated":
            os.truncate(new, new.stat().st_size // 2)
        elif kind == "no model":
            new.write_text("no model")
        new.rename(place)
        return
    broken = kind if isinstance(kind, Broken) else Broken() if kind == GOOD else BROKEN[kind]
    if form.file == "config.yml":
        lines = [f"{key}: {value}" for key, value in broken.settings.items()]
        given = {"threads": str(where == "thread").lower(), "settings": "\n".join(lines)}
        new.write_text(PROJECT_CONFIG.format(**given))
        new.rename(folder / form.file)
    text = form.text.format(
        before=broken.before.format(port=port),
        start=broken.start,
        warm_up=broken.warm_up,
        version=version,
        executor=where,
        settings="".join(f", {key}={value!r}" for key, value in broken.settings.items()),
    )
    new.write_text(text if broken.text is None else broken.text)
    new.rename(place)


# The callers.


class Wrong(Exception):
    """An answer that is not wholly one version's."""


class _Tensors:
    """A request and its answer in the Open Inference Protocol."""

    path = "/v2/models/m/infer"
    method = "/inference.GRPCInferenceService/ModelInfer"

    def __init__(self) -> None:
        self._request, response = inference_messages("ModelInfer")
        self.decode = response.FromString

    def body(self, number: int) -> bytes:
        data = [number % 1000 + 1.0] * 3 * ROWS
        tensor = {"name": "x", "datatype": "FP32", "shape": [ROWS, 3], "data": data}
        return json.dumps({"inputs": [tensor]}).encode()

    def message(self, number: int) -> bytes:
        x = np.full((ROWS, 3), number % 1000 + 1.0, np.float32)
        request = self._request(model_name="m", raw_input_contents=[x.tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=x.shape)
        return bytes(request.SerializeToString())

    def of_body(self, number: int, body: bytes) -> int:
        (found, *_) = json.loads(body)["outputs"]
        return self._version(number, found["data"])

    def of_message(self, number: int, answer: Any) -> int:
        return self._version(number, np.frombuffer(answer.raw_output_contents[0], "<f4").tolist())

    @staticmethod
    def _version(number: int, values: list[float]) -> int:
        x = number % 1000 + 1.0
        version = round(values[0] / x)
        if values != [x * version] * 3 * ROWS:
            raise Wrong(f"{x}: {values}")
        return version


class _Pairs:
    """A request and its answer in the pipeline protocol."""

    path = "/m/prediction"
    method = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"

    def __init__(self) -> None:
        self.decode = Response.FromString

    def body(self, number: int) -> bytes:
        return json.dumps({"key": ["x"], "value": [str(number)]}).encode()

    def message(self, number: int) -> bytes:
        return bytes(Request(key=["x"], value=[str(number)], name="m").SerializeToString())

    def of_body(self, number: int, body: bytes) -> int:
        plain = json.loads(body)
        return self._version(number, plain["err_no"], plain["key"], plain["value"])

    def of_message(self, number: int, answer: Any) -> int:
        return self._version(number, answer.err_no, answer.key, answer.value)

    @staticmethod
    def _version(number: int, status: int, keys: Sequence[str], values: Sequence[str]) -> int:
        pairs = dict(zip(keys, values, strict=True))
        if status or pairs["x"] != str(number) or pairs["first"] != pairs["second"]:
            raise Wrong(f"{number}: {status} {pairs}")
        return int(pairs["first"])


class _Caller(Protocol):
    """Sends one request after another.

    Attributes:
        connection: the number of that of the last answer; 0 if it is not known.
    """

    connection: int

    def ask(self, number: int) -> int:
        """The version that answers; raises an exception if there is no good answer."""

    def close(self) -> None:
        """Close its connections."""


class _Http:
    """HTTP/1.1 on kept connections, used in turn.

    Like most clients it looks before a request whether the connection has been closed.
    """

    def __init__(self, port: int, talk: _Tensors | _Pairs, count: int) -> None:
        self._port, self._talk = port, talk
        self._links: list[http.client.HTTPConnection | None] = [None] * count
        self._numbers = [0] * count
        self._opened = itertools.count(1)
        self.connection = 0

    def ask(self, number: int) -> int:
        at = number % len(self._links)
        link = self._links[at]
        if link is None or link.sock is None or select.select([link.sock], [], [], 0)[0]:
            if link is not None:
                link.close()
            link = self._links[at] = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            self._numbers[at] = next(self._opened)
        try:
            link.request("POST", self._talk.path, self._talk.body(number))
            answer = link.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            link.close()
            raise
        if answer.status != 200:
            raise RuntimeError(f"{answer.status} {content[:200]!r}")
        self.connection = self._numbers[at]
        return self._talk.of_body(number, content)

    def close(self) -> None:
        for each in self._links:
            if each is not None:
                each.close()


class _Http2:
    """HTTP/2, one request at a time; after a GOAWAY the next one has a new connection."""

    _HEAD = f.changed(f.POST, b":authority", b"localhost")

    def __init__(self, port: int, talk: _Tensors | _Pairs) -> None:
        self._port, self._talk = port, talk
        self._link: Link | None = None
        self.connection = 0

    def ask(self, number: int) -> int:
        while True:
            link = self._link
            if link is not None:
                while not link.closed and select.select([link.socket], [], [], 0)[0]:
                    link.read()
            if link is None or link.closed or link.goaways:
                if link is not None:
                    link.socket.close()
                self._link = link = client_of(connect(self._port, 30.0))
                self.connection += 1
            path = self._talk.path.encode()
            stream = link.open(f.changed(self._HEAD, b":path", path))
            link.upload(stream, self._talk.body(number))
            content = link.content(stream)
            link.until(partial(_over, link, stream))
            if content.ended:
                break
        if content.reset is not None or content.http_status != 200:
            raise RuntimeError(f"{content.reset} {content.heads} {content.body[:200]!r}")
        return self._talk.of_body(number, bytes(content.body))

    def close(self) -> None:
        if self._link is not None:
            self._link.socket.close()


def _over(link: Link, stream: int) -> bool:
    """Whether a stream has ended, or the service has said that it does not take it, so that it may
    be repeated.
    """
    return link.content(stream).ended or any(last < stream for last, _ in link.goaways)


class _Httpx:
    """httpx over HTTP/2."""

    connection = 0

    def __init__(self, port: int, talk: _Tensors | _Pairs) -> None:
        self._url, self._talk = f"http://127.0.0.1:{port}{talk.path}", talk
        self._client = httpx.Client(http1=False, http2=True, timeout=30, trust_env=False)

    def ask(self, number: int) -> int:
        answer = self._client.post(self._url, content=self._talk.body(number))
        answer.raise_for_status()
        return self._talk.of_body(number, answer.content)

    def close(self) -> None:
        self._client.close()


class _Grpc:
    """grpcio."""

    connection = 0

    def __init__(self, port: int, talk: _Tensors | _Pairs) -> None:
        self._talk = talk
        options = [("grpc.enable_http_proxy", 0)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options)
        self._call = self._channel.unary_unary(
            talk.method, request_serializer=bytes, response_deserializer=talk.decode
        )

    def ask(self, number: int) -> int:
        return self._talk.of_message(number, self._call(self._talk.message(number), timeout=30))

    def close(self) -> None:
        self._channel.close()


def _caller(kind: str, port: int, form: str) -> _Caller:
    talk = _Tensors() if FORMS[form].tensors else _Pairs()
    match kind:
        case "http":
            return _Http(port, talk, 1)
        case "http kept":
            return _Http(port, talk, KEPT)
        case "http/2":
            return _Http2(port, talk)
        case "httpx":
            return _Httpx(port, talk)
        case _:
            return _Grpc(port, talk)


@dataclass(frozen=True)
class Call:
    """Calls a service of this form, in a process of its own; see ``callers``."""

    form: str

    def __call__(self, kind: str, port: int, seed: int, rate: float, pipe: Connection) -> None:
        """Ask ``rate`` times a second until the pipe says so; then tell what was seen."""
        found, chance = Told(), random.Random(seed)
        caller = _caller(kind, port, self.form)
        due = monotonic()
        for number in itertools.count(1):
            due += chance.expovariate(rate)
            if pipe.poll(max(0.0, due - monotonic())):
                break
            begun = monotonic()
            try:
                version = caller.ask(number)
            except Wrong as error:
                found.wrong.append(f"{kind}: {error}")
            except Exception as error:  # whatever it is, the request has failed
                found.failures.append(f"{time.time():.3f} {kind}: {error!r:.500}")
            else:
                at = caller.connection
                found.answers.append(Answer(due, begun, monotonic(), version, at))
        caller.close()
        pipe.send(found)


# The run.


@dataclass
class Result:
    """Of one run; see the module."""

    what: str
    answers: int = 0
    failures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    older: int = 0
    late: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    longest: float = 0.0
    seconds: list[float] = field(default_factory=list)
    early: Use | None = None
    last: Use | None = None

    def row(self) -> str:
        """Its row of the table."""
        early, last = self.early, self.last
        assert early is not None
        assert last is not None
        cells = [
            self.what,
            f"{self.answers:,}",
            f"{len(self.failures)}",
            f"{len(self.wrong)}",
            f"{self.older}",
            f"{len(self.late)}",
            f"{1e3 * self.longest:.0f}",
            f"{max(self.seconds, default=0.0):.1f}",
            f"{early.memory / 2**20:.1f}",
            f"{last.memory / 2**20:.1f}",
            f"{100 * (last.memory / early.memory - 1):+.1f} %",
            f"{last.descriptors - early.descriptors:+d}",
            f"{last.processes - early.processes:+d}",
            f"{last.threads - early.threads:+d}",
        ]
        return "| " + " | ".join(cells) + " |"

    @property
    def faults(self) -> list[str]:
        """What must not have been."""
        older = [f"{self.older} older answers"] * bool(self.older)
        return [*self.failures, *self.wrong, *older, *self.late, *self.surprises]


HEAD: Final = (
    "| form, ops, engines | answers | failed | wrong | older | late | longest answer, ms |"
    " longest reload, s | MiB early | late | change | descriptors | processes | threads |\n"
    + "| --- "
    + "| ---: " * 13
    + "|"
)


def older_answers(told: Sequence[Told]) -> int:
    """Answers that are older than one which the same connection has already got."""
    found = 0
    for each in told:
        newest: dict[int, int] = {}
        for answer in each.answers:
            if answer.connection:
                found += answer.version < newest.get(answer.connection, 0)
                newest[answer.connection] = answer.version
    return found


def reload(server: ServiceProcess, number: int) -> str | None:
    """Reload by SIGHUP or over HTTP, in turn; the reason of a failure."""
    if number % 2:
        try:
            reload_process(server.pid, LONGEST)
        except StartupError as error:
            return str(error)
        return None
    answer = fetch(f"{server.http_url}/reload", b"", LONGEST)
    return None if answer.status == 200 else answer.body.decode()


def titles(server: ServiceProcess) -> list[str]:
    """Of its processes that have not ended."""
    found = []
    for each in server.descendants():
        try:
            if each.status() != psutil.STATUS_ZOMBIE:
                found.append(each.name())
        except psutil.NoSuchProcess:
            continue
    return sorted(found)


def settled(server: ServiceProcess, wanted: Sequence[str]) -> bool:
    """Wait until the old processes have ended; whether those with these titles are left."""
    end = monotonic() + LONGEST
    while titles(server) != wanted and monotonic() < end:
        sleep(0.05)
    return titles(server) == wanted


def late_answers(server: ServiceProcess, form: str, version: int) -> list[str]:
    """Answers of another version on new connections."""
    found = []
    for number in range(1, 5):
        with closing(_caller("http", server.http_port, form)) as caller:
            answer = caller.ask(number)
        if answer != version:
            found.append(f"late: version {answer} instead of {version}")
    return found


def kinds_of(form: Form, *, slow: bool = True) -> list[str]:
    """The kinds of broken programs that a service can have."""
    if form.text is None:
        return [*MODELS]
    kinds = BROKEN.items()
    return [name for name, each in kinds if name not in form.lacks and (slow or not each.slow)]


def run(
    name: str,
    where: str,
    engines: int,
    reloads: int,
    *,
    rate: float,
    pause: float,
    limit: int,
    kinds: Sequence[str] | None = None,
    of_callers: Sequence[str] = KINDS,
    tell: Callable[[str], None] = lambda text: None,
) -> Result:
    """Reload so often, under load.

    Args:
        name: of the form.
        where: the ops run: ``process`` or ``thread``.
        engines: their number.
        reloads: how often.
        rate: requests a second, of all callers together.
        pause: seconds before each reload.
        limit: ``start_timeout`` in seconds.
        kinds: of broken programs; None for all.
        of_callers: the kinds of callers.
        tell: called with a line of text after each reload.
    """
    form, result = FORMS[name], Result(f"{name}, {where}, {engines}")
    environment = {
        "PENSTOCK_START_TIMEOUT": str(limit),
        "PENSTOCK_DRAIN_TIMEOUT": str(DRAIN),
        "PENSTOCK_SUPERVISED": "true",
    }
    if engines > 1:
        environment |= {
            "PENSTOCK_BUILD_DAG_EACH_WORKER": "true",
            "PENSTOCK_WORKER_NUM": str(engines),
        }
    if form.text is None and where == "process":
        environment["PENSTOCK_SET"] = "dag.is_thread_op=false"
    broken = itertools.cycle(kinds or kinds_of(form))
    with tempfile.TemporaryDirectory(prefix="reloads-") as temporary:
        folder = Path(temporary)
        write(form, folder, 1, GOOD, where)
        with running(
            folder / form.file, command=form.command, environment=environment, cwd=folder
        ) as server:
            with callers(server, of_callers, rate / len(of_callers), Call(name)) as told:
                sleep(2.0)  # until all of them call
                wanted = sorted([*titles(server), "template"])  # after a reload
                serves = 1
                for number in range(2, reloads + 2):
                    kind = next(broken) if number % 2 else GOOD
                    write(form, folder, number, kind, where, server.http_port)
                    sleep(pause)
                    begun = monotonic()
                    problem = reload(server, number // 2)
                    result.seconds.append(monotonic() - begun)
                    if (problem is None) != (kind == GOOD):
                        result.surprises.append(f"{kind}, version {number}: {problem}")
                    serves = number if problem is None else serves
                    result.late += late_answers(server, name, serves)
                    seconds = f"{result.seconds[-1]:.1f} s"
                    tell(f"{result.what}: {number - 1}: {kind}: {seconds}: {problem!s:.300}")
                    if number - 1 in (max(2, reloads // 10), reloads):
                        if not settled(server, wanted):
                            result.surprises.append(f"{titles(server)} instead of {wanted}")
                        use = use_of(server)
                        result.early, result.last = result.early or use, use
                        tell(f"{use}")
            log = server.log()
            if "Traceback" in log and form.text is None:
                result.surprises.append(log[log.index("Traceback") :][:3000])
            code = server.stop()
            if code or server.leftovers():
                result.surprises.append(f"exit status {code}, left over {server.leftovers()}")
    for each in told:
        result.answers += len(each.answers)
        result.failures += each.failures
        result.wrong += each.wrong
        times = (answer.done - answer.due for answer in each.answers)
        result.longest = max(result.longest, max(times, default=0.0))
    result.older = older_answers(told)
    return result


def main() -> int:
    """Run what was asked for, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.reloads",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--reloads", type=int, default=20)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds before each reload")
    parser.add_argument("--limit", type=int, default=30, help="start_timeout in seconds")
    parser.add_argument("--form", action="append", choices=[*FORMS])
    parser.add_argument("--where", action="append", choices=("process", "thread"))
    parser.add_argument("--engines", action="append", type=int)
    parser.add_argument("--kind", action="append", help="only these are broken")
    parser.add_argument("--caller", action="append", choices=ALL_CALLERS)
    options = parser.parse_args()
    rows, faults = [], 0
    for name in options.form or FORMS:
        for where in options.where or ("process", "thread"):
            for engines in options.engines or (1, 3):
                result = run(
                    name,
                    where,
                    engines,
                    options.reloads,
                    rate=options.rate,
                    pause=options.pause,
                    limit=options.limit,
                    kinds=options.kind,
                    of_callers=options.caller or KINDS,
                    tell=lambda text: print(
                        f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True
                    ),
                )
                rows.append(result.row())
                print(*result.faults[:20], sep="\n", file=sys.stderr, flush=True)
                faults += len(result.faults)
    print(HEAD, *rows, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
