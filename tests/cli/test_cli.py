"""The ``penstock`` command."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli import app
from penstock.typed import signature
from penstock.version import VERSION
from tests.service.scripts import PENSTOCK, post, script, until
from tests.services.process import ServiceProcess, free_port, running

CLASS = """
from penstock import Op, WebService

class Uci(WebService):
    def get_pipeline_response(self, read_op):
        return Op("uci", input_ops=[read_op])
"""
RUN = """
service = Uci("uci")
service.prepare_pipeline_config("config.yml")
service.run_service()
"""


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The working directory, with a script and its configuration."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    Path("config.yml").write_text("rpc_port: 0\nop:\n  uci:\n    concurrency: 2\n")
    Path("service.py").write_text(CLASS + RUN)
    return tmp_path


# Help


def test_help_shows_each_command_in_one_line() -> None:
    for done in (penstock("--help"), penstock()):
        lines = [line.strip() for line in done.output.splitlines()]
        assert "Serve graphs of machine-learning models over gRPC and HTTP." in lines
        assert "run           Run a service until SIGTERM or Ctrl-C." in lines
        assert "check         Check configuration, graph and hooks; --open: models too." in lines
        assert "client        Send one request and print the reply as JSON." in lines
        assert "version       Print the version." in lines
        assert all(len(line) <= 80 for line in lines)


def test_the_texts_of_the_commands_are_whole_in_a_terminal_of_80_columns() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "--help"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert "  plan          Predict throughput and latency" in done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2]


@pytest.mark.parametrize("command", ["run", "worker", "check", "client", "bench", "version"])
def test_each_command_has_help(command: str) -> None:
    done = penstock(command, "--help")
    assert done.exit_code == 0
    assert f"Usage: root {command}" in done.output or f"Usage: penstock {command}" in done.output


def test_the_version_is_the_installed_one() -> None:
    for command in ("version", "--version"):
        assert penstock(command).output == f"penstock {VERSION}\n"


def test_python_m_penstock_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "version"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == f"penstock {VERSION}\n"


# check


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("file", ["service.py", "config.yml"])
def test_check_reports_the_graph_and_its_options(file: str) -> None:
    Path("config.yml").write_text(Path("config.yml").read_text() + "service: service.py:Uci\n")
    done = penstock("check", file)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "the configuration and the graph are good" in done.output
    assert "op    uci  after request  2 threads" in done.output


@pytest.mark.usefixtures("folder")
def test_check_opens_no_model_and_runs_no_init_op() -> None:
    Path("service.py").write_text(
        CLASS.replace('Op("uci"', 'Never("uci"').replace(
            "class Uci",
            "class Never(Op):\n    def init_op(self): raise SystemExit('ran')\n\nclass Uci",
        )
        + RUN
    )
    Path("config.yml").write_text(
        "rpc_port: 0\nop: {uci: {local_service_conf: {model_config: empty.onnx}}}\n"
    )
    Path("empty.onnx").touch()
    done = penstock("check", "service.py")
    assert done.exit_code == 0
    assert "empty.onnx" in done.output


APP = """
from pydantic import BaseModel
from penstock import App

app = App("shop")

class Item(BaseModel):
    name: str
    price: float = 1.0

@app.route("/total", batch=8)
def total(items: list[Item]) -> list[float]: ...

@app.route("/guess", executor="process")
class Guess:
    def __init__(self): print("made")
    def load(self): open("nowhere.bin").close()
    def predict(self, x: int) -> dict[str, float]: ...
"""
REPORT = """\
shop: the configuration and the routes are good
  POST  /total  {name: text, price?: number} -> number
                1 thread, batches of 8
  POST  /guess  {x: integer} -> {text: number}
                1 process
"""
NOT_OPENED = "  not opened: Guess.__init__ and Guess.load; --open tries that, too\n"


@pytest.mark.usefixtures("folder")
def test_check_of_an_app_shows_its_routes_with_their_types() -> None:
    Path("app.py").write_text(APP)
    done = penstock("check", "app.py")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == REPORT + NOT_OPENED


@pytest.mark.usefixtures("folder")
def test_check_open_makes_the_objects_and_names_one_that_fails() -> None:
    Path("app.py").write_text(APP)
    done = penstock("check", "app.py", "--open")
    assert (done.exit_code, done.stdout) == (1, "made\n")
    assert "error: op 'Guess': Guess.load failed: FileNotFoundError" in done.stderr
    Path("nowhere.bin").touch()
    done = penstock("check", "app.py", "--open")
    assert done.exit_code == 0
    assert done.stdout == f"made\n{REPORT}  opened Guess.__init__ and Guess.load\n"


SECURED = """
from penstock import App

