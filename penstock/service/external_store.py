"""The external store of a service's graph: its options, and their problems."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

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
from penstock.ops.hooks import overrides
from penstock.ops.op import Op

_LEAST_SECRET: Final = 16
"""Characters: who sees a message and its mark can try shorter ones out."""
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
        secret=options.shared_secret,
    )


def stored_ops(
    plan: Plan, ops: Sequence[Op], options: Sequence[OpOptions], config: ServiceConfig
) -> frozenset[int]:
    """The ops whose large outputs go to the store, by the plan's index."""
    if config.dag.external_store is None:
        return frozenset()
    makers, readers = set[int](), set[int]()
    shares = config.dag.external_store_options.shared_secret is not None
    for at, (op, each) in enumerate(zip(ops, options, strict=True)):
        kind = each.executor
        if kind.elsewhere and not kind.needs_socket:  # its workers run our code
            makers.add(at)
            readers.add(at)
        elif shares and calls_model(each):
            # The hooks run here.
            if not overrides(op, "postprocess", Op):
                makers.add(at)
            if not overrides(op, "preprocess", Op):
                readers.add(at)
    return kept_away(plan, makers, readers)


def calls_model(options: OpOptions) -> bool:
    """Whether an op calls another service by the Open Inference Protocol, for each request."""
    remote = options.remote
    return (
        remote is not None
        and remote.kind == "model"
        and options.batch_size == 1
        and not options.starts_server
    )


def uses_store(kept: Collection[int], plan: Plan, at: int) -> bool:
    """Whether an op uses the store: its outputs go there, or it reads what others put there.

    Args:
        kept: the ops whose outputs go to the store.
        plan: the graph.
        at: the op.
    """
    return at in kept or any(at in plan.consumers[each] for each in kept)


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
    if options.shared_secret is not None:
        try:
            secret = token_at(options.shared_secret)
        except ModelError as error:
            yield Problem(path=(*path, "shared_secret"), text=str(error))
        else:
            if len(secret if isinstance(secret, str) else secret()) < _LEAST_SECRET:
                text = f"has fewer than {_LEAST_SECRET} characters"
                yield Problem(path=(*path, "shared_secret"), text=text)
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


def store_warning(
    plan: Plan, ops: Sequence[Op], options: Sequence[OpOptions], config: ServiceConfig
) -> Iterator[str]:
    """A warning about a store that nothing will use. With a secret, other services may."""
    dag = config.dag
    if dag.external_store is None or dag.external_store_options.shared_secret is not None:
        return
    if not stored_ops(plan, ops, options, config):
        yield (
            "dag.external_store has no effect: no op with workers on other machines feeds only ops"
            " with such workers"
        )
