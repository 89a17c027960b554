"""Nothing that clients send is run, loaded or written: checked by an audit hook in a service, and
by a rule for the source."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.bad_requests import CALLS, HTTP
from tests.hostile.bad_tensors import (
    GENERAL_CALL,
    GENERAL_GOOD,
    OIP_CALL,
    general,
    general_http,
    general_messages,
    infer,
    oip_http,
    oip_messages,
    tensor,
)
from tests.hostile.bad_values import cases as bad_values
from tests.hostile.conftest import LIMITS, check_good
from tests.kit import http1
from tests.kit.http2 import linked
from tests.services.process import ROOT, ServiceProcess, running

WATCHED = Path(__file__).with_name("watched.py")
MODELS = Path(__file__).with_name("watched_models.py")
PACKAGE = ROOT / "penstock"

# Events of Python itself: (event, innermost modules) -> why it is harmless.
HARMLESS = {
    ("compile", "ast", "traceback"): "logged tracebacks parse the line of our own that raised",
}


def send_corpus(http_port: int, rpc_port: int) -> int:
    """Send all bad requests to both ports; other tests check the answers."""
    sent = 0
    for bad in HTTP:
        with http1.connected(http_port) as connection:
            connection.send_until_refused(bad.data, 1)
            connection.reply()
            sent += 1
    errors = [http1.pairs(x="1", do=do) for do in ("raise", "break", "exit", "refuse", "hide")]
    for body in [case.body for case in bad_values() if case.body is not None] + errors:
        http1.ask(http_port, body)
        sent += 1
    with linked(rpc_port) as link:
        for message in [case.message for case in bad_values() if case.message is not None]:
            link.predict(message)
            sent += 1
    for call in CALLS:
        with linked(rpc_port) as link:
            call.play(link)
            sent += 1
    return sent


@pytest.fixture
def watched_service(tmp_path: Path) -> Iterator[tuple[ServiceProcess, Path]]:
    events = tmp_path / "events"
    events.touch()
    with running(WATCHED, environment=environment_of(events)) as server:
        check_good(server)
        yield server, events


def environment_of(events: Path) -> dict[str, str]:
    return LIMITS | {"HOSTILE_EVENTS": str(events), "PYTHONPATH": str(ROOT)}


def events_in(file: Path) -> list[tuple[str, str, list[str]]]:
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()]


@pytest.mark.real
def test_bad_input_does_not_make_the_service_run_load_start_or_write_anything(
    watched_service: tuple[ServiceProcess, Path],
) -> None:
    server, file = watched_service
    http1.ask(server.http_port, http1.pairs(x="1", do="watch"))

    assert send_corpus(server.http_port, server.rpc_port) > 350

    assert unexpected_events_in(file) == []
    # The hook does see such events:
    http1.ask(server.http_port, http1.pairs(x="1", do="plant"))
    assert has_planted_events(file)


def unexpected_events_in(file: Path) -> list[tuple[str, str, list[str]]]:
    return [
        (event, arguments, modules)
        for event, arguments, modules in events_in(file)
        if (event, *modules[:2]) not in HARMLESS
    ]


def has_planted_events(file: Path) -> bool:
    names = {event for event, _, _ in events_in(file)}
    return {"compile", "exec", "open", "subprocess.Popen"} <= names


@pytest.mark.real
def test_bad_model_input_does_not_make_it_run_load_start_or_write_anything(tmp_path: Path) -> None:
    file = tmp_path / "events"
    file.touch()
    with running(MODELS, environment=environment_of(file)) as server:
        port = server.http_port

        def watch(what: int) -> None:
            body = json.dumps({"inputs": [tensor(datatype="UINT8", shape=[1], data=[what])]})
            target = b"/v2/models/watch/infer"
            assert http1.ask(port, body.encode(), target=target).status == 200

        for good in (infer({"inputs": [tensor()]}), general(GENERAL_GOOD)):
            with http1.connected(port) as connection:
                connection.send(good)
                assert connection.reply().status == 200
        watch(1)
        for bad in [*oip_http(), *general_http()]:
            with http1.connected(port) as connection:
                connection.send_until_refused(bad.data, 1)
                connection.reply()
        with linked(server.rpc_port) as link:
            for path, rows in ((OIP_CALL, oip_messages()), (GENERAL_CALL, general_messages())):
                for each in rows:
                    link.predict(each.data, path=path)
        assert unexpected_events_in(file) == []
        watch(2)  # the hook does see such events
        assert has_planted_events(file)


# Allowed in the source: (file, name) -> the reason.
ALLOWED = {
    ("observe/logs.py", "time.time"): "a line has the time of day, as logging writes it",
    ("observe/logs.py", "time.gmtime"): "a line has the time of day",
    ("observe/logs.py", "time.strftime"): "a line has the time of day",
    ("api/admission.py", "time.time"): "tokens expire at a time of day",
    ("typed/response.py", "datetime.fromtimestamp"): "a file's time is in Last-Modified",
    ("observe/otel.py", "time_ns"): "spans have Unix times",
    ("service/script.py", "runpy"): "runs the script that its operator names on the command line",
    ("__init__.py", "import_module"): "loads the package's own modules on first use",
    ("client/__init__.py", "import_module"): "loads the package's own modules on first use",
    ("executors/elsewhere/parent.py", "ctypes"): "prctl: a worker ends with its parent",
    ("executors/elsewhere/parent.py", "os._exit"): "its parent has ended before it began",
    ("executors/processes/child.py", "pickle"): "a worker opens what this service's ops made",
    ("executors/processes/child.py", "pickle.loads"): "as said; it is no part of the engine",
    ("executors/processes/worker.py", "pickle"): "the engine writes pickles, and opens none",
    ("api/oip_statistics.py", "time.time"): "tells when a model ran last; nothing is decided by it",
    ("api/openai.py", "time.time"): "the member `created` of a model",
    ("api/openai_calls.py", "time.time"): "the member `created` of an answer",
    ("runtimes/paddle.py", "ctypes"): "puts back what Paddle has made signals do",
    ("service/batches.py", "np.load"): "reads examples that the operator names, without pickles",
    ("service/models.py", "np.load"): "reads examples of a version, without pickles",
    ("store/convert.py", "np.load"): "reads examples that the operator names, without pickles",
    ("service/hot_loading.py", "time.time"): "ages of folders, and numbers of versions that grow",
    ("service/repository.py", "time_ns"): "numbers rollouts",
    ("service/rollout.py", "time.time_ns"): "numbers rollouts",
    ("store/cache.py", "time.time_ns"): "the last use of a file, as the file system has times",
    ("store/local.py", "time.time_ns"): "compares with the times of files",
    ("supervisor/child_processes.py", "ctypes"): "calls prctl, which Python cannot",
    ("door/listeners.py", "ctypes"): "attaches a filter to a socket, which Python cannot",
    ("typed/pictures.py", "ctypes"): "decodes WebP without the lock, by Pillow's own library",
    ("bench/timer.py", "ctypes"): "calls timerfd_create with numbers of its own",
    ("engine/quarantine.py", "marshal"): "writes values for a digest, and reads none",
    ("runtimes/runtime.py", "import_module"): "imports the package's own list of libraries early",
    ("service/instruments.py", "import_module"): "makes what the configuration names",
    ("service/external_worker.py", "import_module"): "what the command line names",
    ("supervisor/child_processes.py", "os._exit"): "a forked child never returns into its parent",
    ("supervisor/signals.py", "os._exit"): "what a signal does to a process before it serves",
}
FORBIDDEN_NAMES = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "literal_eval",
    "import_module",
    "runpy",
}
FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "shelve",
    "marshal",
    "code",
    "codeop",
    "ctypes",
    "runpy",
    "imp",
    "yaml",
}
FORBIDDEN_CALLS = {
    ("np", "load"),
    ("pickle", "load"),
    ("pickle", "loads"),
    ("pickle", "Unpickler"),
    ("marshal", "load"),
    ("marshal", "loads"),
    ("numpy", "load"),
    ("np", "fromregex"),
    ("torch", "load"),
    ("yaml", "load"),
    # Only monotonic clocks, so that steps of the wall clock have no effect.
    *(("time", name) for name in ("time", "time_ns", "localtime", "gmtime", "ctime", "strftime")),
    *(("datetime", name) for name in ("now", "utcnow", "today", "fromtimestamp")),
    ("os", "_exit"),
    ("os", "system"),
    ("os", "popen"),
    ("ast", "literal_eval"),
    ("importlib", "import_module"),
    ("builtins", "eval"),
    ("builtins", "exec"),
}


def forbidden_in(source: str) -> list[str]:
    """Forbidden names in a source; a function, so that the rule itself is tested."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [one.name for one in names if one.name.split(".")[0] in FORBIDDEN_MODULES]
            case ast.ImportFrom(module=str(module), names=names):
                if module.split(".")[0] in FORBIDDEN_MODULES:
                    found.append(module)
                found += [
                    one.name
                    for one in names
                    if one.name in FORBIDDEN_NAMES or (module, one.name) in FORBIDDEN_CALLS
                ]
            case ast.Name(id=name) if name in FORBIDDEN_NAMES:
                found.append(name)
            case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name):
                if (owner, name) in FORBIDDEN_CALLS or name == "allow_pickle":
                    found.append(f"{owner}.{name}")
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                found.append("allow_pickle")
    return found


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(PACKAGE.rglob("*.py")) if not path.name.endswith("_pb2.py")],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_the_source_has_no_forbidden_names(path: Path) -> None:
    name = str(path.relative_to(PACKAGE))
    assert [one for one in forbidden_in(path.read_text()) if (name, one) not in ALLOWED] == []


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "exec(text)",
        "import pickle",
        "pickle.loads(data)",
        "from pickle import Unpickler",
        "from pickle import loads",
        "from ast import literal_eval",
        "import ast\nast.literal_eval(text)",
        "np.load(file)",
        "numpy.load(file)",
        "torch.load(file)",
        "import yaml",
        "now = time.time()",
        "from time import time",
        "datetime.now()",
        "datetime.datetime.now()",
        "os._exit(0)",
        "np.save(file, array, allow_pickle=True)",
        "read = eval",
    ],
)
def test_the_rule_finds_forbidden_names(source: str) -> None:
    assert forbidden_in(source)


def test_every_allowed_name_is_in_the_source() -> None:
    for name, what in ALLOWED:
        assert what in forbidden_in((PACKAGE / name).read_text())
