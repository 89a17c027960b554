"""Rules for the callers of a service, from its configuration: scopes, quotas and priorities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from difflib import get_close_matches
from functools import partial

from penstock.api.admission import CallerAdmission
from penstock.api.priorities import Priorities
from penstock.api.quotas import Quota, Quotas
from penstock.config.callers import PriorityConfig, QuotaConfig
from penstock.config.schema import ServiceConfig
from penstock.engine.engine import Engine
from penstock.engine.stage import Stage
from penstock.engine.submission import Submission
from penstock.errors import HookError, StartupError
from penstock.service.blueprint import needs_callers


def set_rules(
    engine: Engine,
    config: ServiceConfig,
    admission: CallerAdmission | None,
    paths: Mapping[str, frozenset[str]],
) -> Quotas | None:
    """Let an engine ask the rules before it admits a request.

    Args:
        engine: the engine.
        config: of the service.
        admission: knows the callers; None: it admits everybody.
        paths: of each graph's own routes, by its name.

    Returns:
        the quotas, which the router needs as well; None if there are none.
    """
    quotas = _quotas_of(config.quotas, paths)
    permits = [] if quotas is None else [quotas.permit]
    if admission is not None and config.security.scopes:
        permits.insert(0, admission.permit)
    if permits:
        engine.permit = permits[0] if len(permits) == 1 else partial(_permit, permits)
    if config.priority.levels > 1:
        engine.level_of = _priorities_of(config.priority, paths).level_of
    return quotas


def check_listed(config: ServiceConfig, paths: Set[str], graphs: Collection[str] | None) -> None:
    """Check the routes that the configuration names: a rule for another one would have no effect.

    Args:
        config: of the service.
        paths: of its routes and methods.
        graphs: names of its graphs; None if others may come, so that any text may be one.

    Raises:
        StartupError: one of them is not served.
    """
    listed: list[tuple[str, Collection[str]]] = [
        ("security.scopes", config.security.scopes),
        ("priority.routes", config.priority.routes),
        *((f"quotas.{name}.routes", each.routes) for name, each in config.quotas.items()),
    ]
    known = {*paths, *(graphs or ())}
    for key, names in (*listed, ("security.open", config.security.open)):
        served = paths if key == "security.open" else known
        for name in names:
            if name not in served:
                if graphs is None and served is known and "/" not in name:
                    continue
                what = "route or gRPC method" if served is paths else "route, gRPC method or graph"
                near = get_close_matches(name, sorted(served), n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise StartupError(f"{key}: there is no {what} {name}{hint}")


def check_callers(stages: Sequence[Stage]) -> None:
    """Check that no op needs to know the callers of a service that admits everybody."""
    for stage in stages:
        if stage.asks_caller == "required":
            raise HookError(needs_callers(stage.name))


def _permit(permits: Sequence[Callable[[Submission], None]], submission: Submission) -> None:
    """Let each of them check a request; see ``Engine.permit``."""
    for each in permits:
        each(submission)


def _quotas_of(
    configs: Mapping[str, QuotaConfig], paths: Mapping[str, frozenset[str]]
) -> Quotas | None:
    quotas = [
        Quota(
            name=name,
            rate=each.rate,
            burst=each.burst,
            concurrency=each.concurrency,
            callers=frozenset(each.callers),
            scopes=frozenset(each.scopes),
            routes=frozenset(each.routes),
        )
        for name, each in configs.items()
    ]
    return Quotas(quotas, paths) if quotas else None


def _priorities_of(config: PriorityConfig, paths: Mapping[str, frozenset[str]]) -> Priorities:
    return Priorities(
        levels=config.levels,
        default=config.default or config.levels,
        callers=config.callers,
        scopes=config.scopes,
        routes=config.routes,
        header=config.header,
        paths=paths,
    )
