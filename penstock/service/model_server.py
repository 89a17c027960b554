"""``penstock serve``: saved models as services, without code.

Each model is a graph of one op with the model's name; a sequence of models is a graph of as many
ops, each with the outputs of the one before as inputs. A configuration file may have graphs in
which several models read the request, or one model's outputs, and run in parallel.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from penstock.api.general_model import GeneralModelApplication, Services
from penstock.config import model_server
from penstock.config.load import load
from penstock.config.schema import ServiceConfig
from penstock.errors import StartupError
from penstock.ops.ensemble import Ensemble
from penstock.ops.op import Op
from penstock.ops.short import Model
from penstock.repository.layout import TIME_FILES
from penstock.service import flags
from penstock.service.blueprint import MakeApplication
from penstock.service.catalog import repositories_of
from penstock.service.hot_loading import Copies, HotLoading, copies_of
from penstock.service.model_places import THREADS, places
from penstock.service.repository_models import Usual, service_of
from penstock.service.repository_server import run_repositories
from penstock.service.repository_start import Start, read_start
from penstock.service.server import Service, Several, WebService, add_keys, run

DEFAULT_PORT: Final = 9393

_NAMED: Final = ("instruments", "applications")
"""Keys that name what is imported: parameters of Service have other values by these names."""

ENSEMBLE: Final = "ensemble/outputs"
"""The op that joins the outputs of several models; no model can have this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One model of a workflow, and its options.

    Attributes:
        name: the op's.
        path: of the model.
        options: configuration keys of the op.
        reads: the name of its input model; None for the request.
        flags: path of such a key -> the flag that set it, for messages.
        batch_gives_way: see ``Op``.
    """

    name: str
    path: str
    options: dict[str, Any]
    reads: str | None = None
    flags: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    batch_gives_way: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """A graph of models.

    Attributes:
        name: its name in requests.
        nodes: in topological order. If several are read by no other, the answer has the outputs of
            all of them.
    """

    name: str
    nodes: tuple[Node, ...]

    def with_paths(self, paths: Mapping[str, str]) -> Workflow:
        """The same with models in other places, by their paths here."""
        nodes = (replace(each, path=paths.get(each.path, each.path)) for each in self.nodes)
        return replace(self, nodes=tuple(nodes))

    @property
    def ends(self) -> list[str]:
        """Names of the nodes whose outputs are the answer."""
        read = {each.reads for each in self.nodes}
        return [each.name for each in self.nodes if each.name not in read]

    def service(self, applications: Sequence[MakeApplication], config: dict[str, Any]) -> Service:
        """The graph behind this name."""
        made: dict[str | None, Op] = {}
        for each in self.nodes:
            op = made[each.name] = Model(each.path, made.get(each.reads), name=each.name)
            op.batch_gives_way = each.batch_gives_way
        options = {each.name: each.options for each in self.nodes}
        ends = [made[name] for name in self.ends]
        last = ends[0]
        if len(ends) > 1:
            last = Ensemble(ends, ENSEMBLE)
            options[ENSEMBLE] = {"executor": "inline"}
        service = Service(self.name, last, applications=applications, op=options, **config)
        service.places = {
            ("op", each.name, *path): flag
            for each in self.nodes
            for path, flag in each.flags.items()
        }
        return service


class ModelServer(Several):
    """Several models behind one door.

    Args:
        workflows: with different names; there may be none if the key ``model_repository`` has
            models.
        services: see ``GeneralModelApplication``.
        warnings: texts to be logged at the start.
        hot_loading: whether models are taken anew while they are served; see ``hot_loading.py``.
        config: top-level configuration keys, such as ``http_port=8000``.

    Attributes:
        workflows, config, warnings, hot_loading: as given.
    """

    def __init__(
        self,
        workflows: Sequence[Workflow],
        services: Services | None = None,
        warnings: Sequence[str] = (),
        hot_loading: bool = False,
        **config: Any,
    ) -> None:
        self.workflows = list(workflows)
        self._general = services or {}
        self.warnings = warnings
        self.hot_loading = hot_loading
        self.config = config
        self._copies: Copies | None = None

    @property
    def services(self) -> list[WebService]:
        """One for each workflow, and for each model of the repositories.

        Raises:
            StartupError: two of them have the same name, or a repository cannot be served.
        """
        return self._services(_start(_keys(self.config)))

    def _services(self, start: Start) -> list[WebService]:
        described = [each for versions in start.descriptions.values() for each in versions]
        names = [*(each.name for each in self.workflows), *start.descriptions]
        for name in names:
            if names.count(name) > 1:
                raise StartupError(f"two models are called {name!r}: write --model NAME=PATH")
        general = self._application
        copies = self._copies
        paths = {} if copies is None else copies.paths
        workflows = [each.with_paths(paths) for each in self.workflows]
        priority = {} if start.priority is None else {"priority": start.priority}
        config = {**priority, **self._usual}
        served = [each.service([general], config) for each in workflows]
        usual = Usual(config=config, applications=[general])
        served += [service_of(each, usual) for each in described]
        if served:
            served[0].warnings = [*self.warnings, *start.warnings]
            # What they name is imported and made once, for all.
            add_keys(served[0], {key: self.config[key] for key in _NAMED if key in self.config})
        if copies is not None and paths:
            models = {each.name: [x.path for x in each.nodes] for each in self.workflows}
            served[0].instruments.append(HotLoading(copies, models))
            served[0].notes = [
                f"{path}  is opened from a copy, and taken anew when its"
                f" {' or '.join(TIME_FILES)} is touched"
                for path in paths
            ]
        return [*served]

    @property
    def _usual(self) -> dict[str, Any]:
        """The configuration keys of every service."""
        return {key: value for key, value in self.config.items() if key not in _NAMED}

    @cached_property
    def _application(self) -> MakeApplication:
        """The protocol of the original's model server; one object for all, since an application of
        several services is served once.
        """
        ensembles = frozenset(each.name for each in self.workflows if len(each.ends) > 1)
        return partial(GeneralModelApplication, ensembles=ensembles, services=self._general)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            StartupError: the service cannot start.
        """
        keys = _keys(self.config)
        if keys.model_repository and keys.model_control_mode != "none":
            usual = Usual(changing=True, config=self._usual, applications=[self._application])
            run_repositories(keys, usual, self._services(Start()), self.warnings)
            return
        if not self.hot_loading:
            run(self)
            return
        with copies_of(node.path for each in self.workflows for node in each.nodes) as copies:
            self._copies = copies
            try:
                run(self, versions=self._version)
            except StartupError as error:
                error.args = (copies.in_own_words(str(error)),)
                raise

    def _version(self, description: Mapping[str, Any]) -> WebService:
        """A further version of a workflow, with models in other places."""
        found = next(each for each in self.workflows if each.name == description["name"])
        assert self._copies is not None
        paths = {**self._copies.paths, **description["paths"]}
        return found.with_paths(paths).service([], self._usual)


def _keys(config: Mapping[str, Any]) -> ServiceConfig:
    """The configuration of the service.

    Raises:
        ConfigError: a key is wrong.
    """
    now = flags.current()
    return load(
        yml_dict=config,
        overrides=now.overrides,
        over=now.over,
        environ=os.environ,
        lenient=True,
        dict_name="penstock serve",
        ops_are_known=False,
    ).config


def _start(keys: ServiceConfig) -> Start:
    """What the repositories in the configuration have.

    Raises:
        StartupError: a model cannot be served.
    """
    return read_start(repositories_of(keys)) if keys.model_repository else Start()


def configured(
    file: Path, defaults: Mapping[str, object], *, hot_loading: bool = False
) -> ModelServer:
    """The server for a configuration file."""
    config = model_server.load(file)
    workflows = []
    for name, graph in config.graphs().items():
        left = dict(graph)
        nodes: list[Node] = []
        while left:
            model = next(each for each, reads in left.items() if reads not in left)
            reads = left.pop(model)
            entry = config.models[model]
            given = entry.model_extra or {}
            usual = {"concurrency": THREADS}
            options = {**(usual if "executor" in given else places(entry.path, THREADS)), **given}
            before = None if reads == model_server.REQUEST else reads
            nodes.append(Node(name=model, path=entry.path, reads=before, options=options))
        workflows.append(Workflow(name=name, nodes=tuple(nodes)))
    for path in {node.path for each in workflows for node in each.nodes}:
        check_path(f"{file}: {path}", path)
    given_keys = {"http_port": DEFAULT_PORT, **defaults, **config.server}
    return ModelServer(workflows, config.services, hot_loading=hot_loading, **given_keys)


def check_path(where: str, path: str) -> None:
    """Check that a model exists.

    Raises:
        StartupError: it does not.
    """
    if not Path(path).exists():
        raise StartupError(f"{where}: no such file or folder")
