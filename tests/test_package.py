"""The source distribution is complete: it installs and serves without the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from penstock.version import VERSION
from tests.documents import links_of

ROOT = Path(__file__).parents[1]
IGNORED = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "node_modules")
BUILT_FROM = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
SDIST = "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])"
SERVED = """
from pathlib import Path
import sys

import penstock
from penstock import App
from penstock.api import reflection
from penstock.testing import client

assert Path(penstock.__file__).is_relative_to(sys.prefix), penstock.__file__
app = App("packaged")

@app.route("/double")
def double(x: float) -> float:
    return 2 * x

with client(app) as http:
    assert http.post("/double", json={"x": 2}).json() == 4.0
    assert "/double" in http.get("/openapi.json").json()["paths"]
    page = http.get("/docs")
    assert page.status_code == 200 and "<script" in page.text
print("served")
"""


PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def output_of(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metadata_of(wheel: Path) -> Metadata:
    """The metadata of a wheel, as an index checks them.

    Raises:
        ExceptionGroup: they are invalid.
    """
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        found = Metadata.from_email(archive.read(name), validate=True)
    assert found.description_content_type == "text/markdown"
    assert found.description
    # An index has none of the repository's files: a link to one would lead nowhere.
    links = links_of(found.description)
    assert [each for each in links if not each.startswith("https://")] == []
    return found


@pytest.mark.parametrize("name", ["pyproject.toml", "paddle/pyproject.toml"])
def test_both_distributions_have_one_version_and_name_each_python(name: str) -> None:
    project = tomllib.loads((ROOT / name).read_text())["project"]
    assert project["version"] == VERSION
    pinned = [each for each in project["dependencies"] if each.startswith("penstock")]
    assert all(each.endswith(f"=={VERSION}") for each in pinned)
    versions = [each.rpartition(" ")[2] for each in project["classifiers"] if ":: 3." in each]
    assert tuple(versions) == PYTHONS
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.real
@pytest.mark.timeout(180)
def test_the_source_distribution_installs_and_serves(tmp_path: Path) -> None:
    checkout, built, fresh = tmp_path / "checkout", tmp_path / "built", tmp_path / "fresh"
    checkout.mkdir()
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, checkout)
    shutil.copytree(ROOT / "penstock", checkout / "penstock", ignore=IGNORED)
    output_of(sys.executable, "-c", SDIST, built, cwd=checkout)
    (sdist,) = built.iterdir()
    with tarfile.open(sdist) as archive:
        packages = {name.split("/")[1] for name in archive.getnames() if name.endswith(".py")}
    assert packages == {"penstock", "setup.py"}
    pip = (sys.executable, "-m", "pip")
    offline = ("--no-index", "--no-deps")
    output_of(*pip, "wheel", *offline, "--no-build-isolation", "-w", built, sdist, cwd=tmp_path)
    (wheel,) = built.glob("*.whl")
    described = metadata_of(wheel)
    assert (described.name, str(described.version)) == ("penstock-serving", VERSION)
    packed = set(zipfile.ZipFile(wheel).namelist())
    for each in (checkout / "penstock").rglob("*"):
        # gRPC's own messages are in the package in compiled form: standard.binpb.
        if each.is_file() and each.suffix != ".proto":
            assert each.relative_to(checkout).as_posix() in packed

    output_of(sys.executable, "-m", "venv", "--without-pip", fresh, cwd=tmp_path)
    python = fresh / "bin/python"
    output_of(*pip, "--python", python, "install", *offline, wheel, cwd=tmp_path)
    # Dependencies come from this environment, but not its editable installs.
    packages = sysconfig.get_paths(vars={"base": str(fresh), "platbase": str(fresh)})["purelib"]
    (Path(packages) / "others.pth").write_text(sysconfig.get_path("purelib"))
    assert output_of(python, "-c", SERVED, cwd=tmp_path) == "served\n"
    assert output_of(fresh / "bin/penstock", "version", cwd=tmp_path).strip()
