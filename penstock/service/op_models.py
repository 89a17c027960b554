"""Versions of the models of a script's ops: ``Model("models/rec", versions="latest")``.

The folder of such a model, or its place in a store, has a folder for each version. The graph of the
op is served with one version of each of its models. Another version of a model makes the graph
anew, aside, with new workers and that version; then requests get it at once, and the graph before
finishes the requests that it has. The graph's own version keeps its text: callers that name it get
what serves.

The description of such a graph has the versions that it runs::

    {"name": "ocr", "version": "1",
     "models": {"rec": {"name": "rec", "version": "2", "path": ".../2", ...}}}

To those that load models (``repository.py``), each op's model is a name with one version.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, Final

from penstock.config.resolve import OpOptions
from penstock.config.schema import ServiceConfig
from penstock.engine.engine import Versions
from penstock.errors import ConfigError, ModelError, StartupError, StoreError, VersionsError
from penstock.repository import policy
from penstock.repository.options import MODELS, ONLY, OpModel, Repositories
from penstock.repository.pbtxt import Config, Step
from penstock.repository.served import Description, Served, Update, is_at_start
from penstock.runtimes.runtime import model_problems
from penstock.service.blueprint import Blueprint, Deployment, MakeVersion
from penstock.service.catalog import (
    Catalog,
    Entry,
    Held,
    Progress,
    Scan,
    catalog_of,
    repositories_of,
)
from penstock.service.models import version_examples
from penstock.service.role import spawned_role
from penstock.store.cache import keep

_log = logging.getLogger(__name__)

VARIABLE: Final = "_PENSTOCK_OP_MODELS"
"""Has the versions with which a service started, for processes that run its program again."""


def op_models_of(deployment: Deployment) -> list[OpModel]:
    """The models of a deployment's ops that have versions."""
    return [
        OpModel(
            name=deployment.op_name(graph, options.name),
            graph=graph.name,
            op=options.name,
            place=options.model.path,
            versions=options.versions,
        )
        for graph in deployment.graphs
        for options in graph.options
        if options.versions is not None and options.model is not None
    ]


def with_op_models(deployment: Deployment) -> Deployment:
    """A deployment whose ops run versions of their models; the same one if none has versions.

    Raises:
        ConfigError: an op's model has no version that can be served.
    """
    models = op_models_of(deployment)
    if not models:
        return deployment
    first = _first(models, deployment.config)
    make = partial(
        _made, {graph.name: graph for graph in deployment.graphs}, first, deployment.make
    )
    states = []
    for name in dict.fromkeys(each.graph for each in models):
        graph = next(each for each in reversed(deployment.graphs) if each.name == name)
        described = {
            "name": name,
            "version": graph.version,
            MODELS: {each.op: first[each.name] for each in models if each.graph == name},
        }
        present = deployment.states[name]
        states.append(present.with_version(described, default=True, again=True))
    changing = replace(
        deployment,
        make=make,
        op_models=tuple(models),
        repositories=_repositories(deployment.config),
    )
    return changing.with_states(states)


@contextmanager
def told_to_processes(deployment: Deployment) -> Iterator[None]:
    """Within the context, processes that run the program again get the versions with which this one
    starts.
    """
    first = {}
    for each in deployment.op_models:
        found = _served(each, deployment.states[each.graph])
        if found.default is not None:
            first[each.name] = found.versions[found.default]
    if not first:
        yield
        return
    os.environ[VARIABLE] = json.dumps(first, default=dict)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)


def _repositories(config: ServiceConfig) -> Repositories:
    """How versions come: by default by looking for them."""
    found = repositories_of(config)
    given = "model_control_mode" in config.model_fields_set
    return replace(found, places=(), load=("*",), mode=found.mode if given else "poll")


def _made(
    graphs: Mapping[str | None, Blueprint],
    first: Mapping[str, Description],
    others: MakeVersion | None,
    description: Description,
) -> Blueprint:
    """A graph of its description; see ``Deployment.make``."""
    if MODELS not in description:
        if others is None:
            raise StartupError("this service takes no further versions: see penstock.run")
        return others(description)
    return with_models(graphs[description["name"]], description[MODELS], only=description.get(ONLY))


