"""The function of the fault tests' external workers: ``penstock worker`` with ``echo``."""

from __future__ import annotations

import time

from pydantic import BaseModel

SECONDS = 0.002
"""Duration of a batch: long enough that a kill often happens during one."""


class Echoed(BaseModel):
    n: str
    service: str = "faults"


def echo(n: list[str]) -> list[Echoed]:
    time.sleep(SECONDS)
    return [Echoed(n=each) for each in n]
