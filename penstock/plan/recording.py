"""A recording of a service under load: its status before and after, and a trace. Pure.

A recording is a trace in the format of ``penstock.observe.chrome``, which Perfetto opens, with an
additional key ``penstock``: the steps of a measuring run, or the one step of ``penstock trace``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from penstock.errors import PenstockError

Report: TypeAlias = Mapping[str, Any]
Place: TypeAlias = Literal["thread", "process", "loop"]
"""Where an op's batches run. ``loop``: on the event loop, as coroutines or remote calls, which use
little CPU time of this machine."""

KEY: Final = "penstock"
_REQUESTS: Final = 1  # the process id of requests in a trace


class NoRecording(PenstockError):
    """There is no usable recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A step as measured by the client; times in seconds.

    Attributes:
        in_flight: callers of a closed loop.
        rate: good answers per second.
        mean, p95: mean and p95 of the latency.
        client: CPU time of the client per request.
        failed: requests without a good answer.
    """

    in_flight: int
    rate: float
    mean: float
    p95: float
    client: float
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSeen:
    """An op's figures in a step; times in seconds.

    Attributes:
        inputs: the ops before it.
        workers: number of workers of one engine.
        batch_size: maximum requests in a batch.
        window: time that the oldest request of a batch waits for others.
        cpu: CPU time of all batches; None if the workers' CPU time is unknown.
        stages: preprocess, process and postprocess of all batches.
        queue: time in the queue of all samples.
        waiting: samples in the queue at the end.
        given_by: what has its options in the short form's words, such as ``route('/x')``; empty for
            an op whose options are keys of a configuration.
        learned: what the service has learned of the costs of its batches until the end, in words,
            and from how many batches; see ``BatchCosts.report``. Empty for an op without batches,
            and in recordings of earlier versions.
    """

    name: str
    inputs: tuple[str, ...]
    workers: int
    batch_size: int
    window: float | None
    place: Place
    batches: int
    samples: int
    cpu: float | None
    stages: tuple[float, float, float]
    queue: float
    waiting: int
    given_by: str = ""
    learned: tuple[int, str] = (0, "")

    @property
    def mean_batch(self) -> float:
        """Mean samples in a batch."""
        return self.samples / self.batches

    @property
    def wall(self) -> float:
        """Mean seconds of a batch."""
        return sum(self.stages) / self.batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One step; times in seconds.

    Attributes:
        seconds: duration of the step.
        cores: number of cores that the service and its client may use.
        others: cores that other programs used.
        engines: number of engines.
        most_running: maximum requests inside an engine's graphs (``worker_num``); None for no
            limit.
        answered: number of answered requests.
        loop: CPU time of the engines' loops per request.
        rest: the same of the engines' other threads that are not workers of ops, such as the
            threads of a model's library.
        ops: the ops of the graph with the most requests, in its order.
        graphs: number of graphs with requests.
        load: the client's measurements; None if the client is unknown.
    """

    seconds: float
    cores: int
    others: float
    engines: int
    most_running: int | None
    answered: int
    loop: float
    rest: float
    ops: tuple[OpSeen, ...]
    graphs: int
    load: Load | None = None

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.load.rate if self.load else self.answered / self.seconds


def step_of(
    before: Report,
    after: Report,
    *,
    seconds: float,
    cores: int,
    busy: float,
    load: Load | None = None,
) -> dict[str, Any]:
    """Make a step of a recording.

    Args:
        before: the service's status at the begin.
        after: the status at the end.
        seconds: time between them.
        cores: number of cores of this machine.
        busy: busy seconds of these cores, for all processes.
        load: the client's measurements.
    """
    return {
        "before": before,
        "after": after,
        "seconds": seconds,
        "cores": cores,
        "busy": busy,
        "load": load and asdict(load),
    }


def observations_of(recording: Report) -> list[Observation]:
    """Return the steps of a recording, those with fewer requests in flight first.

    Raises:
        NoRecording: it is not a recording, or has no requests.
    """
    try:
        found = [observation_of(step) for step in recording[KEY]["steps"]]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise NoRecording(
            "there is no status of ops in it: record it with penstock trace, or penstock plan -o"
        ) from error
    if not found:
        raise NoRecording("there were no requests while it was recorded")
    return sorted(found, key=lambda each: each.load.in_flight if each.load else 0)