def with_models(
    graph: Blueprint, models: Mapping[str, Description], *, only: str | None = None
) -> Blueprint:
    """A graph with these versions of its ops' models.

    Args:
        graph: of the service's own code.
        models: the description of each op's version, by the op's name; others are left out.
        only: the op that is to be opened; None: all.

    Raises:
        StartupError: a version is missing, or cannot be opened, as far as that is known.
        ModelError: an example of a version cannot be read.
    """
    problems: list[str] = []
    made: list[OpOptions] = []
    # The ops of the service's own code are never opened: hooks of an op that has been would find
    # what they have left in it.
    ends = graph.graph
    ops = [*map(copy.copy, ends.ops)]
    for op, options in zip(ops, graph.options, strict=True):
        other = only is not None and options.name != only
        if other or options.versions is None or options.model is None:
            made.append(options)
            continue
        description = models.get(options.name)
        if description is None:
            raise StartupError(f"no version of the model of op {options.name!r} is there yet")
        model = replace(options.model, path=description["path"])
        place = options.model.path
        problems += [f"model of op {options.name}: {each.text}" for each in model_problems(model)]
        made.append(
            replace(options, model=model, model_version=description["version"], model_place=place)
        )
        if examples := version_examples(Path(description["path"])):
            op.warmups = [*op.warmups, *examples]
            op.examples = [*op.examples, *examples]
    if problems:
        raise StartupError("\n".join(problems))
    drawn = replace(
        ends,
        ops=tuple(ops),
        request_op=copy.copy(ends.request_op),
        response_op=copy.copy(ends.response_op),
    )
    return replace(graph, graph=drawn, options=tuple(made), instruments=(), applications=())


def _first(models: Sequence[OpModel], config: ServiceConfig) -> dict[str, Description]:
    """The versions with which the service starts, by the names of the models. They stay in the
    cache as long as this process lives.

    Raises:
        ConfigError: with every problem.
    """
    known: dict[str, Description] = {}
    role = spawned_role()
    if role is not None and role.template is None:
        known = json.loads(os.environ.get(VARIABLE) or "{}")
    missing = [each for each in models if each.name not in known]
    if missing:
        known |= _read(missing, _repositories(config))
    return {each.name: known[each.name] for each in models}


def _read(models: Sequence[OpModel], options: Repositories) -> dict[str, Description]:
    """Fetch the wanted versions: folders here; stores in a process of its own, since threads of
    their libraries would prevent a fork of this one.
    """
    if not any("://" in each.place for each in models):
        return _described(models, options, _HELD)
    plain = [[each.name, each.graph, each.op, each.place, each.versions] for each in models]
    asked = {"models": plain, "cache": options.cache, "cache_limit": options.cache_limit}
    asked["public_key"] = options.public_key
    command = [sys.executable, "-P", "-c", f"from {__name__} import read_aside; read_aside()"]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as reader:  # noqa: S603 - our own
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write(json.dumps(asked) + "\n")
        reader.stdin.flush()
        line = reader.stdout.readline()
        if not line:
            raise ConfigError(["the ops' models cannot be read: see the lines above"])
        found: dict[str, Any] = json.loads(line)
        if "problems" in found:
            raise ConfigError(found["problems"])
        for each in found.values():
            path = Path(each["path"])
            keep(path if path.is_dir() else path.parent)
    return found


_HELD: Final = ExitStack()
"""Has the versions with which the service starts, which the cache may not remove."""


def read_aside() -> None:
    """The process that reads stores: gets the models as a line of JSON, and answers with their
    descriptions; ends with its standard input, so that what it fetched is in use until then.
    """
    asked = json.loads(sys.stdin.readline())
    keys = ("name", "graph", "op", "place", "versions")
    models = [OpModel(**dict(zip(keys, each, strict=True))) for each in asked.pop("models")]
    try:
        answer: Any = _described(models, Repositories(places=(), **asked), _HELD)
    except ConfigError as error:
        answer = {"problems": error.problems}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


