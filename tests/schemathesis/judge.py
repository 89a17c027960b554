"""Sends a service requests generated from its OpenAPI description and checks the answers: none is a
server error or has a status, content type, header or body that the description does not contain.

    python -m tests.schemathesis.judge examples/image_classifier/app.py --cases 2000

starts each script and sends this number of requests to each of its routes. With ``--keys`` the
service asks who calls: requests have a key, and no route may answer without it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from penstock.security.keys import line_of, new_key
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
    """The result of the checks.

    Attributes:
        good: no check failed.
        cases: the number of requests sent.
        report: Schemathesis's output.
    """

    good: bool
    cases: int
    report: str


def asking_for(key: str) -> dict[str, str]:
    """The environment of a service that asks who calls, and knows this key.

    It does not limit failed attempts: 429 does not say whether a route asks.
    """
    return {
        "SCHEMATHESIS_KEYS": line_of("judge", key, ["admin"]),
        "PENSTOCK_SET": "security.keys_env=SCHEMATHESIS_KEYS;security.failures_per_minute=1000000",
    }


def judge(
    url: str, cases: int, seed: int | None, timeout: float, key: str | None = None
) -> Verdict:
    """Send ``cases`` requests to each route of a service and check the answers.

    Args:
        url: the service's.
        cases: for each route, besides those for boundary values.
        seed: of the generator; None for a different one in every run.
        timeout: seconds.
        key: that the service asks for; routes that also answer without it are found.
    """
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
        *(
            "--checks",
            ",".join(CHECKS if key is None else (*CHECKS, "ignored_auth")),
            "--phases",
            "examples,coverage,fuzzing",
        ),
        *("--max-examples", str(cases), "--generation-database", "none"),
        *("--no-color", "--continue-on-failure", "--request-timeout", "20"),
        *(() if seed is None else ("--seed", str(seed))),
        *(() if key is None else ("--header", f"Authorization: Bearer {key}")),
    ]
    environment = without_proxies() | {"SCHEMATHESIS_HOOKS": "tests.schemathesis.hooks"}
    with tempfile.TemporaryDirectory() as folder:  # its database is in its working directory
        done = subprocess.run(
            command, capture_output=True, cwd=folder, timeout=timeout, env=environment, check=False
        )
    report = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    found = re.search(r"(\d+) generated", report)
    return Verdict(done.returncode == 0, int(found[1]) if found else 0, report)


def main() -> int:
    """Check each script in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="+", type=Path)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--keys", action="store_true")
    arguments = parser.parse_args()
    key = new_key() if arguments.keys else None
    environment = asking_for(key) if key else {}
    status = 0
    for script in arguments.scripts:
        with running(script.resolve(), command=PENSTOCK, environment=environment) as server:
            verdict = judge(server.http_url, arguments.cases, arguments.seed, 3600, key)
        print(verdict.report)
        print(f"{script}: {verdict.cases} cases, {'good' if verdict.good else 'see above'}")
        status |= not verdict.good
    return status


if __name__ == "__main__":
    sys.exit(main())