app = App("secured", security={"keys": "keys.txt"}, door={"tls": {"certificate": "tls.crt"}})

@app.route("/double")
def double(x: int) -> int: ...
"""


@pytest.mark.usefixtures("folder")
def test_check_open_reads_certificates_and_keys(caplog: pytest.LogCaptureFixture) -> None:
    Path("app.py").write_text(SECURED)
    done = penstock("check", "app.py")
    assert done.exit_code == 0
    assert done.stdout.endswith("  not opened: tls.crt, keys.txt; --open tries that, too\n")
    done = penstock("check", "app.py", "--open")
    assert done.exit_code == 1
    assert "door.tls: " in done.stderr
    assert "tls.crt cannot be read" in done.stderr
    Path("app.py").write_text(SECURED.replace(', door={"tls": {"certificate": "tls.crt"}}', ""))
    Path("keys.txt").write_text("ann secret\n")
    done = penstock("check", "app.py", "--open")
    assert done.exit_code == 1
    assert "keys.txt: line 1 is not: NAME sha256:DIGEST" in done.stderr
    Path("keys.txt").write_text("")
    done = penstock(
        "check", "app.py", "--open", "-o", "quotas.few.rate=1", "-o", "quotas.few.callers=ann"
    )
    assert done.exit_code == 0
    assert (done.output + caplog.text).count("no API key has the name 'ann'") == 1


EXAMPLES = """
from typing import Annotated
import numpy as np
from penstock import App, Image

app = App("examples")

@app.route("/add", examples=[{"a": 1}, {"a": "x"}, ({"a": 2, "b": 1}, None)])
def add(a: int) -> int:
    return a

@app.get("/items/{id}", examples=[{"id": 1}, {"id": 2, "size": "x"}])
def item(id: int, size: int = 0) -> int:
    return id + size

@app.route("/size")
def size(image: Annotated[np.ndarray, Image()]) -> list[int]:
    return list(image.shape)
"""


@pytest.mark.usefixtures("folder")
def test_check_finds_examples_that_fail_and_a_missing_package_as_run_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("app.py").write_text(EXAMPLES)
    monkeypatch.setattr(signature, "find_spec", lambda name: None)
    done = penstock("check", "app.py")
    assert (done.exit_code, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    starts = [
        "error: route /add: example 2 fails: a: ",
        "error: route /add: example 3 fails: b: ",
        "error: route /items/{id}: example 2 fails: ",
        "error: /size: an Image needs the package Pillow",
    ]
    assert len(lines) == len(starts)
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True)), lines


TRIED = """
from collections.abc import Iterator
from penstock import App

app = App("tried")

@app.lifespan
def told() -> Iterator[None]:
    print("begins")
    yield
    print("ends")

@app.route("/add", examples=[({"a": 1}, 2), ({"a": 2}, 4)], executor="process")
def add(a: int) -> int:
    return a + 1
