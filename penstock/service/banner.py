"""The start lines of a service, and the reports of ``penstock check``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.config.resolve import OpOptions
from penstock.door.listeners import is_loopback
from penstock.graph.dag import Plan
from penstock.observe.logs import LogOptions, log_line
from penstock.ops.op import Op
from penstock.service.blueprint import Blueprint, Deployment

_MOST_MODELS = 100

_log = logging.getLogger(__name__)


def announce(lines: Sequence[str], options: LogOptions) -> None:
    """Write the start lines to standard output; a service whose output is closed runs on."""
    if sys.stdout is None:
        return
    try:
        text = [log_line(options, line) for line in lines]
        sys.stdout.write("\n".join(text) + "\n")
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        _log.warning("the start lines could not be written: %s", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The addresses of a service. ``http_port`` None: gRPC port only; ``rpc_port`` may be the same.
    ``metrics_port`` serves only metrics, ``admin_port`` of ``admin_host`` only operators.
    """

    host: str
    rpc_port: int
    http_port: int | None = None
    metrics_port: int | None = None
    admin_port: int | None = None
    admin_host: str = ""
    unix_socket: str | None = None
    tls: bool = False


Decided: TypeAlias = Sequence[Sequence[OpOptions]]
"""Of each graph, the options of its ops, as its models allow."""


def address_lines(deployment: Deployment, at: Addresses) -> list[str]:
    """The first start lines: names and addresses."""
    who = "this machine only" if is_loopback(at.host) else "every machine that can reach this one"
    graphs = deployment.graphs
    names = dict.fromkeys(each.app or each.name or "every name" for each in graphs)
    repositories = deployment.repositories
    if repositories is not None and repositories.mode != "none":
        names |= dict.fromkeys(f"the models of {_place(each)}" for each in repositories.places)
    what = _listed([*names]) if names else "no model yet"
    lines = [f"penstock serves {what} to {who}"]
    scheme, over = ("https", " over TLS") if at.tls else ("http", "")
    host = _in_url(at.host)
    ui = deployment.config.ui.enabled
    if at.http_port is not None:
        pages = {"/docs": deployment.config.docs, "/ui": ui and at.admin_port is None}
        shown = [*(page for page, served in pages.items() if served), "/livez", "/readyz"]
        lines.append(f"  http  {scheme}://{host}:{at.http_port}   GET {' '.join(shown)}")
    lines.append(f"  grpc  {host}:{at.rpc_port}{over}   PipelineService, health, reflection")
    if at.metrics_port is not None:
        lines.append(f"  http  {scheme}://{host}:{at.metrics_port}   GET /metrics alone")
    if at.admin_port is not None:
        shown = ["/ui"] * ui + ["/status", "/trace"] + ["/metrics"] * deployment.config.metrics
        url = f"{scheme}://{_in_url(at.admin_host)}:{at.admin_port}"
        lines.append(f"  admin {url}   GET {' '.join(shown)}")
    if at.unix_socket is not None:
        lines.append(f"  unix  {at.unix_socket}   both protocols")
    engines = deployment.config.engines
    if engines > 1:
        lines.append(f"  with  {engines} engines, each with all of these ops")
    if repositories is not None and repositories.mode != "none":
        changing = [
            each.executor
            for graph in deployment.graphs
            for each in graph.options
            if each.versions is not None
        ]
        lines.append(
            "  with  worker processes for each version of a model that may change, which free its"
            " memory when they end"
            if all(each.own_processes for each in changing)
            else "  with  threads for models that may change: the memory of a version that was"
            " replaced may be free only when its engine is replaced"
        )
    return lines


def _place(repository: str) -> str:
    """A folder, or a URL without passwords."""
    from penstock.store.remote import shown

    return shown(repository) if "://" in repository else repository


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host  # an IPv6 address


def route_lines(deployment: Deployment, decided: Decided, models: Sequence[str]) -> list[str]:
    """The further start lines: routes, ops and models.

    Args:
        deployment: what is served.
        decided: the options of its ops.
        models: a text for each model.
    """
    graphs, lines = deployment.graphs, list[str]()
    width = max((len(each.route or "") for each in graphs), default=0)
    verb = max((len(each.method) for each in graphs), default=0)
    newest = {graph.name: graph.version for graph in graphs}
    names = [*newest]
    for graph, options in sorted(
        zip(graphs, decided, strict=True),
        key=lambda each: (names.index(each[0].name), each[0].version != newest[each[0].name]),
    ):
        if graph.version != newest[graph.name]:
            lines.append(f"  with  version {graph.version} of {graph.called}")
            lines += _ops(graph, options)
        elif graph.route is None:
            path = f"/{graph.name or '{name}'}"
            lines.append(
                f"  POST  {path}   with JSON, or {path}/{{method}} as the pipeline protocol"
            )
            lines += _ops(graph, options)
        elif len(options) == 1:
            described = _describe(graph.options[0], options[0])
            lines.append(f"  {graph.method:<{verb}}  {graph.route:<{width}}  {described}")
        else:
            lines.append(f"  {graph.method:<{verb}}  {graph.route}")
            lines += _ops(graph, options)
    lines += [f"  model {each}" for each in models[:_MOST_MODELS]]
    if len(models) > _MOST_MODELS:
        lines.append(f"  and {len(models) - _MOST_MODELS} more models")
    return lines + [f"  hot   {each}" for graph in graphs for each in graph.notes]


