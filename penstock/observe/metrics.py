"""Prometheus metrics: converts a report to metric families, and these to text.

``admin/status.py`` makes and sums the reports. Names, units and types follow the
conventions of Prometheus; labels are names of services, ops, states and codes, never a client's
text. Reading changes nothing, so any number of scrapers see the same numbers.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from penstock.executors.seats.counts import RUNNING
from penstock.executors.seats.counts import SECONDS as STEP_SECONDS
from penstock.executors.workers.places import RUNNING as RUNS
from penstock.executors.workers.places import STATES
from penstock.observe.counters import ROWS, SECONDS
from penstock.observe.places import idle
from penstock.observe.swaps import SERVED
from penstock.version import VERSION

if TYPE_CHECKING:
    from prometheus_client import Metric

Report: TypeAlias = Mapping[str, Any]

MULTIPROCESS: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable with the folder in which ``prometheus_client`` shares metrics between processes."""

_MOST_MODELS: Final = 1000
"""Versions of models of repositories that have a series: somebody may copy any number there."""

_IMPOSSIBLE: Final = "impossible"
"""The state, in the metric, of a worker that waits for more than any node has."""

_SERVICE: Final = ("service", "version")
_OP: Final = (*_SERVICE, "op")


@dataclass(frozen=True, slots=True)
class Family:
    """The declaration of a metric; a counter's name is without ``_total``."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    text: str

    @property
    def shown(self) -> str:
        """Its name in queries."""
        return self.name + "_total" * (self.kind == "counter")


_OF_SERVICE: Final = (
    Family(
        "penstock_build_info",
        "gauge",
        ("version", "python"),
        "Always 1; the labels are the versions of Penstock and Python.",
    ),
    Family("penstock_ready", "gauge", (), "Whether requests are accepted: 1 or 0."),
    Family("penstock_engines", "gauge", (), "Engine processes that are serving."),
    Family(
        "penstock_engines_ended",
        "counter",
        (),
        "Engine processes that have ended; their counts are still part of every sum.",
    ),
    Family(
        "penstock_external_store_up",
        "gauge",
        (),
        "Whether all parts of the service that use the external store can: 1 or 0.",
    ),
    Family(
        "penstock_external_store_keys",
        "gauge",
        (),
        "Keys of the external store that were given out for requests that have not ended.",
    ),
    Family(
        "penstock_external_store_put_bytes",
        "counter",
        (),
        "Bytes that the service, its workers or services that it calls have put into the store.",
    ),
    Family(
        "penstock_external_store_fetched_bytes",
        "counter",
        (),
        "Bytes that they have fetched from there; the value of a remote op that its caller fetches"
        " to see that both use one store counts as well.",
    ),
    Family(
        "penstock_external_store_inline",
        "counter",
        (),
        "Requests of an op whose large values went another way: the store could not be used.",
    ),
    Family(
        "penstock_external_store_lost",
        "counter",
        (),
        "Requests of an op that failed because a value could not be had from the store.",
    ),
    Family(
        "penstock_requests",
        "counter",
        (*_SERVICE, "outcome", "code"),
        "Requests that have ended. Outcome: ok, error, refused (not admitted), cancelled (its"
        " client left). Code: of the error.",
    ),
    Family(
        "penstock_request_duration_seconds",
        "histogram",
        _SERVICE,
        "Time from the admission of a request to its answer.",
    ),
    Family(
        "penstock_first_piece_seconds",
        "histogram",
        _SERVICE,
        "Time from the admission of a request to the first piece of its answer.",
    ),
    Family(
        "penstock_between_pieces_seconds",
        "histogram",
        _SERVICE,
        "Mean time between the pieces of an answer that has ended: from the first piece to the end"
        " of the answer, divided by the number of the others.",
    ),
    Family("penstock_pieces", "counter", _SERVICE, "Pieces of answers."),
    Family(
        "penstock_streams_open",
        "gauge",
        _SERVICE,
        "Answers in pieces that have begun and not yet ended.",
    ),
    Family(
        "penstock_streams_ended",
        "counter",
        (*_SERVICE, "why"),
        "Answers in pieces that have begun and ended. Why: ok, cancelled (its caller left), or the"
        " code of the error.",
    ),
    Family(
        "penstock_requests_in_flight", "gauge", _SERVICE, "Requests admitted and not yet ended."
    ),
    Family(
        "penstock_requests_waiting",
        "gauge",
        (),
        "Admitted requests that wait because worker_num requests are inside the graph.",
    ),
    Family("penstock_connections_open", "gauge", (), "Open connections."),
    Family("penstock_connections_opened", "counter", (), "Connections accepted."),
    Family(
        "penstock_door_requests",
        "counter",
        (),
        "HTTP requests, gRPC and baidu_std calls, whatever their path.",
    ),
    Family(
        "penstock_door_errors",
        "counter",
        ("code",),
        "Answers with an HTTP status of 400 or more, by status, and gRPC and baidu_std calls with a"
        " status other than OK, by its name; whatever their path.",
    ),
    Family(
        "penstock_door_refusals",
        "counter",
        ("reason",),
        "Connections, requests and answers ended because of a limit or a protocol error.",
    ),
    Family(
        "penstock_caller_refusals",
        "counter",
        ("reason",),
        "Requests refused before their bodies were read, because of who made them. Reason: quota,"
        " or the code of the error, such as unauthorized, forbidden, too_many_requests (failed"
        " attempts).",
    ),
    Family(
        "penstock_caller_requests",
        "counter",
        ("caller", "outcome"),
        "Requests of known callers that have ended. Outcome: ok, error, cancelled (the"
        " caller left), refused (beyond a quota, without the needed scope, or not admitted)."
        " Caller: the name of an API key, or certificate:NAME; * stands for tokens, and for callers"
        " after the first 100.",
    ),
    Family(
        "penstock_traces",
        "counter",
        ("outcome",),
        "Sampled requests, by the outcome of the export of their OpenTelemetry spans:"
        " exported, dropped (the queue was full), failed (the collector did not accept them).",
    ),
    Family(
        "penstock_model_versions",
        "gauge",
        ("model", "version", "state"),
        "Always 1; the versions of the models of repositories, by their states: READY, LOADING,"
        " UNLOADING, UNAVAILABLE.",
    ),
    Family(
        "penstock_version_share",
        "gauge",
        _SERVICE,
        "Share of the requests that name no version, from 0 to 1, which a version gets; of services"
        " whose versions may change.",
    ),
    Family(
        "penstock_version_loads",
        "counter",
        ("service", "outcome", "reason"),
        "Attempts to serve a version. Outcome: ok (every engine serves it), failed (what served"
        " before does). Reason: start (an engine could not make it ready), or the code of the error"
        " that came before, such as store_unavailable, version_unfinished, content_refused, model.",
    ),
    Family(
        "penstock_rollout_step",
        "gauge",
        _SERVICE,
        "The step of a rollout that runs, from 1, by the new version.",
    ),
    Family(
        "penstock_rollouts",
        "counter",
        ("service", "result"),
        "Rollouts that have ended. Result: promoted, taken_back, superseded (by a newer version).",
    ),
    Family(
        "penstock_shadow_answers",
        "counter",
        (*_SERVICE, "outcome"),
        "Copies of requests for a version. Outcome: same, differed (from the answer of the version"
        " that served the request), failed, dropped (not run, or not comparable).",
    ),
    Family(
        "penstock_repository_answers",
        "gauge",
        ("repository",),
        "Whether a repository of models could be listed when that was last tried: 1 or 0.",
    ),
    Family(
        "penstock_process_resident_memory_bytes",
        "gauge",
        ("role", *_OP),
        "Resident memory of the engine or worker processes; shared memory counts in each.",
    ),
    Family(
        "penstock_process_cpu_seconds",
        "counter",
        ("role", *_OP),
        "CPU time of the engine or worker processes, user and system.",
    ),
)

_OF_OPS: Final = (
    Family("penstock_op_queue_length", "gauge", _OP, "Samples in the queue of the op."),
    Family(
        "penstock_op_queue_wait_seconds",
        "histogram",
        _OP,
        "Time from a sample's arrival in the queue until its batch is closed.",
    ),
    Family(
        "penstock_op_batch_rows",
        "histogram",
        _OP,
        "Rows of a batch; samples, unless the op has batch_rows.",
    ),
    Family(
        "penstock_op_batches",
        "counter",
        (*_OP, "reason"),
        "Batches, by the reason for which they were closed.",
    ),
    Family(
        "penstock_op_stage_seconds",
        "counter",
        (*_OP, "stage"),
        "Time of batches in preprocess, process and postprocess; transfer is the rest of the time"
        " between the closing of a batch and its return.",
    ),
    Family("penstock_op_errors", "counter", _OP, "Samples that ended with an error in the op."),
    Family("penstock_op_timeouts", "counter", _OP, "Batches that exceeded the op's timeout."),
    Family(
        "penstock_op_late_batches",
        "counter",
        _OP,
        "Results that arrived after the batch had timed out, and were dropped.",
    ),
    Family(
        "penstock_op_taken_back_batches",
        "counter",
        _OP,
        "Batches that their worker had not begun and that were dispatched to another.",
    ),
    Family(
        "penstock_op_quarantined_samples",
        "counter",
        _OP,
        "Samples refused because requests with the same inputs have killed workers.",
    ),
    Family("penstock_op_elements", "counter", _OP, "Elements of padded arrays, padding included."),
    Family("penstock_op_padding_elements", "counter", _OP, "Elements of padding."),
    Family(
        "penstock_op_workers",
        "gauge",
        (*_OP, "state"),
        "Workers, by state: idle, busy, or missing (there is none now, and no batch for it); of an"
        " op with seats its seats, free or taken.",
    ),
    Family(
        "penstock_op_worker_states",
        "gauge",
        (*_OP, "state"),
        "Workers of an op that runs in processes of its own, here or on other machines. State:"
        " running, starting, waiting (there is no room for it now), impossible (no node of the"
        " cluster is large enough for it), failed (it ended before it was ready, and is started"
        " again).",
    ),
    Family(
        "penstock_op_node_workers",
        "gauge",
        (*_OP, "node", "address"),
        "Running workers on a node of a cluster, by its host name and address.",
    ),
    Family("penstock_op_seats", "gauge", _OP, "Seats of all workers of an op with seats."),
    Family("penstock_step_running", "histogram", _OP, "Requests that ran in a step."),
    Family("penstock_step_seconds", "histogram", _OP, "Time of a step."),
    Family("penstock_op_worker_starts", "counter", _OP, "Workers that became ready for batches."),
    Family("penstock_op_worker_deaths", "counter", _OP, "Workers that died."),
    Family(
        "penstock_op_worker_replacements", "counter", _OP, "Workers that were ended and replaced."
    ),
)

FAMILIES: Final = (*_OF_SERVICE, *_OF_OPS)

OF_ORIGINAL: Final = (
    Family("pd_query_request_success", "counter", _SERVICE, "Requests answered without an error."),
    Family("pd_query_request_failure", "counter", _SERVICE, "Requests answered with an error."),
    Family(
        "pd_query_request_duration_us",
        "counter",
        _SERVICE,
        "Time of these requests, in microseconds.",
    ),
    Family("pd_inference_count", "counter", (*_OP, "model"), "Batches that were run."),
    Family(
        "pd_inference_duration_us",
        "counter",
        (*_OP, "model"),
        "Time of these batches, in microseconds.",
    ),
)
"""Metrics with the original's names. Source: ``docs/compatibility.md`` (metrics)."""

