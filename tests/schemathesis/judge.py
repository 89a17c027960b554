"""Requests made of a service's own description, sent to it: no answer is a server's error, none has
a status, a type, a header or a body that the description does not tell of.

    python -m tests.schemathesis.judge examples/image_classifier/app.py --cases 2000

starts each script and sends so many requests to each of its routes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.peers.programs import without_proxies
from tests.services.process import running

PENSTOCK = (sys.executable, "-m", "penstock", "run")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)


class Verdict(NamedTuple):
    """What was found.

    Attributes:
        good: nothing was.
        cases: requests that were sent.
        report: for people.
    """

    good: bool
    cases: int
    report: str


def judge(url: str, cases: int, seed: int | None, timeout: float) -> Verdict:
    """Send so many requests to each route of a service.

    Args:
        url: of the service.
        cases: for each route, beside those that stand for its limits.
        seed: which requests; None for others each time.
        timeout: seconds.
    """
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
        *("--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing"),
        *("--max-examples", str(cases), "--generation-database", "none"),
        *("--no-color", "--continue-on-failure", "--request-timeout", "20"),
        *(() if seed is None else ("--seed", str(seed))),
    ]
    environment = without_proxies() | {"SCHEMATHESIS_HOOKS": "tests.schemathesis.hooks"}
    with tempfile.TemporaryDirectory() as folder:  # it keeps what it has seen where it runs
        done = subprocess.run(
            command, capture_output=True, cwd=folder, timeout=timeout, env=environment, check=False
        )
    report = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    found = re.search(r"(\d+) generated", report)
    return Verdict(done.returncode == 0, int(found[1]) if found else 0, report)


def main() -> int:
    """Judge each script in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="+", type=Path)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    worst = 0
    for script in given.scripts:
        with running(script.resolve(), command=PENSTOCK) as server:
            verdict = judge(server.http_url, given.cases, given.seed, timeout=3600)
        print(verdict.report)
        print(f"{script}: {verdict.cases} cases, {'good' if verdict.good else 'see above'}")
        worst |= not verdict.good
    return worst


if __name__ == "__main__":
    sys.exit(main())
