"""Runs every attack in turn and prints a table of answers and effects; on loopback only.

    python -m tests.attacks.run --pairs 5 --seconds 2

The service has a core of its own, where there are several, alone and under attack: the attacker and
the good clients represent other machines, which use none of its processor time. A low priority is
not enough: the kernel schedules the threads of one session against those of another as a group,
whatever their own priorities are (``man 7 sched``, autogroups), so that an attacker in a session of
its own would delay the service by whole time slices of up to four milliseconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Sequence

from tests.attacks.attacks import ATTACKS
from tests.attacks.site import MIB, Attack, Outcome, target

COLUMNS = (
    "attack",
    "what the attacker got",
    "memory, MiB",
    "http p99, ms",
    "times",
    "grpc p99, ms",
    "times",
    "good calls failed",
    "left behind",
)


def row(attack: Attack, outcome: Outcome) -> tuple[str, ...]:
    """One attack's row of the table."""
    times: list[str] = []
    for kind in ("http", "grpc"):
        pair = outcome.p99(kind)
        times += [f"{pair.alone:.2f} → {pair.attacked:.2f}", f"{outcome.ratio(kind):.1f}"]
    return (
        attack.name,
        ", ".join(f"{count} × {kind}" for kind, count in outcome.received.most_common()),
        f"{outcome.base / MIB:.0f} + {outcome.grown / MIB:.1f}",
        *times,
        str(len(outcome.failures)),
        json.dumps(outcome.left) if outcome.left else "nothing",
    )


def reserve_core() -> Sequence[str]:
    """Reserve a core for the service; returns the command prefix that pins it there."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        return ()
    os.sched_setaffinity(0, others)
    return ("taskset", "--cpu-list", str(first))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    alone = reserve_core()
    print("|" + "|".join(COLUMNS) + "|\n|" + "-|" * len(COLUMNS), flush=True)
    chosen = [attack for attack in ATTACKS if options.only in attack.name]
    groups = itertools.groupby(chosen, lambda attack: (attack.config, attack.command))
    for (config, command), attacks in groups:
        with target(config, (*alone, *command)) as at:
            for attack in attacks:
                outcome = at.measure_attack(attack, options.seconds, options.pairs)
                print("|" + "|".join(row(attack, outcome)) + "|", flush=True)
                for failure in outcome.failures[:3]:
                    print(f"    {failure}")


if __name__ == "__main__":
    main()
