"""Runs external programs with a timeout; tests are skipped if a program is not installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.services.process import ROOT

NODE = Path(__file__).parent / "node"
INSTALL = "install it with `make peers`"
# On Debian, daemons are in folders that are only in root's search path.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def program(name: str) -> str:
    """The path of an installed program; without it the test skips, or fails where CI is set."""
    found = shutil.which(name, path=SEARCH_PATH)
    if found is None:
        missing(f"{name} is not installed: {INSTALL}")
    return found


def node_packages() -> None:
    """Skip, or fail where CI is set, if the packages of Node.js are not installed."""
    if not (NODE / "node_modules" / "@grpc" / "grpc-js").is_dir():
        missing(f"the npm packages are not installed: {INSTALL}")


def missing(what: str) -> None:
    """Skip the test for a missing peer, or fail it in CI, where all peers are required."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


class Ran(NamedTuple):
    """Exit status and output of a program."""

    status: int
    out: bytes
    err: str

    def good(self) -> bytes:
        """Its output; raises if its exit status is not 0."""
        assert self.status == 0, f"exit {self.status}: {self.err[-3000:]} {self.out[-2000:]!r}"
        return self.out


def run(name: str, *arguments: object, given: bytes = b"", timeout: float = 30.0) -> Ran:
    """Run a program without any proxy's settings."""
    done = subprocess.run(
        [program(name), *map(str, arguments)],
        input=given,
        capture_output=True,
        timeout=timeout,
        env=without_proxies(),
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr.decode(errors="replace"))


def without_proxies() -> dict[str, str]:
    """This process's environment without proxies, for programs that use loopback only."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return kept | {"PYTHONPATH": str(ROOT)}


class Checks(dict[str, str]):
    """Results of a script of checks: each check's name to its error, "" for none."""

    def assert_good(self, name: str) -> None:
        assert name in self, f"the script never came to {name!r}"
        assert not self[name], self[name]


def node_checks(script: str, site: dict[str, Any], *, timeout: float = 45.0) -> Checks:
    """Run one of the scripts beside package.json; each of its lines is one check's result."""
    program("node")
    ran = run("node", NODE / script, json.dumps(site), timeout=timeout)
    assert ran.status == 0, f"{script} ended with {ran.status}: {ran.err[-3000:]}"
    lines = [json.loads(line) for line in ran.out.splitlines()]
    return Checks({line["check"]: line["wrong"] for line in lines})


def names_in(script: str, opening: str = "check(") -> Sequence[str]:
    """The names of the checks in a script of Node.js, read from its text."""
    lines = (NODE / script).read_text().splitlines()
    return [line.split("'")[1] for line in lines if line.startswith(opening + "'")]