"""


@pytest.mark.usefixtures("folder")
def test_check_open_runs_the_examples_and_ends_what_it_began() -> None:
    Path("app.py").write_text(TRIED)
    assert penstock("check", "app.py").exit_code == 0
    done = penstock("check", "app.py", "--open")
    assert (done.exit_code, done.stdout) == (1, "begins\nends\n")
    assert "error: route /add: example 2 fails: 4 is expected, the answer is 3" in done.stderr
    Path("app.py").write_text(TRIED.replace("4)", "3)"))
    done = penstock("check", "app.py", "--open")
    assert done.exit_code == 0
    assert done.stdout.startswith("begins\nends\ntried: the configuration")


@pytest.mark.usefixtures("folder")
def test_check_finds_a_missing_package_of_tokens_as_run_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jwt = "{'issuer': 'https://a.test/', 'audience': ['b'], 'keys': 'https://a.test/keys'}"
    Path("app.py").write_text(SECURED.replace('{"keys": "keys.txt"}', f"{{'jwt': {jwt}}}"))
    monkeypatch.setitem(sys.modules, "jwt", None)
    done = penstock("check", "app.py")
    assert (done.exit_code, done.stdout) == (1, "")
    assert (
        "security.jwt needs a further package: pip install 'penstock-serving[jwt]'" in done.stderr
    )


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["run", "check"])
def test_check_and_run_report_the_same_errors_of_a_model(command: str) -> None:
    Path("config.yml").write_text(
        "rpc_port: 0\nop:\n  uci:\n    local_service_conf:\n"
        "      model_config: nowhere.onnx\n      precision: fp16\n      use_calib: true\n"
    )
    done = penstock(command, "service.py")
    assert (done.exit_code, done.stdout) == (1, "")
    first, second, third = done.stderr.splitlines()
    assert first.startswith("error: config.yml:5: op.uci.local_service_conf.model_config: ")
    assert second.startswith("error: config.yml:6: op.uci.local_service_conf.precision: ")
    assert third.startswith("error: config.yml:7: op.uci.local_service_conf.use_calib: ")


@pytest.mark.usefixtures("folder")
def test_every_invalid_hook_has_its_own_error_line() -> None:
    hooks = "    def preprocess(self): ...\n    def postprocess(self): ...\n"
    text = f"class Bad(Op):\n{hooks}\nclass Uci"
    Path("service.py").write_text(
        CLASS.replace('Op("uci"', 'Bad("uci"').replace("class Uci", text) + RUN
    )
    done = penstock("check", "service.py")
    assert done.exit_code == 1
    assert [line.split(" takes")[0] for line in done.stderr.splitlines()] == [
        "error: op 'uci': preprocess",
        "error: op 'uci': postprocess",
    ]


@pytest.mark.usefixtures("folder")
def test_a_file_of_config_overrides_an_app_and_a_script_s_own_file() -> None:
    Path("app.py").write_text(
        "from penstock import App\napp = App('a', http_port=8000)\n"
        "@app.route('/x', workers=2)\ndef x(n: int) -> int: ...\n"
    )
    Path("over.yml").write_text("op:\n  x: {concurrency: 5}\n")
    done = penstock("check", "app.py", "--config", "over.yml")
    assert "POST  /x  {n: integer} -> integer\n            5 threads" in done.output, done.output
    Path("over.yml").write_text("op:\n  uci: {concurrency: 5}\n")
    done = penstock("check", "service.py", "--config", "over.yml")
    assert "op    uci  after request  5 threads" in done.output
    done = penstock("check", "service.py", "--config", "over.yml", "-o", "op.uci.concurrency=7")
    assert "op    uci  after request  7 threads" in done.output
    done = penstock("check", "service.py", "--config", "none.yml")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "error: none.yml: cannot be read" in done.stderr


@pytest.mark.usefixtures("folder")
def test_a_service_without_a_configuration_has_that_of_config() -> None:
    Path("config.yml").rename("over.yml")
    Path("service.py").write_text(CLASS)
    done = penstock("check", "service.py")
    assert "config.yml to run it with; --config names another file" in done.stderr
    done = penstock("check", "service.py", "--config", "over.yml")
    assert "op    uci  after request  2 threads" in done.output, done.stderr


@pytest.mark.usefixtures("folder")
def test_check_applies_overrides_and_shows_warnings() -> None:
    done = penstock("check", "service.py", "-o", "op.uci.concurrency=7", "--set", "worker_num=1",
                    "--set", "op.uci.batch_size=4")  # fmt: skip
    assert "op    uci  after request  7 threads, batches of 4" in done.output
    assert "warning  worker_num is 1, below the batch_size 4" in done.output


@pytest.mark.usefixtures("folder")
def test_every_problem_of_a_configuration_has_its_own_error_line() -> None:
    Path("config.yml").write_text("rpc_port: 0\nworker_nun: 1\nop:\n  uci:\n    timeout: soon\n")
    done = penstock("check", "service.py")
    assert (done.exit_code, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("error: config.yml:2: worker_nun: is not a known key")
    assert first.endswith("worker_num?") or "worker_num" in first
    assert second.startswith("error: config.yml:5: op.uci.timeout: ")


@pytest.mark.usefixtures("folder")
def test_lenient_turns_unknown_keys_into_warnings() -> None:
    Path("config.yml").write_text("rpc_port: 0\nworker_nun: 1\n")
    done = penstock("check", "service.py", "--lenient")
    assert done.exit_code == 0
    assert "warning  config.yml:2: worker_nun: is not a known key" in done.output


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.py"], "gone.py does not exist"),
        (["notes.txt"], "notes.txt: give a Python script (.py) or a configuration (.yml)"),
        (["config.yml"], "config.yml: the key service is missing"),
        (["service.py", "--set", "worker_num"], "an override is written key=value"),
        (["service.py", "--set", "worker_num=many"], "flag: worker_num: "),
        (["service.py", "--set", "wroker_num=1"], "flag: wroker_num: is not a known key"),
    ],
)
def test_an_invalid_argument_is_one_error_line_with_status_1(
    command: str, arguments: list[str], message: str
) -> None:
    Path("notes.txt").write_text("x")
    done = penstock(command, *arguments)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["run", "check"])
def test_a_script_s_own_exit_status_and_exceptions_are_kept(command: str) -> None:
    Path("service.py").write_text("raise SystemExit(7)")
    assert penstock(command, "service.py").exit_code == 7
    Path("service.py").write_text("1 / 0")
    done = penstock(command, "service.py")
    assert done.exit_code == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


IN_THE_GRAPH = CLASS.replace("return", "nothing\n        return") + RUN


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("1 / 0", 'File "service.py", line 1, in <module>', "ZeroDivisionError: division by zero"),
        ("def f(:", 'File "service.py", line 1', "SyntaxError: invalid syntax"),
        (IN_THE_GRAPH, 'File "service.py", line 10, in <module>', "NameError: name 'nothing'"),
        (
            IN_THE_GRAPH.replace(RUN, ""),
            'File "service.py", line 6, in get_pipeline_response',
            "NameError: name 'nothing'",
        ),
    ],
    ids=["in the script", "in its grammar", "in a hook it calls", "in a hook we call"],
)
def test_a_traceback_begins_with_the_user_s_own_line(
    command: str, text: str, first: str, last: str
) -> None:
    Path("service.py").write_text(text)
    done = penstock(command, "service.py")
    lines = [line.strip() for line in done.stderr.splitlines() if not line.startswith("Traceback")]
    assert done.exit_code == 1
    assert lines[0] == first
    assert lines[-1].startswith(last)
    assert "runpy" not in done.stderr


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize("arguments", [[], ["a", "--size", "2", "-o"]])
def test_arguments_after_two_dashes_are_passed_to_the_script(
    command: str, arguments: list[str]
) -> None:
    Path("service.py").write_text("import sys\nraise SystemExit(' '.join(sys.argv))")
    done = penstock(command, "service.py", "--lenient", "--", *arguments)
    assert str(done.exception) == " ".join(["service.py", *arguments])


@pytest.mark.usefixtures("folder")
def test_check_shows_the_script_s_log_lines() -> None:
    Path("service.py").write_text(
        f"import logging\nlogging.getLogger('mine').info('imported'){CLASS}{RUN}"
    )
    # In another process, since pytest has configured logging here.
    command = [*PENSTOCK[:-1], "check", "service.py"]
    for level, shown in (("info", True), ("warning", False)):
        done = subprocess.run(
            [*command, "--log-level", level], capture_output=True, text=True, timeout=30, check=True
        )
        assert ("[mine] imported" in done.stderr) == shown


@pytest.mark.usefixtures("folder")
def test_an_unknown_log_level_is_a_usage_error() -> None:
    done = penstock("check", "service.py", "--log-level", "loud")
    assert done.exit_code == 2
    assert "'loud' is not one of" in done.stderr


# run


@pytest.mark.real
def test_flags_of_run_override_the_environment(tmp_path: Path) -> None:
    http, rpc = free_port(), free_port()
    flags = ["--http-port", str(http), "--rpc-port", str(rpc), "--set", "name=other"]
    with running(
        script(tmp_path), *flags, "--host", "localhost", command=PENSTOCK, ready=False
    ) as server:
        until(lambda: "penstock serves other" in server.log(), "the start")
        assert f"http://localhost:{http} " in server.log()
        assert f"localhost:{rpc} " in server.log()
        assert server.stop() == 0


@pytest.mark.real
def test_run_of_a_configuration_serves_the_service_it_names(tmp_path: Path) -> None:
    (tmp_path / "uci.py").write_text(CLASS + RUN.replace("config.yml", "another.yml"))
    path = tmp_path / "config.yml"
    path.write_text("rpc_port: 0\nservice: uci.py:Uci\nname: house\n")
    with running(path, command=PENSTOCK) as server:
        assert post(server, "house", a="1").json["value"] == ["1"]
        assert server.stop() == 0
        assert server.log().count("penstock serves") == 1


# client

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""A red pixel."""

