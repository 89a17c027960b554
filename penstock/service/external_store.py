"""The external store of a service's graph: its options, and their problems."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from penstock.client.token import token_at
from penstock.config.problems import Problem
from penstock.config.resolve import OpOptions
from penstock.config.schema import ServiceConfig
from penstock.errors import ModelError
from penstock.executors.external_store.kinds import problem_of
from penstock.executors.external_store.rules import (
    SCHEMES,
    StoreOptions,
    kept_away,
    parse_address,
)
from penstock.graph.dag import Plan

_FILES = ("ca_file", "cert_file", "key_file")


def store_options(config: ServiceConfig, service: str | None) -> StoreOptions | None:
    """The options of the store; None without one.

    Args:
        config: the configuration of the graph.
        service: the name of the graph, the first part of its keys.
    """
    url, options = config.dag.external_store, config.dag.external_store_options
    if url is None:
        return None
    return StoreOptions(
        service=service or config.name or "",
        address=parse_address(url),
        password=options.password,
        min_bytes=options.min_bytes,
        timeout=options.timeout,
        ca_file=options.ca_file,
        cert_file=options.cert_file,
        key_file=options.key_file,
    )


def far_ops(options: Sequence[OpOptions]) -> Collection[int]:
    """The ops whose workers are elsewhere and run our code, and so can use the store."""
    kinds = [each.executor for each in options]
    return [at for at, kind in enumerate(kinds) if kind.elsewhere and not kind.needs_socket]


def stored_ops(plan: Plan, options: Sequence[OpOptions], config: ServiceConfig) -> frozenset[int]:
    """The ops whose large outputs go to the store, by the plan's index."""
    if config.dag.external_store is None:
        return frozenset()
    return kept_away(plan, far_ops(options))


def problems_of_store(config: ServiceConfig) -> Iterator[Problem]:
    """Problems of the keys of the store, as far as they can be known without connecting."""
    options, path = config.dag.external_store_options, ("dag", "external_store_options")
    given = options.model_fields_set
    if config.dag.external_store is None:
        if given:
            yield Problem(path=path, text="needs dag.external_store: the URL of the store")
        return
    address = parse_address(config.dag.external_store)
    problem = problem_of(address.scheme)
    if problem is not None:
        yield Problem(path=("dag", "external_store"), text=problem)
    if options.password is not None:
        if address.password is not None:
            text = "is a second password: dag.external_store has one already"
            yield Problem(path=(*path, "password"), text=text)
        try:
            token_at(options.password)
        except ModelError as error:
            yield Problem(path=(*path, "password"), text=str(error))
    if options.key_file is not None and options.cert_file is None:
        yield Problem(path=(*path, "key_file"), text="needs cert_file")
    for key in _FILES:
        file = getattr(options, key)
        if file is None:
            continue
        if not SCHEMES.get(address.scheme, True):
            text = f"is for {address.scheme}s://, with TLS"
            yield Problem(path=(*path, key), text=text)
            continue
        try:
            with open(file, "rb"):
                pass
        except OSError as error:
            yield Problem(path=(*path, key), text=f"{file}: {error.strerror}")


def store_warning(plan: Plan, options: Sequence[OpOptions], config: ServiceConfig) -> Iterator[str]:
    """A warning about a store that nothing will use."""
    if config.dag.external_store is not None and not stored_ops(plan, options, config):
        yield (
            "dag.external_store has no effect: no op with workers on other machines feeds only ops"
            " with such workers"
        )