DOOR: Final = {
    "refused": "max_connections",
    "calls_refused": "max_calls",
    "callers_refused": "caller",
    "bodies_refused": "max_inflight_bytes",
    "bodies_too_large": "max_message_bytes",
    "heads_too_large": "head_too_large",
    "heads_late": "header_timeout",
    "bodies_late": "body_timeout",
    "stalled": "write_timeout",
    "overrun": "unread_answers",
    "malformed": "malformed",
    "resets": "stream_error",
    "streams_beyond": "max_streams",
    "streams_refused": "stream_backlog",
    "calmed": "abuse",
    "tls_failed": "tls",
    "errors": "internal_error",
}
"""Counters of ``door.limits.DoorStatistics``, with their reason in the metric."""

_EVENTS: Final = {
    "penstock_op_errors": "errors",
    "penstock_op_timeouts": "timeouts",
    "penstock_op_late_batches": "late",
    "penstock_op_taken_back_batches": "taken_back",
    "penstock_op_quarantined_samples": "refused",
    "penstock_op_elements": "elements",
    "penstock_op_padding_elements": "filled_in",
}
_CHANGES: Final = {
    "penstock_op_worker_starts": "started",
    "penstock_op_worker_deaths": "died",
    "penstock_op_worker_replacements": "replaced",
}