ROUTES = """
from typing import Annotated
import numpy as np
from penstock import App, Image

app = App("routes")

@app.route("/add")
def add(a: int, b: int = 1, unit: str = "m") -> dict[str, str]:
    return {"sum": f"{a + b} {unit}"}

@app.route("/size")
def size(image: Annotated[np.ndarray, Image()]) -> list[int]:
    return list(image.shape)
"""


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    path = tmp_path_factory.mktemp("routes") / "routes.py"
    path.write_text(ROUTES)
    with running(path, command=PENSTOCK) as process:
        yield process


@pytest.mark.real
def test_client_calls_typed_routes_with_json_members_forms_and_methods(
    routes: ServiceProcess, tmp_path: Path
) -> None:
    picture = tmp_path / "x.png"
    picture.write_bytes(base64.b64decode(PNG))
    place = f"127.0.0.1:{routes.http_port}"
    for arguments, answer in [
        (["/add", "a:=2", "unit=km"], {"sum": "3 km"}),
        (["/add", "-d", '{"a": 5}', "-H", "accept: application/json"], {"sum": "6 m"}),
        (["/size", "-F", f"image=@{picture}"], [1, 1, 3]),
        (["/livez"], None),
    ]:
        done = penstock("client", place + arguments[0], *arguments[1:])
        assert (done.exit_code, done.stderr) == (0, ""), done.stderr
        if answer is not None:
            assert json.loads(done.stdout) == answer
    done = penstock("client", f"http://{place}/openapi.json", "-o", str(tmp_path / "o"))
    assert done.exit_code == 0
    assert json.loads((tmp_path / "o").read_bytes())["openapi"]


