"""The services that ``penstock run`` and ``check`` find in a file."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigError, StartupError
from penstock.service import flags
from penstock.service.script import run_file

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
PIPELINE = """
from penstock import Op, PipelineServer, RequestOp, ResponseOp
server = PipelineServer("piped")
server.set_response_op(ResponseOp(input_ops=[Op("a", input_ops=[RequestOp()])]))
"""


@pytest.fixture(autouse=True)
def current_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[flags.Flags]:
    """A check in an empty folder, so that nothing is served."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delenv("PENSTOCK_NAME", raising=False)
    monkeypatch.chdir(tmp_path)
    with flags.using(flags.Flags(check_only=True)) as current:
        yield current


def write(text: str, name: str = "service.py", config: str = "rpc_port: 0\n") -> Path:
    if config:
        Path("config.yml").write_text(config)
    Path(name).write_text(text)
    return Path(name)


def test_a_script_that_runs_its_service_serves_it_once(current_flags: flags.Flags) -> None:
    run_file(write(CLASS + RUN))
    assert current_flags.served == ["uci"]


def test_a_script_with_a_guard_runs_its_service(current_flags: flags.Flags) -> None:
    run_file(write(CLASS + "if __name__ == '__main__':" + RUN.replace("\n", "\n    ")))
    assert current_flags.served == ["uci"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (CLASS, "default_service"),
        (CLASS + "service = Uci('made')", "made"),
        (CLASS + "service = again = Uci('made')", "made"),
        (CLASS + "    def __init__(self): super().__init__('own')", "own"),
        (PIPELINE, "piped"),
        (PIPELINE + "server.prepare_server(yml_dict={'rpc_port': 0})", "piped"),
    ],
    ids=["class", "object", "one object, two names", "class with a name", "server", "prepared"],
)
def test_a_service_that_a_script_only_defines_is_run(
    text: str, name: str, current_flags: flags.Flags
) -> None:
    run_file(write(text))
    assert current_flags.served == [name]


def test_a_prepared_service_needs_no_config_file(current_flags: flags.Flags) -> None:
    run_file(write(PIPELINE + "server.prepare_server(yml_dict={'rpc_port': 0})", config=""))
    assert current_flags.served == ["piped"]


def test_several_services_run_together(current_flags: flags.Flags) -> None:
    run_file(write(CLASS + "first = Uci('a')\nsecond = Uci('b')"))
    assert current_flags.served == ["a and b"]


def test_several_service_classes_are_an_error_with_their_names() -> None:
    with pytest.raises(StartupError, match=r"defines several \(Other, Uci\): run one at its end"):
        run_file(write(CLASS + CLASS.replace("Uci", "Other")))


def test_a_script_without_a_service_is_an_error_with_the_fix() -> None:
    listed = "import penstock\nservices = [penstock.Service('s', penstock.Op('o'))]"
    for script in ("x = 1", listed):
        with pytest.raises(
            StartupError, match=r"has none as a variable: .* service\.run_service\(\)"
        ):
            run_file(write(script))


def test_a_service_without_a_configuration_is_an_error_with_the_file_s_name() -> None:
    with pytest.raises(StartupError, match=r"there is no config\.yml to run it with"):
        run_file(write(CLASS, config=""))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone.py", "gone.py does not exist"),
        ("gone.yml", "gone.yml does not exist"),
        (".", r"\. is a folder"),
        ("notes.txt:app", "notes.txt:app: give the file without a name after it"),
        ("notes.txt", r"notes\.txt: give a Python script \(.py\) or a configuration \(.yml\)"),
    ],
)
def test_a_file_that_is_no_script_and_no_configuration_is_refused(name: str, words: str) -> None:
    Path("notes.txt").write_text("x")
    with pytest.raises(StartupError, match=words):
        run_file(Path(name))


def test_a_script_can_import_its_neighbours_and_keeps_the_working_directory(
    current_flags: flags.Flags, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "neighbour_of_a_script.py").write_text("NAME = 'near'")
    script = folder / "service.py"
    script.write_text(
        "import os\nfrom neighbour_of_a_script import NAME\n"
        + CLASS
        + "service = Uci(NAME + '-' + os.path.basename(os.getcwd()))\n"
        "service.prepare_pipeline_config(yml_dict={'rpc_port': 0})\nservice.run_service()"
    )
    monkeypatch.delitem(sys.modules, "neighbour_of_a_script", raising=False)
    run_file(script)
    assert current_flags.served == [f"near-{tmp_path.name}"]