class Families:
    """A collector of the families of one report.

    Args:
        report: of one engine, or the sum over several.
        of_original: whether to add metrics with the original's names.
    """

    def __init__(self, report: Report, *, of_original: bool = False) -> None:
        # Imported here, as the import takes as long as half of our package.
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        kinds: dict[str, Any] = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "histogram": HistogramMetricFamily,
        }
        declared = FAMILIES + OF_ORIGINAL * of_original
        self._made = {
            each.name: kinds[each.kind](each.name, each.text, labels=each.labels)
            for each in declared
        }
        self._of_original = of_original
        self._add_service(report)
        for graph in report["graphs"]:
            self._add_graph(graph)

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        return iter(self._made.values())

    def _add(self, name: str, value: float, *labels: str) -> None:
        self._made[name].add_metric(labels, value)

    def _add_histogram(
        self, name: str, bounds: Sequence[float], seen: Report, *labels: str
    ) -> None:
        classes = seen["classes"]
        counts = [
            *(classes.get(f"<= {x:g}", 0) for x in bounds),
            classes.get(f"> {bounds[-1]:g}", 0),
        ]
        names = [*(str(float(bound)) for bound in bounds), "+Inf"]
        buckets = list(zip(names, accumulate(counts), strict=True))
        self._made[name].add_metric(labels, buckets=buckets, sum_value=seen["sum"])

    def _add_store(self, store: Report | None) -> None:
        """Without series if the service has no external store."""
        if store is None:
            return
        # After the end of all engines that use it there are only counters.
        up = store.get("available", 0) == store.get("users", 0)
        self._add("penstock_external_store_up", up)
        self._add("penstock_external_store_keys", store.get("in_use", 0))
        for name in ("put_bytes", "fetched_bytes", "inline", "lost"):
            self._add(f"penstock_external_store_{name}", store[name])

    def _add_service(self, report: Report) -> None:
        add = self._add
        add("penstock_build_info", 1, VERSION, platform.python_version())
        add("penstock_ready", report["ready"])
        add("penstock_engines", report["engines"])
        add("penstock_engines_ended", report.get("engines_ended", 0))
        add("penstock_requests_waiting", report["requests"]["waiting"])
        for outcome, count in report.get("traces", {}).items():
            add("penstock_traces", count, outcome)
        self._add_store(report.get("external_store"))
        door, connections = report["door"], report["connections"]
        if door:  # else connections belong to another server
            add("penstock_connections_open", connections["opened"] - connections["closed"])
            add("penstock_connections_opened", connections["opened"])
            add("penstock_door_requests", door["requests"])
            for code, count in door["error_answers"].items():
                add("penstock_door_errors", count, code)
            for reason, count in door["caller_refusals"].items():
                add("penstock_caller_refusals", count, reason)
            for key, reason in DOOR.items():
                add("penstock_door_refusals", door[key], reason)
        for caller in report.get("caller_series", ()):
            counts = {"error": caller["failed"], "cancelled": caller["cancelled"]}
            counts["refused"] = sum(caller["refused"].values())
            counts["ok"] = caller["requests"] - sum(counts.values())
            for outcome, count in counts.items():
                add("penstock_caller_requests", count, caller["name"], outcome)
        for model in report.get("models", ())[:_MOST_MODELS]:
            add("penstock_model_versions", 1, model["name"], model["version"], model["state"])
        self._add_versions(report)
        for each in report.get("repositories", ()):
            add("penstock_repository_answers", not each["why"], each["name"])
        self._add_process(report["process"], "engine", "", "", "")

    def _add_versions(self, report: Report) -> None:
        add = self._add
        for each in report.get("loads", ()):
            for code, count in each["outcomes"].items():
                failed = code != SERVED
                outcome = ("failed", code) if failed else ("ok", "")
                add("penstock_version_loads", count, each["name"], *outcome)
        results = {each["name"]: each["outcomes"] for each in report.get("rollout_ends", ())}
        for each in report.get("rollouts", ()):
            name = each["name"] or "*"
            results.setdefault(name, {})
            if each["state"] == "running":
                add("penstock_rollout_step", int(each["step"]), name, each["version"])
        for name, outcomes in results.items():
            for result in ("promoted", "taken back", "superseded"):
                label = result.replace(" ", "_")
                add("penstock_rollouts", outcomes.get(result, 0), name, label)

    def _add_process(self, used: Report, *labels: str) -> None:
        self._add("penstock_process_resident_memory_bytes", used.get("memory", 0), *labels)
        self._add("penstock_process_cpu_seconds", used["cpu"], *labels)

    def _add_graph(self, graph: Report) -> None:
        name = graph["name"] or "*"
        labels = (name, graph["version"])
        add, seen = self._add, graph["requests"]
        answers = dict(seen["answers"])
        add("penstock_requests", answers.pop("ok"), *labels, "ok", "")
        for code, count in answers.items():
            add("penstock_requests", count, *labels, "error", code)
        for code, count in seen["refusals"].items():
            add("penstock_requests", count, *labels, "refused", code)
        add("penstock_requests", seen["cancelled"], *labels, "cancelled", "")
        self._add_histogram("penstock_request_duration_seconds", SECONDS, seen["seconds"], *labels)
        add("penstock_requests_in_flight", graph.get("inside", 0), *labels)
        if "share" in graph:
            add("penstock_version_share", graph["share"], *labels)
        for outcome, count in graph.get("copies", {}).items():
            add("penstock_shadow_answers", count, *labels, outcome)
        if "streams" in graph:
            self._add_streams(graph["streams"], *labels)
        if self._of_original:
            add("pd_query_request_success", seen["answers"]["ok"], *labels)
            add("pd_query_request_failure", sum(answers.values()), *labels)
            add("pd_query_request_duration_us", 1e6 * seen["seconds"]["sum"], *labels)
        for op in graph["ops"]:
            self._add_op(op, *labels, op.get("op") or op["name"].removeprefix(f"{name}/"))

    def _add_streams(self, seen: Report, *labels: str) -> None:
        for name in ("first", "between"):
            family = "penstock_first_piece" if name == "first" else "penstock_between_pieces"
            self._add_histogram(f"{family}_seconds", SECONDS, seen[name], *labels)
        self._add("penstock_pieces", seen["pieces"], *labels)
        self._add("penstock_streams_open", seen.get("open", 0), *labels)
        for why, count in {"ok": 0, **seen["ended"]}.items():
            self._add("penstock_streams_ended", count, *labels, why)

    def _add_op(self, op: Report, *labels: str) -> None:
        add = self._add
        add("penstock_op_queue_length", op.get("waiting", 0), *labels)
        self._add_histogram("penstock_op_queue_wait_seconds", SECONDS, op["queue"], *labels)
        self._add_histogram("penstock_op_batch_rows", ROWS, op["rows"], *labels)
        for reason, count in op["reasons"].items():
            add("penstock_op_batches", count, *labels, reason.replace(" ", "_"))
        stages = {**op["seconds"], "transfer": op["transfer"]}
        for stage, seconds in stages.items():
            add("penstock_op_stage_seconds", seconds, *labels, stage)
        for family, key in _EVENTS.items():
            add(family, op.get(key, 0), *labels)
        for family, key in _CHANGES.items():
            add(family, op["worker_changes"].get(key, 0), *labels)
        workers, slots, can = op.get("workers", 0), op.get("idle", 0), idle(op)
        add("penstock_op_workers", can, *labels, "idle")
        add("penstock_op_workers", max(0, workers - slots), *labels, "busy")
        add("penstock_op_workers", slots - can, *labels, "missing")
        if "places" in op:
            self._add_places(op["places"], *labels)
        if "steps" in op:
            add("penstock_op_seats", op.get("seats", {}).get("all", 0), *labels)
            steps = op["steps"]
            self._add_histogram("penstock_step_running", RUNNING, steps["running"], *labels)
            self._add_histogram("penstock_step_seconds", STEP_SECONDS, steps["seconds"], *labels)
        if "process" in op:
            self._add_process(op["process"], "worker", *labels)
        if self._of_original:
            model = op.get("model", "")
            add("pd_inference_count", op["batches"], *labels, model)
            add("pd_inference_duration_us", 1e6 * sum(op["seconds"].values()), *labels, model)

    def _add_places(self, places: Sequence[Report], *labels: str) -> None:
        states = Counter(
            _IMPOSSIBLE if each["possible"] is False else each["state"] for each in places
        )
        for state in (*STATES, _IMPOSSIBLE):
            self._add("penstock_op_worker_states", states[state], *labels, state)
        nodes = Counter(
            (each["node"]["host"], each["node"]["address"])
            for each in places
            if each["node"] is not None and each["state"] == RUNS
        )
        for node, count in nodes.items():
            self._add("penstock_op_node_workers", count, *labels, *node)