@pytest.mark.real
def test_client_exits_with_1_if_a_route_answers_with_an_error(routes: ServiceProcess) -> None:
    place = f"127.0.0.1:{routes.http_port}/add"
    for arguments, status in [(["a=x"], 422), (["-X", "delete"], 405)]:
        done = penstock("client", place, *arguments)
        assert (done.exit_code, done.stderr) == (1, f"error: HTTP {status}\n")
        assert json.loads(done.stdout)["message"]


@pytest.mark.real
def test_status_is_watched_until_a_signal(routes: ServiceProcess) -> None:
    command = [sys.executable, "-u", "-m", "penstock", "status", f"127.0.0.1:{routes.http_port}"]
    for more, seen in [((), "no bottleneck"), (("--json",), '"engines"')]:
        with subprocess.Popen(
            [*command, "--watch", "--interval", "0.1", *more], stdout=subprocess.PIPE, text=True
        ) as watching:
            assert watching.stdout is not None
            for line in watching.stdout:
                if seen in line:
                    break
            watching.send_signal(signal.SIGINT)
            assert watching.wait(30) == 0


@pytest.mark.real
def test_bench_loads_typed_routes_with_json_members_and_forms(
    routes: ServiceProcess, tmp_path: Path
) -> None:
    picture = tmp_path / "x.png"
    picture.write_bytes(base64.b64decode(PNG))
    short = ("-c", "1", "--duration", "100ms", "--warm-up", "0", "--max-errors", "0")
    for arguments in (["/add", "a:=2"], ["/size", "-F", f"image=@{picture}"], ["/livez"]):
        done = penstock("bench", routes.http_url + arguments[0], *arguments[1:], *short)
        assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    hooks = """
def preprocess(self, input_dicts, data_id, log_id):
    (feed,) = input_dicts.values()
    if "wait" in feed:
        threading.Event().wait(float(feed["wait"]))
    if "fail" in feed:
        return {}, False, 51, "no cat"
    return {**feed, "log_id": str(log_id)}, False, None, ""
"""
    with running(script(tmp_path_factory.mktemp("server"), hooks)) as process:
        yield process


