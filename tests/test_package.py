"""The source distribution installs where there is nothing of a checkout, with all that it needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IGNORED = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "node_modules")
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


def said_by(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.real
@pytest.mark.timeout(180)
def test_the_source_distribution_installs_and_serves(tmp_path: Path) -> None:
    checkout, built, fresh = tmp_path / "checkout", tmp_path / "built", tmp_path / "fresh"
    checkout.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    shutil.copytree(ROOT / "penstock", checkout / "penstock", ignore=IGNORED)
    said_by(sys.executable, "-c", SDIST, built, cwd=checkout)
    (sdist,) = built.iterdir()
    pip = (sys.executable, "-m", "pip")
    offline = ("--no-index", "--no-deps")
    said_by(*pip, "wheel", *offline, "--no-build-isolation", "-w", built, sdist, cwd=tmp_path)
    (wheel,) = built.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    for each in (checkout / "penstock").rglob("*"):
        # Of gRPC's own messages the package has what is made of them: standard.binpb.
        if each.is_file() and each.suffix != ".proto":
            assert each.relative_to(checkout).as_posix() in packed

    said_by(sys.executable, "-m", "venv", "--without-pip", fresh, cwd=tmp_path)
    python = fresh / "bin/python"
    said_by(*pip, "--python", python, "install", *offline, wheel, cwd=tmp_path)
    # What it depends on is taken from here, without what else this environment makes importable.
    packages = sysconfig.get_paths(vars={"base": str(fresh), "platbase": str(fresh)})["purelib"]
    (Path(packages) / "others.pth").write_text(sysconfig.get_path("purelib"))
    assert said_by(python, "-c", SERVED, cwd=tmp_path) == "served\n"
    assert said_by(fresh / "bin/penstock", "version", cwd=tmp_path).strip()