def own_metrics() -> list[Metric]:
    """The metrics that the service's own code has made with ``prometheus_client``.

    They are those of this process; or, with the library's variable MULTIPROCESS, the sums over all
    processes.
    """
    from prometheus_client import (
        GC_COLLECTOR,
        PLATFORM_COLLECTOR,
        PROCESS_COLLECTOR,
        REGISTRY,
        CollectorRegistry,
    )
    from prometheus_client.multiprocess import MultiProcessCollector

    if MULTIPROCESS in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return list(registry.collect())
    usual = {
        each.name
        for collector in (GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR)
        for each in collector.collect()
    }
    return [each for each in REGISTRY.collect() if each.name not in usual]


class _Both:
    """A collector of the families of a report and the service's own."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        yield from self._families.collect()
        yield from own_metrics()


def exposition(
    report: Report, *, openmetrics: bool = False, of_original: bool = False
) -> tuple[bytes, bytes]:
    """The media type and the text of a report, in the format of Prometheus or as OpenMetrics. Any
    thread. The arguments are those of Families.
    """
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
    from prometheus_client.openmetrics import exposition as of_openmetrics

    families = _Both(Families(report, of_original=of_original))
    if openmetrics:
        text: bytes = of_openmetrics.generate_latest(families)  # type: ignore[no-untyped-call]
        return of_openmetrics.CONTENT_TYPE_LATEST.encode(), text
    return CONTENT_TYPE_PLAIN_0_0_4.encode(), generate_latest(families)