WAYS = pytest.mark.parametrize("way", ["--http", "--grpc"])


def address(server: ServiceProcess, way: str) -> str:
    return server.rpc_endpoint if way == "--grpc" else f"127.0.0.1:{server.http_port}"


@pytest.mark.real
@WAYS
def test_client_prints_the_reply_as_json(server: ServiceProcess, way: str, tmp_path: Path) -> None:
    picture = tmp_path / "picture.bin"
    picture.write_bytes(b"\x00\xff picture")
    done = penstock(
        "client", address(server, way), "a=1=2", "ü=字", f"p=@{picture}", way, "--name", "work",
        "--log-id", "9",
    )  # fmt: skip
    assert (done.exit_code, done.stderr) == (0, "")
    reply = json.loads(done.stdout)
    assert [*reply] == ["err_no", "err_msg", "key", "value", "tensors"]
    assert dict(zip(reply["key"], reply["value"], strict=True)) == {
        "a": "1=2",
        "ü": "字",
        "p": base64.b64encode(b"\x00\xff picture").decode(),
        "log_id": "9",
    }
    assert (reply["err_no"], reply["err_msg"]) == (0, "")
    assert "字" in done.stdout


@pytest.mark.real
@WAYS
@pytest.mark.parametrize(
    ("arguments", "number"), [(["fail=1", "--name", "work"], 51), (["a=1", "--name", "x"], 3002)]
)
def test_client_exits_with_1_if_the_reply_is_an_error(
    server: ServiceProcess, way: str, arguments: list[str], number: int
) -> None:
    done = penstock("client", address(server, way), *arguments, way)
    assert done.exit_code == 1
    assert json.loads(done.stdout)["err_no"] == number


TWO_NAMES = """
from penstock import Service, op

@op()
def same(request):
    return request

@op()
def other(request):
    return request

one, two = Service("one", same), Service("two", other)
"""


@pytest.mark.real
@WAYS
def test_client_needs_a_name_only_if_there_are_several_services(
    server: ServiceProcess, way: str, tmp_path: Path
) -> None:
    done = penstock("client", address(server, way), "a=1", way)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "a" in json.loads(done.stdout)["key"]
    (tmp_path / "two.py").write_text(TWO_NAMES)
    with running(tmp_path / "two.py", command=PENSTOCK) as several:
        done = penstock("client", address(several, way), "a=1", way)
    assert done.exit_code == 1
    assert json.loads(done.stdout)["err_msg"] == "Failed to inference: Service name error."
    assert done.stderr == "error: give --name, the service's name\n"


@pytest.mark.real
@WAYS
def test_client_fails_after_its_timeout(server: ServiceProcess, way: str) -> None:
    done = penstock(
        "client", address(server, way), "wait=2", way, "--name", "work", "--timeout", "0.2"
    )
    assert (done.exit_code, done.stdout) == (1, "")
    assert "timed out" in done.stderr or "DEADLINE_EXCEEDED" in done.stderr


@WAYS
def test_client_reports_an_unreachable_server_in_one_line(way: str) -> None:
    done = penstock("client", f"127.0.0.1:{free_port()}", "a=1", way, "--timeout", "5")
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: UNAVAILABLE: 127.0.0.1:")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["localhost", "a=1"], "an endpoint must be host:port, got 'localhost'"),
        (["http://h:1", "a=1"], "an endpoint must be host:port"),
        (["h:1", "a"], "'a' is no pair: write key=value, or key=@file"),
        (["h:1", "=1"], "'=1' is no pair"),
        (["h:1", "a=@gone.jpg"], "gone.jpg cannot be read: No such file or directory"),
    ],
)
@WAYS
def test_client_reports_an_invalid_argument_in_one_line(
    arguments: list[str], message: str, way: str
) -> None:
    done = penstock("client", *arguments, way)
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nothing", "give module:name"),
        ("no_such_module:predict", "there is no module"),
        ("no_such_module.py:predict", "write no_such_module:predict"),
        ("json:no_such_name", "has no no_such_name"),
        ("string:digits", "is a str"),
        ("json:loads", "no type"),
    ],
)
def test_an_invalid_worker_target_is_one_error_message(
    target: str, words: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["worker", target, "--socket", str(tmp_path / "s")])
    assert result.exit_code == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr
