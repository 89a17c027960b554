"""Serves repositories whose models come and go, and models of its own that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.config.schema import ServiceConfig
from penstock.errors import StartupError, StoreError
from penstock.ops.op import Op
from penstock.repository.served import Description
from penstock.runtimes.runtime import preload
from penstock.service import flags, unserved
from penstock.service.blueprint import Blueprint, deploy
from penstock.service.catalog import catalog_of, repositories_of
from penstock.service.repository_models import Usual, service_of
from penstock.service.run import run_deployment
from penstock.service.server import PipelineServer, Service, WebService, prepared

_BASE = "models"
"""The graph that has what belongs to the service, which may have no other; not served."""


def run_repositories(
    config: ServiceConfig,
    usual: Usual,
    services: Sequence[PipelineServer | WebService] = (),
    warnings: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        config: names the repositories.
        usual: what their models have if their own configurations do not say.
        services: those that are served all the time.
        warnings: texts to be logged at the start.

    Raises:
        StartupError: the service cannot start.
    """
    unserved.used()
    if flags.only_defines():
        return
    repositories = repositories_of(config)
    try:
        catalog_of(repositories)  # an engine opens it again
    except StoreError as error:
        raise StartupError(str(error)) from error
    base = Service(_BASE, Op(_BASE), applications=usual.applications, **usual.config)
    base.warnings = warnings
    _, ports = prepared([base, *services])
    ops = frozenset[str]().union(*(each.ops for each in services))

    def make(description: Description) -> Blueprint:
        service = service_of(description, usual)
        service.applications = []  # the service has them
        service.prepare_beside(ports)
        return service.blueprint()

    fixed = [each.blueprint(ops) for each in services]
    deployment = deploy(fixed, make, base=base.blueprint(ops))
    preload()
    run_deployment(replace(deployment, repositories=repositories))