def _described(
    models: Sequence[OpModel], options: Repositories, held: ExitStack
) -> dict[str, Description]:
    try:
        shelf = OpShelf(models, options)
    except StoreError as error:
        raise ConfigError([str(error)]) from error
    scan = shelf.scan()
    remembered: dict[str, list[Held]] = {}
    for url in scan.outages:
        remembered |= shelf.remembered(url)
    outage = next(iter(scan.outages.values()), "")
    problems = []
    found: dict[str, Description] = {}
    for each in models:
        where = f"op.{each.op}.versions"
        entry = scan.entries.get(each.name)
        wanted = [] if entry is None else entry.wanted()
        before = remembered.get(each.name) if entry is None else None
        if before:
            version = before[-1]
            text = "model %s: %s; version %s serves, as before"
            _log.warning(text, each.name, outage, version.description["version"])
            held.callback(version.release)
            found[each.name] = version.description
            continue
        if entry is None or entry.problem or not wanted:
            why = outage if entry is None else entry.problem
            which = "version" if each.versions == policy.LATEST_WORD else f"version {each.versions}"
            problems.append(f"{where}: {each.place}: {why or f'it has no {which}'}")
            continue
        try:
            version = shelf.hold(entry, wanted[-1], _no_step)
        except (ModelError, StoreError) as error:
            problems.append(f"{where}: {each.place}: version {wanted[-1]}: {error}")
            continue
        held.callback(version.release)
        found[each.name] = version.description
    if problems:
        raise ConfigError(problems)
    return found


def _no_step(step: Step) -> Description:
    raise ModelError(f"{step.model} is a step of an ensemble, which no op can run")


class OpShelf:
    """What the places of ops' models have; see ``catalog.Shelf``.

    Args:
        models: the ops' models.
        options: the cache and the key.

    Raises:
        StoreError: a place, the cache or the key cannot be used.
    """

    def __init__(self, models: Sequence[OpModel], options: Repositories) -> None:
        self._models = models
        self._catalogs: dict[str, Catalog] = {}
        for each in models:
            if each.place not in self._catalogs:
                within = replace(options, places=(each.place,))
                self._catalogs[each.place] = catalog_of(within, within=each.folder)

    @property
    def unknown(self) -> str:
        """See ``Shelf``."""
        return f"no op's model is called so, only {', '.join(each.name for each in self._models)}"

    @property
    def places(self) -> Sequence[str]:
        """See ``Shelf``."""
        return [place for each in self._catalogs.values() for place in each.places]

    def scan(self) -> Scan:
        """See ``Shelf``."""
        entries: dict[str, Entry] = {}
        outages: dict[str, str] = {}
        scans = {place: each.scan() for place, each in self._catalogs.items()}
        for each in self._models:
            scan = scans[each.place]
            outages |= scan.outages
            entry = scan.entries.get(each.folder)
            if entry is not None:
                # The op's own keys say how it runs.
                config = Config(policy=each.policy)
                entries[each.name] = replace(entry, name=each.name, config=config)
        return Scan(entries=entries, outages=outages)

    def overriding(self, name: str, parameters: Mapping[str, Any], there: Entry | None) -> Entry:
        """See ``Shelf``."""
        raise ModelError(f"{name!r} is the model of an op: its versions are in a folder")

    def hold(
        self,
        entry: Entry,
        version: str,
        of_step: Callable[[Step], Description],
        progress: Progress | None = None,
    ) -> Held:
        """See ``Shelf``."""
        model = self._model(entry.name)
        catalog = self._catalogs[model.place]
        held = catalog.hold(replace(entry, name=model.folder), version, of_step, progress)
        return _named(held, entry.name)

    def remember(self, name: str, url: str, versions: Sequence[Description]) -> None:
        """See ``Shelf``."""
        model = self._model(name)
        kept = [{**each, "name": model.folder} for each in versions]
        self._catalogs[model.place].remember(name, url, kept)

    def remembered(self, url: str) -> dict[str, list[Held]]:
        """See ``Shelf``."""
        found: dict[str, list[Held]] = {}
        for each in self._models:
            catalog = self._catalogs[each.place]
            if url not in catalog.places:
                continue
            for name, versions in catalog.remembered(url).items():
                for held in versions:
                    version = held.description["version"]
                    if name == each.name and policy.wanted(each.policy, [version]):
                        found.setdefault(name, []).append(_named(held, name))
                    else:
                        held.release()
        return found

    def _model(self, name: str) -> OpModel:
        return next(each for each in self._models if each.name == name)


