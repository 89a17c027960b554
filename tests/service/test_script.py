"""What ``penstock run`` and ``check`` find in a file."""

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
def now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[flags.Flags]:
    """A check in an empty folder, so that nothing is really served."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delenv("PENSTOCK_NAME", raising=False)
    monkeypatch.chdir(tmp_path)
    with flags.using(flags.Flags(check_only=True)) as current:
        yield current


def written(text: str, name: str = "service.py", config: str = "rpc_port: 0\n") -> Path:
    if config:
        Path("config.yml").write_text(config)
    Path(name).write_text(text)
    return Path(name)


def test_a_script_that_runs_its_service_is_left_alone(now: flags.Flags) -> None:
    run_file(written(CLASS + RUN))
    assert now.served == ["uci"]


def test_a_script_with_a_guard_runs_too(now: flags.Flags) -> None:
    run_file(written(CLASS + "if __name__ == '__main__':" + RUN.replace("\n", "\n    ")))
    assert now.served == ["uci"]


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
def test_a_service_that_a_script_defines_but_does_not_run_is_run(
    text: str, name: str, now: flags.Flags
) -> None:
    run_file(written(text))
    assert now.served == [name]


def test_a_service_that_is_prepared_needs_no_config_beside_it(now: flags.Flags) -> None:
    run_file(written(PIPELINE + "server.prepare_server(yml_dict={'rpc_port': 0})", config=""))
    assert now.served == ["piped"]


def test_several_services_run_together(now: flags.Flags) -> None:
    run_file(written(CLASS + "first = Uci('a')\nsecond = Uci('b')"))
    assert now.served == ["a and b"]


def test_several_classes_are_named() -> None:
    with pytest.raises(StartupError, match=r"defines several \(Other, Uci\): run one at its end"):
        run_file(written(CLASS + CLASS.replace("Uci", "Other")))


def test_a_script_without_a_service_says_what_to_write() -> None:
    with pytest.raises(StartupError, match=r"defines none: end it with service\.run_service\(\)"):
        run_file(written("x = 1"))


def test_a_service_without_a_configuration_says_where_it_was_looked_for() -> None:
    with pytest.raises(StartupError, match=r"there is no config\.yml to run it with"):
        run_file(written(CLASS, config=""))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone.py", "gone.py does not exist"),
        ("gone.yml", "gone.yml does not exist"),
        (".", r"\. is a folder"),
        ("notes.txt", r"notes\.txt: give a Python script \(.py\) or a configuration \(.yml\)"),
    ],
)
def test_what_is_no_script_and_no_configuration_is_refused(name: str, words: str) -> None:
    Path("notes.txt").write_text("x")
    with pytest.raises(StartupError, match=words):
        run_file(Path(name))


def test_a_script_s_neighbours_can_be_imported_and_the_working_directory_stays(
    now: flags.Flags, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert now.served == [f"near-{tmp_path.name}"]


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
def test_what_a_script_defines_can_be_pickled_while_it_serves(text: str, now: flags.Flags) -> None:
    main = sys.modules["__main__"]
    run_file(written(text))
    assert len(now.served) == 1
    assert sys.modules["__main__"] is main


def test_so_can_what_a_configuration_s_script_defines(now: flags.Flags) -> None:
    written(PICKLES, name="things.py", config="rpc_port: 0\nservice: things.py:Uci\n")
    run_file(Path("config.yml"))
    assert now.served == ["default_service"]
    assert "things" not in sys.modules


def test_a_library_that_a_configuration_s_script_is_called_like_is_kept(now: flags.Flags) -> None:
    text = CLASS.replace("return Op", "import logging; logging.getLogger(); return Op")
    written(text, name="logging.py", config="rpc_port: 0\nservice: logging.py:Uci\n")
    run_file(Path("config.yml"))
    assert now.served == ["default_service"]
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
def test_a_configuration_names_its_service(
    text: str, wanted: str, name: str, now: flags.Flags
) -> None:
    written(text, config=f"rpc_port: 0\nservice: service.py:{wanted}\n")
    run_file(Path("config.yml"))
    assert now.served == [name]


@pytest.mark.parametrize("constructor", ["", "def __init__(self, name): super().__init__(name)"])
def test_a_class_is_given_the_configured_name(constructor: str, now: flags.Flags) -> None:
    text = CLASS + f"    {constructor}\n"
    written(text, config="rpc_port: 0\nname: house\nservice: service.py:Uci\n")
    run_file(Path("config.yml"))
    assert now.served == ["house"]


def test_a_class_that_wants_a_name_and_gets_none_says_so() -> None:
    text = CLASS + "    def __init__(self, name): super().__init__(name)"
    written(text, config="rpc_port: 0\nservice: service.py:Uci\n")
    with pytest.raises(StartupError, match="Uci requires a name: set the key name"):
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
        ("rpc_port: 0\nservice: service.py\n", ConfigError, "service: .*such as service.py:Ocr"),
        ("worker_nun: 1\nrpc_port: 0\n", ConfigError, "config.yml:1: worker_nun"),
    ],
)
def test_what_is_wrong_with_such_a_configuration_is_told(
    config: str, kind: type[Exception], words: str
) -> None:
    written(CLASS, config=config)
    with pytest.raises(kind, match=words):
        run_file(Path("config.yml"))