def observation_of(step: Report) -> Observation:
    """Return a step of a recording as an Observation.

    Raises:
        NoRecording: there were no requests.
    """
    before, after = step["before"], step["after"]
    graphs = [(each, _same(before["graphs"], each)) for each in after["graphs"]]
    counts = [_samples(now) - _samples(was) for now, was in graphs]
    answered = after["requests"]["answered"] - before["requests"]["answered"]
    if answered <= 0 or not any(counts):
        raise NoRecording("there were no requests while it was recorded")
    graph, was = graphs[counts.index(max(counts))]
    then = {each["name"]: each for each in was["ops"]}
    engines = after["engines"]
    ops = tuple(
        _op(each, then.get(each["name"], {}), engines)
        for each in graph["ops"]
        if each["batches"] > then.get(each["name"], {}).get("batches", 0)
    )
    names = {each.name for each in ops}
    if any(not names.issuperset(each.inputs) for each in ops):
        raise NoRecording("some op of the graph has run no batch meanwhile")
    loop = after["process"]["loop"] - before["process"]["loop"]
    whole = after["process"]["cpu"] - before["process"]["cpu"]
    inside = sum(each.cpu or 0.0 for each in ops if each.place == "thread")
    outside = sum(each.cpu or 0.0 for each in ops if each.place == "process")
    load = step["load"] and Load(**step["load"])
    ours = whole + outside + (load.client * answered if load else 0.0)
    return Observation(
        seconds=step["seconds"],
        cores=step["cores"],
        others=max(0.0, step["busy"] - ours) / step["seconds"],
        engines=engines,
        most_running=after.get("most_running"),
        answered=answered,
        loop=loop / answered,
        rest=max(0.0, whole - loop - inside) / answered,
        ops=ops,
        graphs=sum(count > 0 for count in counts),
        load=load,
    )


def _same(graphs: Sequence[Report], graph: Report) -> Report:
    """Return the same graph in an earlier status; one without counts if it is missing."""
    keys = ("name", "version")
    found = (each for each in graphs if all(each[key] == graph[key] for key in keys))
    return next(found, {"ops": []})


def _samples(graph: Report) -> int:
    return sum(op["samples"] for op in graph["ops"])


def _op(now: Report, was: Report, engines: int) -> OpSeen:
    place: Place = "process" if "process" in now else "thread" if "threads" in now else "loop"
    key = {"process": "process", "thread": "threads"}.get(place)
    began = was.get("seconds", {})
    samples = now["samples"] - was.get("samples", 0)
    rows = now["rows"]["sum"] - was.get("rows", {}).get("sum", 0)
    batching = now["batching"]
    return OpSeen(
        name=now["name"],
        inputs=tuple(now["inputs"]),
        workers=max(1, now["workers"] // engines),
        batch_size=max(1, round(batching["batch_size"] * samples / max(rows, samples))),
        window=batching["window"],
        place=place,
        batches=now["batches"] - was.get("batches", 0),
        samples=samples,
        cpu=None if key is None else now[key]["cpu"] - was.get(key, {}).get("cpu", 0.0),
        stages=tuple(
            now["seconds"][each] - began.get(each, 0.0)
            for each in ("preprocess", "process", "postprocess")
        ),
        queue=now["queue"]["sum"] - was.get("queue", {}).get("sum", 0.0),
        waiting=now["waiting"],
        given_by=now.get("given_by", ""),
        learned=_learned(now.get("costs")),
    )


def _learned(costs: Report | None) -> tuple[int, str]:
    return (0, "") if costs is None else (costs["batches"], costs["words"])


def requests_of(recording: Report) -> list[dict[str, float]]:
    """Return for each request in the trace the seconds of its batches, by op."""
    found: list[dict[str, float]] = []
    op = ""
    for event in _slices(recording):
        facts = event.get("args", {})
        if "route" in facts:
            found.append({})
        elif "attempt" in facts:
            op = event["name"]
        elif op and event["name"] in ("preprocess", "process", "postprocess"):
            of = found[-1]
            of[op] = of.get(op, 0.0) + event["dur"] / 1e6
    return [each for each in found if each]


def latencies_of(recording: Report) -> list[float]:
    """Return the seconds of each request in the trace, as measured by the service."""
    return [each["dur"] / 1e6 for each in _slices(recording) if "route" in each.get("args", {})]


def _slices(recording: Report) -> Iterator[Report]:
    for event in recording.get("traceEvents", ()):
        if event.get("ph") == "X" and event.get("pid") == _REQUESTS:
            yield event
