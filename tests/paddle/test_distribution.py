"""The two distributions: their files, versions, and conflicts with the original's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import requires, version
from pathlib import Path

import pytest

from tests.test_floors import imports_of, modules
from tests.test_package import BUILT_FROM, IGNORED, ROOT, metadata_of, output_of

PACKAGES = {
    "paddle_serving_app",
    "paddle_serving_client",
    "paddle_serving_server",
    "paddle_serving_server_gpu",
    "penstock_paddle",
}
FOLDER = ROOT / "paddle"
WHEEL = "import sys, setuptools.build_meta as b; print(b.build_wheel(sys.argv[1]))"


def files_of_wheel(folder: Path, into: Path) -> set[str]:
    """Build the distribution of a folder, and list the files of its wheel."""
    into.mkdir()
    name = output_of(sys.executable, "-c", WHEEL, into, cwd=folder).split()[-1]
    return set(zipfile.ZipFile(into / name).namelist())


def roots(files: set[str]) -> set[str]:
    return {name.partition("/")[0] for name in files if ".dist-info/" not in name}


def test_penstock_paddle_has_its_packages_only(tmp_path: Path) -> None:
    copy = tmp_path / "paddle"
    shutil.copytree(FOLDER, copy, ignore=IGNORED)
    files = files_of_wheel(copy, tmp_path / "wheel")
    (wheel,) = (tmp_path / "wheel").iterdir()
    assert metadata_of(wheel).name == "penstock-paddle"
    assert roots(files) == PACKAGES
    for package in PACKAGES:
        for each in (copy / package).rglob("*"):
            if each.is_file() and "__pycache__" not in each.parts:
                assert each.relative_to(copy).as_posix() in files
    assert any(name.endswith("/LICENSE") for name in files)


def test_penstock_has_no_package_of_penstock_paddle(tmp_path: Path) -> None:
    copy = tmp_path / "penstock"
    copy.mkdir()
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, copy)
    for name in ("penstock", "paddle"):
        shutil.copytree(ROOT / name, copy / name, ignore=IGNORED)
    assert roots(files_of_wheel(copy, tmp_path / "wheel")) == {"penstock"}


def test_penstock_imports_nothing_of_penstock_paddle() -> None:
    found = {path: imports_of(path) for path in modules()}
    roots_of = {path: {name.partition(".")[0] for name in names} for path, names in found.items()}
    assert len(found) > 100
    # The public names, for type checkers only.
    users = [path for path, names in roots_of.items() if names & PACKAGES]
    assert users == [ROOT / "penstock/__init__.py"]


def test_both_distributions_make_their_description_in_the_same_way() -> None:
    assert (FOLDER / "setup.py").read_text() == (ROOT / "setup.py").read_text()


def test_both_distributions_have_the_same_version() -> None:
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    penstock_version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert project["version"] == penstock_version == version("penstock-paddle")
    first, *others = project["dependencies"]
    assert first == f"penstock-serving=={penstock_version}"
    # Clients of the original import these without naming them.
    assert [each.partition(">")[0] for each in others] == ["requests", "pyyaml"]
    for extra in project["optional-dependencies"].values():
        assert all(
            each.endswith(f"=={penstock_version}") for each in extra if each.startswith("penstock")
        )
    assert f"penstock-serving=={penstock_version}" in (requires("penstock-paddle") or [])


@pytest.mark.parametrize("package", sorted(PACKAGES - {"penstock_paddle"}))
@pytest.mark.parametrize("original", ["paddle_serving_server_gpu", "paddle_serving_app"])
def test_importing_fails_if_the_original_is_installed(
    tmp_path: Path, package: str, original: str
) -> None:
    info = tmp_path / f"{original}-0.9.0.dist-info"
    info.mkdir()
    name = original.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.9.0\n")
    done = subprocess.run(
        [sys.executable, "-c", f"import {package}"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: penstock-paddle and {name} 0.9.0 have packages of the same names:"
        " uninstall both, then install one of them"
    )