def check_reports(deployment: Deployment, decided: Decided | None) -> list[str]:
    """A report for each app, and each service outside of an app; nothing was started.

    Args:
        deployment: the deployment that would be served.
        decided: the options of its ops; None if its models were not opened.
    """
    opened = decided is not None
    graphs = [*zip(deployment.graphs, decided or configured(deployment), strict=True)]
    of_apps: dict[str, list[_Graph]] = {}
    for each in graphs:
        if each[0].app is not None:
            of_apps.setdefault(each[0].app, []).append(each)
    reports = [_app_report(name, those, opened=opened) for name, those in of_apps.items()]
    alone = [each for each in graphs if each[0].app is None]
    if not graphs:
        return ["no model yet: the configuration is good"]
    return reports + [check_report(graph, those, opened=opened) for graph, those in alone]


def configured(deployment: Deployment) -> Decided:
    """The options before any model is open."""
    return [graph.options for graph in deployment.graphs]


_Graph: TypeAlias = tuple[Blueprint, Sequence[OpOptions]]


def check_report(
    blueprint: Blueprint, decided: Sequence[OpOptions] | None = None, *, opened: bool = False
) -> str:
    """The graph and its options; nothing was started."""
    lines = [f"{blueprint.called}: the configuration and the graph are good"]
    lines += _ops(blueprint, blueprint.options if decided is None else decided)
    return "\n".join([*lines, *_notes([blueprint], opened=opened)])


def _app_report(name: str, graphs: Sequence[_Graph], *, opened: bool) -> str:
    lines = [f"{name}: the configuration and the routes are good"]
    width = max(len(graph.route or "") for graph, _ in graphs)
    verb = max(len(graph.method) for graph, _ in graphs)
    for graph, options in graphs:
        lines.append(f"  {graph.method:<{verb}}  {graph.route:<{width}}  {graph.shape}")
        if len(options) > 1:
            lines += _ops(graph, options)
        else:
            lines.append(
                f"  {'':<{verb}}  {'':<{width}}  {_describe(graph.options[0], options[0])}"
            )
    return "\n".join([*lines, *_notes([graph for graph, _ in graphs], opened=opened)])


def _notes(graphs: Sequence[Blueprint], *, opened: bool) -> list[str]:
    """Lines about opened models, and warnings."""
    loading = [
        what
        for graph in graphs
        for op, options in zip(graph.graph.ops, graph.options, strict=True)
        for what in _loads(op, options)
    ]
    if not loading:
        found = []
    elif opened:
        found = [f"  opened {_listed(loading)}"]
    else:
        found = [f"  not opened: {_listed(loading)}; --open tries that, too"]
    return found + [f"  warning  {text}" for graph in graphs for text in graph.warnings]


def _loads(op: Op, options: OpOptions) -> Iterator[str]:
    """The model, and functions that run at the start."""
    if options.executor.needs_socket:
        return
    if options.model is not None and not options.starts_server:
        yield options.model_shown or options.model.path
    elif op.local_service_handler is not None:
        yield f"the model of {op.name}"
    if op.loads:
        step = op.hook_name("init_op")
        yield f"init_op of {op.name}" if step == "init_op" else step


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _ops(blueprint: Blueprint, decided: Sequence[OpOptions]) -> list[str]:
    plan = blueprint.graph.plan
    width = max(len(name) for name in plan.names)
    return [
        f"  op    {name:<{width}}  {_inputs(plan, index)}  {_describe(given, options)}"
        for index, (name, given, options) in enumerate(
            zip(plan.names, blueprint.options, decided, strict=True)
        )
    ]


def _inputs(plan: Plan, index: int) -> str:
    names = ["request" if i < 0 else plan.names[i] for i in plan.inputs[index]]
    return f"after {' and '.join(names)}"


def _workers(options: OpOptions) -> str:
    kind = options.executor.name
    if options.executor.needs_socket:
        return f"{kind} workers at {options.socket}"
    if options.executor.one_worker:
        return kind
    if options.executor.elsewhere:
        return f"{options.concurrency} {kind} worker{'s' if options.concurrency > 1 else ''}"
    seats = "" if options.seats is None else f" x {options.seats} seats"
    if options.concurrency == 1:
        return f"1 {kind}{seats}"
    return f"{options.concurrency} {kind}{'es' if kind.endswith('s') else 's'}{seats}"


def _describe(given: OpOptions, options: OpOptions) -> str:
    """An op's options, as configured and as its model allows."""
    parts = [_workers(given)]
    if options.batch_size == 1 < given.batch_size:
        parts.append("not batched")
    elif options.batch_size > 1:
        window = f" within {options.window * 1000:g} ms" if options.window else ""
        parts.append(f"batches of {options.batch_size}{window}")
    if options.model is not None:
        parts.append(options.model_shown or options.model.path)
    if options.starts_server:
        parts.append("in a model server that is started for it")
    elif options.remote is not None:
        parts.append(f"calls {options.remote}")
    return ", ".join(parts)
