"""A Containerfile for a project: what it needs, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli import app
from penstock.errors import ConfigError
from penstock.service.containerize import containerize, read_lock
from penstock.version import VERSION
from tests.kit.containerfile import Stage, read

HASH = "--hash=sha256:" + 64 * "0"
LOCKED = f"""\
# made by uv
numpy==2.4.6 \\
    {HASH} \\
    {HASH}
penstock_serving[onnx]==0.2.0 {HASH}  # ours
    # via -r requirements.in
backports.zstd == 1.8.0 ; python_version < "3.14" {HASH}
"""
WHEEL = "penstock_serving-0.2.0-py3-none-any.whl"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").touch()
    (tmp_path / "requirements.txt").write_text(LOCKED)
    return tmp_path


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["containerize", *arguments])


def written(project: Path) -> list[Stage]:
    return read((project / "Containerfile").read_text())


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read_lock(text)
    return raised.value.problems


# The file of packages


def test_a_lock_has_names_in_one_form_and_hashes_of_all_or_none() -> None:
    lock = read_lock(LOCKED)
    assert lock.names == {"numpy", "penstock-serving", "backports-zstd"}
    assert lock.hashed
    plain = read_lock("Typing_Extensions===4.16.0\n\n# nothing\nsix==1.17.0")
    assert plain.names == {"typing-extensions", "six"}
    assert not plain.hashed
    assert read_lock("").names == set()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("numpy", "numpy: give one version: numpy==VERSION"),
        ("numpy>=1.26", "numpy>=1.26: give one version: numpy==VERSION"),
        ("numpy==2.*", "numpy==2.*: give one version: numpy==VERSION"),
        ("numpy==2.0,<3", "numpy==2.0,<3: give one version: numpy==VERSION"),
        ("numpy @ https://ann:pw@example.org/n.whl", "numpy: give a version (==), not an address"),
        (
            "https://ann:pw@example.org/n.whl",
            "https: give a version (==), not an address or a path",
        ),
        ("git+https://ann:pw@example.org/n", "git: give a version (==), not an address or a path"),
        ("./wheels/n.whl", "this package: give a version (==), not an address or a path"),
        ("penstock-serving @ file:///pw/x.whl", f"write penstock-serving=={VERSION}; or leave"),
        ("-r more.txt", "-r: write the packages into this file"),
        ("--constraint=pw.txt", "--constraint: write the packages into this file"),
        ("-e .", "-e: a folder is no package with a version"),
        ("--extra-index-url https://ann:pw@example.org", "--extra-index-url: leave the option out"),
        ("--index-url=https://ann:pw@example.org", "--index-url: leave the option out"),
        ("--pre", "--pre: leave the option out"),
        ("six==1.0 --config-settings=a=pw", "six==1.0 --config-settings=a=pw: give one version"),
    ],
)
def test_a_line_that_is_no_version_is_refused_by_its_number(line: str, said: str) -> None:
    (problem,) = problems_of(f"six==1.17.0\n\\\n\n{line}\n")
    assert problem.startswith("requirements.txt, line 4: ")
    assert said in problem
    if "config-settings" not in line:
        assert "pw" not in problem


def test_every_problem_is_told_at_once() -> None:
    found = problems_of(f"numpy\nsix==1.17.0\n-e .\nidna==3.20 {HASH}\n")
    assert [each.split(":")[0].removeprefix("requirements.txt, ") for each in found] == [
        "line 1",
        "line 3",
        "line 2",
    ]
    assert "this package has no --hash, and others have" in found[2]


# The files


def test_a_project_gets_a_containerfile_and_an_ignore_file(project: Path) -> None:
    done = penstock("app.py")
    assert (done.exit_code, done.output) == (0, "written: Containerfile, .dockerignore\n")
    build, final = written(project)
    version = "{}.{}".format(*sys.version_info)
    assert build.base == final.base == f"docker.io/library/python:{version}-slim"
    runs = [each.text for each in build.instructions if each.name == "RUN"]
    assert runs[1:] == [
        "pip install --no-deps --require-hashes -r /build/requirements.txt",
        "pip check",
    ]
    assert final.only("USER").text == "10001:10001"
    assert "PENSTOCK_SUPERVISED=true" in final.only("ENV").text
    assert final.only("ENTRYPOINT").words == ["penstock"]
    assert final.only("CMD").words == ["run", "app.py"]
    ignored = (project / ".dockerignore").read_text().splitlines()
    assert {"**/.git", ".venv", "**/.env", "**/*.key", "Containerfile"} <= {*ignored}
    assert {"**/id_ed25519*", "**/*.p12", "**/.kube", "**/.docker"} <= {*ignored}
    (copied,) = [each for each in final.instructions if each.text == ". ."]
    assert copied.flags == {"chmod": "755"}


def test_the_wheel_beside_is_installed_if_the_lock_has_no_penstock(project: Path) -> None:
    (project / "requirements.txt").write_text("numpy==2.4.6\n")
    (project / WHEEL).touch()
    assert penstock("app.py").exit_code == 0
    build, _ = written(project)
    assert [each.text for each in build.instructions if each.name in ("RUN", "COPY")][1:] == [
        "requirements.txt /build/",
        "pip install --no-deps -r /build/requirements.txt",
        f"{WHEEL} /build/",
        f"pip install --no-deps --no-index /build/{WHEEL}",
        "pip check",
    ]


def test_a_program_keeps_its_path_and_python_can_be_chosen(project: Path) -> None:
    (project / "my services").mkdir()
    (project / 'my services/a"b.yml').touch()
    assert penstock('my services/a"b.yml', "--python", "3.13.2").exit_code == 0
    build, final = written(project)
    assert build.base == final.base == "docker.io/library/python:3.13.2-slim"
    assert final.only("CMD").words == ["run", 'my services/a"b.yml']


def test_virtual_environments_are_not_copied(project: Path) -> None:
    for name in ("env", ".venv"):
        (project / name).mkdir()
        (project / name / "pyvenv.cfg").touch()
    assert penstock("app.py").exit_code == 0
    lines = (project / ".dockerignore").read_text().splitlines()
    assert (lines.count("env"), lines.count(".venv")) == (1, 1)


def test_files_that_are_there_are_replaced_only_by_force(project: Path) -> None:
    (project / ".dockerignore").write_text("mine")
    done = penstock("app.py")
    assert done.exit_code == 1
    assert done.output == "error: .dockerignore is there already: --force replaces it\n"
    assert not (project / "Containerfile").exists()
    assert (project / ".dockerignore").read_text() == "mine"
    assert penstock("app.py", "--force").exit_code == 0
    assert (project / ".dockerignore").read_text() != "mine"


def test_what_lacks_is_told_at_once_and_nothing_is_written(project: Path) -> None:
    (project / "requirements.txt").write_text("numpy\n")
    done = penstock("../other.py", "--python", "2.7")
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert lines[0].startswith("error: ../other.py: give a Python script")
    assert lines[1].startswith("error: --python 2.7: write a version from 3.11 on")
    assert lines[2].startswith("error: requirements.txt, line 1: numpy: give one version")
    assert [each.name for each in project.iterdir() if "container" in each.name.lower()] == []


@pytest.mark.parametrize(
    ("present", "said"),
    [
        ({}, "there is no requirements.txt in"),
        ({"requirements.txt": b"numpy==2.4.6\n"}, "requirements.txt has no penstock-serving"),
        ({"requirements.txt": b"\xff"}, "requirements.txt cannot be read"),
        (
            {"requirements.txt": b"", WHEEL: b"", WHEEL.replace("0.2.0", "0.1.0"): b""},
            "there are several wheels, leave one: penstock_serving-0.1.0",
        ),
    ],
    ids=["no lock", "no penstock", "bytes", "wheels"],
)
def test_a_project_without_packages_is_refused(
    project: Path, present: dict[str, bytes], said: str
) -> None:
    (project / "requirements.txt").unlink()
    for name, data in present.items():
        (project / name).write_bytes(data)
    done = penstock("app.py")
    assert done.exit_code == 1
    assert said in done.output


def test_a_program_outside_of_the_project_is_refused(project: Path) -> None:
    inner = project / "inner"
    inner.mkdir()
    (inner / "requirements.txt").write_text(LOCKED)
    with pytest.raises(ConfigError, match="inner, the folder that is copied"):
        containerize(project / "app.py", inner, "3.11")


def test_a_file_that_cannot_be_written_is_told(project: Path) -> None:
    (project / "Containerfile").mkdir()
    done = penstock("app.py", "--force")
    assert done.exit_code == 1
    assert done.output == "error: Containerfile cannot be written: Is a directory\n"