def _named(held: Held, name: str) -> Held:
    return replace(held, description={**held.description, "name": name})


class OpVersions:
    """The models of ops as names with one version each; see ``engine.Versions``.

    Args:
        models: the ops' models.
        versions: of the graphs.
    """

    def __init__(self, models: Sequence[OpModel], versions: Versions) -> None:
        self._models = {each.name: each for each in models}
        self._versions = versions

    def names(self) -> list[str | None]:
        """See ``engine.Versions``."""
        return [*self._models]

    def served(self, name: str | None) -> Served | None:
        """See ``engine.Versions``."""
        model = self._models.get(name or "")
        return None if model is None else _served(model, self._versions.served(model.graph))

    async def change(self, name: str | None, update: Update, *, ended: bool = False) -> None:
        """See ``engine.Versions``."""
        model = self._models.get(name or "")
        if model is None:
            raise StartupError(f"no op has a model {name!r}")

        def of_graph(graph: Served | None) -> Served:
            assert graph is not None
            wanted = update(_served(model, graph))
            if wanted.default is None:
                raise VersionsError(f"op {model.op!r} needs a model: it cannot be unloaded")
            if wanted.labels or wanted.weights or wanted.rolling is not None:
                text = f"op {model.op!r} runs one version of its model"
                raise VersionsError(f"{text}: there are no labels and weights")
            now = _graph_description(graph)
            barred = {k: why for k, why in graph.barred.items() if _owner(k)[0] != model.op}
            barred |= {f"{model.op}/{digest}": why for digest, why in wanted.barred.items()}
            models = {**now.get(MODELS, {}), model.op: wanted.versions[wanted.default]}
            version = {"name": graph.name, "version": now["version"], MODELS: models}
            return replace(graph.with_version(version, again=True), barred=barred)

        await self._versions.change(model.graph, of_graph, ended=ended)

    async def swap(self, description: Description) -> None:
        """See ``engine.Versions``."""
        name = description.get("name")

        def update(now: Served | None) -> Served:
            return (now or Served(name=name)).only(description)

        await self.change(name, update)


def _graph_description(graph: Served) -> Description:
    assert graph.default is not None
    return graph.versions[graph.default]


def _owner(key: str) -> tuple[str, str]:
    """The op whose model has a barred content, and the content's digest."""
    op, _, digest = key.rpartition("/")
    return op, digest


def _served(model: OpModel, graph: Served | None) -> Served:
    """An op's model as a name with one version; with none if the graph does not have it yet. What
    is barred of it is in the state of the graph, under the op's name.
    """
    found = None
    barred = {}
    if graph is not None and graph.default is not None:
        found = _graph_description(graph).get(MODELS, {}).get(model.op)
        owned = [(*_owner(key), why) for key, why in graph.barred.items()]
        barred = {digest: why for op, digest, why in owned if op == model.op}
    served = Served(name=model.name, barred=barred)
    return served if found is None else served.with_version(found, default=True)


def runs(graph: Blueprint, name: str, version: str, deployment: Deployment) -> bool:
    """Whether a graph runs a version of an op's model.

    Args:
        graph: the graph.
        name: of the model.
        version: its version.
        deployment: has the model.
    """
    if graph.description is None or is_at_start(graph.description):
        return False
    model = next(each for each in deployment.op_models if each.name == name)
    described = graph.description.get(MODELS, {}).get(model.op)
    return graph.name == model.graph and described and described["version"] == version
