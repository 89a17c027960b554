"""Reads profile lines of Penstock and the original: as a Chrome trace, and as mean times of each
op.

Source: docs/tracing.md.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from ruamel.yaml import YAML

Event: TypeAlias = dict[str, Any]
"""Has ``name``, ``tid``, ``pid``, ``ts`` (microseconds, as text) and ``ph``: B for begin, E for
end."""

STEPS: Final = ("prep", "midp", "postp")
_EXECUTORS: Final = ("@DAGExecutor", "@G")
_PHASES: Final = {"0": "B", "1": "E"}


class OpAnalyst:
    """The times of the steps of ops.

    Args:
        taken: milliseconds of each batch, by op, step and worker.
    """

    def __init__(self, taken: Mapping[str, Mapping[str, Mapping[str, list[float]]]]) -> None:
        self._times = {
            op: {step: fmean(map(fmean, workers.values())) for step, workers in steps.items()}
            for op, steps in taken.items()
        }

    def times(self, op: str | None = None) -> dict[str, Any]:
        """Mean milliseconds of each step, averaged over the workers: of one op, or of all."""
        return {**(self._times if op is None else self._times[op])}

    def qps(self, op: str | None = None) -> dict[str, Any]:
        """Batches a second that a worker could process in each step alone."""
        if op is None:
            return {each: self.qps(each) for each in self._times}
        return {step: 1000 / ms if ms else float("inf") for step, ms in self._times[op].items()}

    def concurrency_analysis(self, op_config_yaml: str | Path) -> dict[str, float]:
        """The number of workers that each op needs to keep up with the slowest step.

        Args:
            op_config_yaml: a file with ``<op>: {<step>: <card>}``; several cards are ``"0,1"``.

        Raises:
            ValueError: a card occurs twice, or an op or step is not in the profile.
        """
        config: Any = YAML(typ="safe", pure=True).load(Path(op_config_yaml))
        used: set[str] = set()
        slowest = 0.0
        for op, steps in config.items():
            for step, cards in steps.items():
                ids = [each.strip() for each in str(cards).split(",")]
                for card in ids:
                    if card in used:
                        raise ValueError(f"card {card} is given twice, again to {op}.{step}")
                    used.add(card)
                if step not in self._times.get(op, {}):
                    raise ValueError(f"the profile has no {op}.{step}")
                slowest = max(slowest, self._times[op][step] / len(ids))
        if not slowest:
            raise ValueError(f"{op_config_yaml} names no step that takes time")
        return {op: round(sum(steps.values()) / slowest, 3) for op, steps in self._times.items()}

    def __str__(self) -> str:
        return json.dumps(self._times, indent=2)


class Analyst:
    """Reads one file, which may have other lines.

    Args:
        profile_file: its path.
    """

    def __init__(self, profile_file: str | Path) -> None:
        self._file = Path(profile_file)
        self._trace: list[Event] | None = None

    def get_trace(self) -> list[Event]:
        """The events, in the order of the file."""
        if self._trace is None:
            with self._file.open(encoding="utf-8", errors="replace") as lines:
                self._trace = [event for line in lines for event in _events(line)]
        return self._trace

    def save_trace(self, trace_file: str | Path) -> None:
        """Write the events as JSON, for ``chrome://tracing``."""
        Path(trace_file).write_text(json.dumps(self.get_trace(), indent=2), encoding="utf-8")

    def get_op_analyst(self) -> OpAnalyst:
        """The times of the ops."""
        taken: Any = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
        for step, worker, ms in self._spans():
            op, bar, number = worker.strip("[]").rpartition("|")
            if step in STEPS and bar:
                taken[op][step][number].append(ms)
        return OpAnalyst(taken)

    def get_profile(self) -> tuple[float, float, float, OpAnalyst]:
        """Mean milliseconds of whole requests, of unpacking, and of packing; and the times of the
        ops.

        Raises:
            ValueError: the file has no requests.
        """
        found: defaultdict[str, list[float]] = defaultdict(list)
        for name, where, ms in self._spans():
            if where.split("-")[0] == "DAG" or where in _EXECUTORS:
                found[name.rpartition("_")[0] or name].append(ms)
        if not found["call"]:
            raise ValueError(f"{self._file} has no requests: no events call_<id>")
        means = [fmean(found[each] or [0.0]) for each in ("call", "prepack", "postpack")]
        return means[0], means[1], means[2], self.get_op_analyst()

    def print_profile(self) -> None:
        """Print the profile."""
        call, prepack, postpack, ops = self.get_profile()
        print(f"call: {call} ms\nprepack: {prepack} ms\npostpack: {postpack} ms\n{ops}")  # noqa: T201

    def _spans(self) -> Iterator[tuple[str, str, float]]:
        """The spans: name, place, and milliseconds."""
        begun: dict[tuple[Any, ...], int] = {}
        for each in self.get_trace():
            key = (each["pid"], each["tid"], each["name"])
            if each["ph"] == "B":
                begun[key] = int(each["ts"])
            elif key in begun:
                yield each["name"], str(each["tid"]), (int(each["ts"]) - begun.pop(key)) / 1000


def _events(line: str) -> Iterator[Event]:
    """The events of one line; none for another line, or a truncated item."""
    fields = line.strip().split("\t")
    if fields[0] != "PROFILE" or len(fields) < 3:
        return
    pid = fields[1].rpartition(":")[2]
    for item in fields[2].split():
        name, _, at = item.rpartition(":")
        name, _, side = name.rpartition("_")
        if side not in _PHASES or not at.isdigit():
            continue
        what, hash_sign, where = name.rpartition("#")
        tid: str | int = unquote(where) if hash_sign else 0
        shown = what if hash_sign else name
        yield {"name": shown, "tid": tid, "pid": pid, "ts": at, "ph": _PHASES[side]}