PICKLES = """
import pickle
from penstock import Op, WebService

class Thing: pass

class Uci(WebService):
    def get_pipeline_response(self, read_op):
        assert type(pickle.loads(pickle.dumps(Thing()))) is Thing
        return Op("uci", input_ops=[read_op])
"""


@pytest.mark.parametrize("text", [PICKLES, PICKLES + RUN], ids=["defines", "runs"])
def test_classes_of_a_script_can_be_pickled_while_it_serves(
    text: str, current_flags: flags.Flags
) -> None:
    main = sys.modules["__main__"]
    run_file(write(text))
    assert len(current_flags.served) == 1
    assert sys.modules["__main__"] is main


def test_classes_of_a_configuration_s_script_can_be_pickled(current_flags: flags.Flags) -> None:
    write(PICKLES, name="things.py", config="rpc_port: 0\nservice: things.py:Uci\n")
    run_file(Path("config.yml"))
    assert current_flags.served == ["default_service"]
    assert "things" not in sys.modules


def test_a_configuration_s_script_does_not_replace_a_library_of_its_name(
    current_flags: flags.Flags,
) -> None:
    text = CLASS.replace("return Op", "import logging; logging.getLogger(); return Op")
    write(text, name="logging.py", config="rpc_port: 0\nservice: logging.py:Uci\n")
    run_file(Path("config.yml"))
    assert current_flags.served == ["default_service"]
    assert sys.modules["logging"] is logging


# config.yml with the key service


@pytest.mark.parametrize(
    ("text", "wanted", "name"),
    [
        (CLASS, "Uci", "default_service"),
        (CLASS + "made = Uci('made')", "made", "made"),
        (CLASS + RUN.replace("config.yml", "no such file"), "Uci", "default_service"),
        (CLASS + "if __name__ == '__main__':\n    1 / 0", "Uci", "default_service"),
        (PIPELINE, "server", "piped"),
        (PIPELINE + "server.prepare_server('gone.yml')\nserver.run_server()", "server", "piped"),
    ],
    ids=[
        "class",
        "object",
        "script that runs",
        "script with a guard",
        "server",
        "server that runs",
    ],
)
def test_a_configuration_s_service_key_selects_its_service(
    text: str, wanted: str, name: str, current_flags: flags.Flags
) -> None:
    write(text, config=f"rpc_port: 0\nservice: service.py:{wanted}\n")
    run_file(Path("config.yml"))
    assert current_flags.served == [name]


@pytest.mark.parametrize("constructor", ["", "def __init__(self, name): super().__init__(name)"])
def test_a_class_gets_the_configured_name(constructor: str, current_flags: flags.Flags) -> None:
    text = CLASS + f"    {constructor}\n"
    write(text, config="rpc_port: 0\nname: house\nservice: service.py:Uci\n")
    run_file(Path("config.yml"))
    assert current_flags.served == ["house"]


def test_a_class_that_needs_a_name_without_one_is_an_error_with_the_fix() -> None:
    text = CLASS + "    def __init__(self, name): super().__init__(name)"
    write(text, config="rpc_port: 0\nservice: service.py:Uci\n")
    with pytest.raises(StartupError, match="Uci requires a name: set the key name"):
        run_file(Path("config.yml"))


@pytest.mark.parametrize("port", ["rpc_port: 0\n", ""])
def test_a_configuration_that_names_an_app_is_refused_with_where_its_keys_are_set(
    port: str,
) -> None:
    text = "from penstock import App\napp = App('shop')\n"
    write(text, config=f"{port}service: service.py:app\n")
    with pytest.raises(StartupError, match=r"app is an App, .* run that, and set keys there"):
        run_file(Path("config.yml"))


@pytest.mark.parametrize(
    ("config", "kind", "words"),
    [
        ("rpc_port: 0\n", StartupError, 'the key service is missing: set it to "file.py:Class"'),
        ("rpc_port: 0\nservice: gone.py:Uci\n", StartupError, "gone.py, which does not exist"),
        (
            "rpc_port: 0\nservice: service.py:Uic\n",
            StartupError,
            r"service\.py has no service named 'Uic': it has Uci",
        ),
        ("service: service.py:Uci\n", ConfigError, "config.yml: set rpc_port or http_port"),
        ("rpc_port: 0\nservice: service.py\n", ConfigError, "service: .*such as service.py:Ocr"),
        ("worker_nun: 1\nrpc_port: 0\n", ConfigError, "config.yml:1: worker_nun"),
    ],
)
def test_an_invalid_configuration_of_a_service_is_an_error(
    config: str, kind: type[Exception], words: str
) -> None:
    write(CLASS, config=config)
    with pytest.raises(kind, match=words):
        run_file(Path("config.yml"))
