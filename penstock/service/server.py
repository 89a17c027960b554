"""PipelineServer, WebService and Service: how a user's script configures and runs its graph.

Names are the original's. Source: ``docs/compatibility.md`` (servers).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from penstock.errors import ConfigError, GraphError, StartupError
from penstock.ops.ends import RequestOp, ResponseOp
from penstock.ops.op import Op
from penstock.service import flags, unserved

# Modules that read configurations and serve need pydantic, ruamel.yaml and uvloop; the methods that
# use them import them, so that a script that defines ops can be imported without.
if TYPE_CHECKING:
    from penstock.batching.queue_policy import QueuePolicy
    from penstock.config.load import Loaded
    from penstock.instrument import Instrument
    from penstock.repository.served import Description, Served
    from penstock.service.blueprint import Blueprint, MakeApplication
    from penstock.tensor import Signature

DEFAULT_NAME = "default_service"
DEFAULT_PORTS = {"http_port": 8080}
"""Default port of the short form."""
_PORTS = ("http_port", "rpc_port")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _briefly(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Shorten the traceback of StartupErrors: the message has the reason, so a script shows only
    its own line. The original exception remains the error's ``__context__``.
    """

    @wraps(method)
    def brief(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except StartupError as error:
            raise error.with_traceback(None) from None

    return brief


class NotAnOp(GraphError, ValueError):
    """``get_pipeline_response`` did not return an op."""


class _Servable:
    """One graph with its configuration, behind a gRPC and an HTTP port, or one port for both.

    Args:
        name: the service's name, and first part of its URL. Requests for another name are refused;
            without a name every name is accepted.
        instruments: listeners to events, in every engine process.
        applications: further protocols; each is called with the engine, and returns an object whose
            ``routes`` are served.
        signature: the graph's inputs and outputs, for protocols that need them; by default those of
            the models that read the request and make the answer.

    Attributes:
        defaults: dotted configuration key -> value: defaults of this class of services.
        legacy: whether services of this class were written for the original and rely on its further
            behaviour; see docs/compatibility.md.
        warnings: texts that are logged at the start, besides those about the configuration.
        notes: texts among the start lines.
        places: path of a configuration key -> where it was written, for messages; for keys that are
            neither in a file nor in a dict.
        one_port: whether gRPC shares the HTTP port if ``rpc_port`` is not set.
        version: of its graph.
        configuration: of its model, as a repository has it; None for other graphs.
        queue: how long its requests may wait, by priority, and by 0 for others; None: as the key
            ``queue`` says.
    """

    version = "1"
    configuration: Mapping[str, Any] | None = None
    queue: Mapping[int, QueuePolicy] | None = None
    defaults: ClassVar[Mapping[str, object]] = {}
    legacy: ClassVar[bool] = False
    _prepared_by: ClassVar[tuple[str, str]] = ("set_response_op", "prepare_server")
    """The methods that give a service its graph and its configuration."""

    def __init__(
        self,
        name: str | None = None,
        *,
        instruments: Sequence[Instrument] = (),
        applications: Sequence[MakeApplication] = (),
        signature: Signature | None = None,
    ) -> None:
        self.name = name
        self.signature = signature
        self.instruments = list(instruments)
        self.applications = list(applications)
        self.warnings: Sequence[str] = ()
        self.notes: Sequence[str] = ()
        self.places: Mapping[tuple[str | int, ...], str] = {}
        self.one_port = False
        self._response_op: ResponseOp | None = None
        self._loaded: Loaded | None = None
        self._config_name = "yml_dict"
        unserved.watch(_Servable, Several)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def is_prepared(self) -> bool:
        """Whether a configuration was loaded."""
        return self._loaded is not None

    @property
    def ports(self) -> dict[str, int | None]:
        """``rpc_port`` and ``http_port``, if its configuration sets them."""
        if self._loaded is None:
            return {}
        config = self._loaded.config
        return {key: getattr(config, key) for key in _PORTS if key in config.model_fields_set}

    @property
    def ops(self) -> frozenset[str]:
        """Names of the ops of its graph; empty without a graph."""
        if self._response_op is None:
            return frozenset()
        from penstock.service.graph import graph_of

        return frozenset(graph_of(self._response_op).plan.names)

    def prepare_beside(self, ports: Mapping[str, int | None]) -> None:
        """Let a service that can configure itself do so, before it runs.

        Args:
            ports: the ports of the services that run together with it.
        """

    def blueprint(self, other_ops: Container[str] = ()) -> Blueprint:
        """The checked service, before anything is opened or started.

        Args:
            other_ops: names of ops of other services, to which flags may also refer.

        Raises:
            StartupError: graph, hooks or options are wrong, or a step is missing.
        """
        if self._response_op is None or self._loaded is None:
            missing = self._prepared_by[self._response_op is not None]
            raise StartupError(f"call {missing} before running the server")
        from penstock.service.blueprint import draw_blueprint

        name = self._public_name(self._loaded.config.name)
        drawn = draw_blueprint(
            self._response_op, self._loaded, name, self.instruments, self.applications, other_ops
        )
        warnings = (*drawn.warnings, *self.warnings)
        return replace(
            drawn,
            signature=self.signature,
            legacy=self.legacy,
            warnings=warnings,
            notes=tuple(self.notes),
            one_port=self.one_port,
            version=self.version,
            configuration=self.configuration,
            queue=self.queue,
        )

    def _end_with(self, response_op: ResponseOp) -> None:
        if not isinstance(response_op, ResponseOp):
            raise GraphError(
                f"set_response_op needs a ResponseOp, got {type(response_op).__name__}: "
                f"give it ResponseOp(input_ops=[last_op])"
            )
        if self.is_prepared and constructed_by(response_op):
            raise GraphError(
                "call set_response_op before prepare_server or prepare_pipeline_config: ops of the"
                " graph have configuration keys that were given in code"
            )
        self._response_op = response_op

    def _load(self, yml_file: str | Path | None, yml_dict: Mapping[str, Any] | None) -> None:
        if (yml_file is None) == (yml_dict is None):
            raise ConfigError(["prepare_server: give either yml_file or yml_dict"])
        if flags.only_defines():
            return
        now = flags.current()
        from penstock.config.load import load

        self._loaded = load(
            yml_file=yml_file,
            yml_dict=yml_dict,
            overrides=now.overrides,
            over=now.over,
            defaults={
                **{tuple(key.split(".")): value for key, value in self.defaults.items()},
                **self._own_keys,
            },
            constructors=constructed_by(self._response_op),
            environ=os.environ,
            lenient=now.lenient,
            dict_name=self._config_name,
            places={**_places_of(self._response_op), **self.places},
            declared=_declared_by(self._response_op),
        )

    @property
    def _own_keys(self) -> Mapping[tuple[str, ...], object]:
        """Configuration keys of the constructor, which a file overrides."""
        return {}

    def _public_name(self, configured: str | None) -> str | None:
        """The name in the URL: one that overrides, or from the constructor, the file, or the
        default.
        """
        assert self._loaded is not None
        outranks = ("name",) in self._loaded.overriding
        given = None if self.name == DEFAULT_NAME else self.name
        name = configured if outranks or given is None else given
        if name is None:
            name = self.name
        if name is not None and (not name or not name.isprintable() or "/" in name):
            raise StartupError(
                f"the service's name {name!r} cannot be part of a URL: "
                f"give it printable text without '/'"
            )
        return name


class PipelineServer(_Servable):
    """Runs the graph that ends in a ResponseOp. Its arguments are those of WebService.

    Threads: ``run_server`` must be called in the main thread, and blocks it.
    """

    def set_response_op(self, response_op: ResponseOp) -> None:
        """Set the end of the graph, which defines the graph.

        Raises:
            GraphError: it is no ResponseOp.
        """
        self._end_with(response_op)

    @_briefly
    def prepare_server(
        self, yml_file: str | Path | None = None, yml_dict: Mapping[str, Any] | None = None
    ) -> None:
        """Load and check the configuration, from a file or from a dict.

        Raises:
            ConfigError: every problem at once.
        """
        self._load(yml_file, yml_dict)

    prepare_pipeline_config = prepare_server

    @_briefly
    def run_server(self) -> None:
        """Serve until SIGTERM or SIGINT. Returns after the drain.

        Raises:
            StartupError: the service cannot start.
        """
        run(self)


class WebService(_Servable):
    """Runs the graph that ``get_pipeline_response`` builds.

    Args:
        name: the service's name, and first part of its URL.
        instruments: listeners to events, in every engine process.
        applications: further protocols; each is called with the engine, and returns an object whose
            ``routes`` are served.
        signature: the graph's inputs and outputs, for protocols that need them; by default those of
            the models that read the request and make the answer.
    """

    _prepared_by = ("prepare_pipeline_config", "prepare_pipeline_config")

    def __init__(
        self,
        name: str = DEFAULT_NAME,
        *,
        instruments: Sequence[Instrument] = (),
        applications: Sequence[MakeApplication] = (),
        signature: Signature | None = None,
    ) -> None:
        super().__init__(
            name, instruments=instruments, applications=applications, signature=signature
        )

    def get_pipeline_response(self, read_op: RequestOp) -> Op:
        """Override: build the ops, starting from ``read_op``, and return the last one."""
        raise StartupError(
            f"{type(self).__name__} has no get_pipeline_response: "
            f"override it and return the last op of the graph"
        )

    def prepare_pipeline_config(
        self, yml_file: str | Path | None = None, yml_dict: Mapping[str, Any] | None = None
    ) -> None:
        """Build the graph and load the configuration.

        Raises:
            NotAnOp: ``get_pipeline_response`` returned no op; also a ValueError.
            GraphError, ConfigError: the graph or the configuration is wrong.
        """
        if flags.only_defines():
            return
        last = self.get_pipeline_response(RequestOp())
        if not isinstance(last, Op):
            raise NotAnOp(
                f"{type(self).__name__}.get_pipeline_response must return the last op, "
                f"got {type(last).__name__}"
            )
        self._end_with(ResponseOp(input_ops=[last]))
        _briefly(self._load)(yml_file, yml_dict)

    def run_service(self) -> None:
        """Serve until SIGTERM or SIGINT. Returns after the drain.

        Raises:
            StartupError: the service cannot start.
        """
        run(self)


def _declared_by(end: ResponseOp | None) -> dict[str, Mapping[str, object]]:
    """The own keys of the ops before a graph's end, which need not be a legal graph.

    Raises:
        ConfigError: an op declares keys that cannot be used.
    """
    from penstock.config.own_keys import problem_of_declaration

    declared = {op.name: op.config_keys for op in _ops_before(end) if op.config_keys}
    problems = {name: problem_of_declaration(keys) for name, keys in declared.items()}
    if any(problems.values()):
        raise ConfigError([f"op {name!r}: {text}" for name, text in problems.items() if text])
    return declared


def constructed_by(end: ResponseOp | None) -> dict[tuple[str | int, ...], object]:
    """The configuration keys that the ops before a graph's end were given in code, with their
    values.
    """
    return {
        path: value
        for op in _ops_before(end)
        if op.given is not None
        for path, value in _leaves({"op": {op.name: op.given.keys}})
    }


def _places_of(end: ResponseOp | None) -> dict[tuple[str | int, ...], str]:
    """What set the keys that ops were given in code, in messages."""
    return {
        ("op", op.name, key): f"{op.given.where}: {key}"
        for op in _ops_before(end)
        if op.given is not None
        for key in op.given.keys
    }


def _ops_before(end: ResponseOp | None) -> list[Op]:
    """The ops before a graph's end, which need not be a legal graph."""
    ops: list[Op] = [] if end is None else [end]
    for op in ops:
        ops += (each for each in op.get_input_ops() if each not in ops)
    return ops


def _leaves(
    keys: Mapping[str, Any], before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], object]]:
    """The path and the value of each nested key. Names of ops and tensors may have dots."""
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*before, key))
        else:
            yield (*before, key), value


class Several(ABC):
    """An object with several services, such as an App."""

    def __init__(self) -> None:
        unserved.watch(_Servable, Several)

    @property
    @abstractmethod
    def services(self) -> list[WebService]:
        """One for each graph."""

    @property
    def base(self) -> WebService | None:
        """What has the configuration, applications and instruments of a service whose graphs come
        and go, and which may have none; its own graph is not served. None: it has those graphs
        with which it starts.
        """
        return None


@_briefly
def run(
    *services: PipelineServer | WebService | Several,
    versions: Callable[[dict[str, Any]], PipelineServer | WebService | Several] | None = None,
    states: Sequence[Served] = (),
) -> None:
    """Serve all of these behind one door until SIGTERM or SIGINT. Returns after the drain.

    Requests select a service by name. Keys of the door and the engine (ports, limits,
    ``worker_num``) must agree; ``op`` and ``dag`` belong to each service.

    Args:
        services: at least one, each with a configuration.
        versions: makes a further version of one of the services, from the plain data with which an
            application calls ``engine.versions.swap``: a service of the same name, or an App with a
            route of that name. It is called in each process that opens the version. The
            applications, instruments and routes stay those of ``services``. None: their versions do
            not change.
        states: of names whose versions at the start are others than those of ``services``.

    Raises:
        StartupError: the services cannot start, or two have the same name.
    """
    unserved.used()
    if flags.only_defines():
        return
    from penstock.service.blueprint import deploy
    from penstock.service.run import run_deployment

    graphs, ports = prepared(services)
    ops = [each.ops for each in graphs]

    def make(description: Description) -> Blueprint:
        assert versions is not None
        try:
            service: Any = versions(dict(description))
        except Exception as error:
            text = f"version {description['version']} cannot be made of its description: {error!r}"
            raise StartupError(text) from error
        if isinstance(service, Several):
            named = [each for each in service.services if each.name == description["name"]]
            if not named:
                raise StartupError(f"{service!r} has no route {description['name']!r}")
            service = named[0]
            service.instruments, service.applications = [], []
        if not isinstance(service, PipelineServer | WebService):
            raise StartupError(f"{versions!r} returned no service, but {service!r}")
        service.prepare_beside(ports)
        return service.blueprint()

    blueprints = [each.blueprint(frozenset().union(*ops)) for each in graphs]
    bases = (each.base for each in services if isinstance(each, Several))
    base = next((each for each in bases if each is not None), None)
    if base is not None:
        base.prepare_beside(ports)
    drawn = None if base is None else base.blueprint()
    deployment = deploy(blueprints, None if versions is None else make, base=drawn)
    deployment = deployment.with_states(states) if states else deployment
    if not deployment.has_op_versions:
        run_deployment(deployment)
        return
    from penstock.service.op_models import told_to_processes, with_op_models

    deployment = with_op_models(deployment)
    with told_to_processes(deployment):
        run_deployment(deployment)


def prepared(
    services: Sequence[PipelineServer | WebService | Several],
) -> tuple[list[PipelineServer | WebService], dict[str, int | None]]:
    """The graphs of services that run together, each with a configuration; and their ports, which
    those that set none have from the others.
    """
    graphs: list[PipelineServer | WebService] = []
    for service in services:
        graphs += service.services if isinstance(service, Several) else [service]
    ports = {key: port for each in graphs for key, port in each.ports.items()}
    for each in graphs:
        each.prepare_beside(ports)
    return graphs, ports


class Service(WebService):
    """The short form, which needs no configuration: a named graph, given by its last op.

    Args:
        name: name of the service, and first part of the URL.
        last: the op whose output dict is the reply. Ops without inputs get the request.
        instruments: as for WebService.
        applications: as for WebService.
        signature: as for WebService.
        config: top-level configuration keys, such as ``http_port=8000``; those of a configuration
            file override them.

    Raises:
        GraphError: ``last`` is no op.
    """

    def __init__(
        self,
        name: str,
        last: Op,
        *,
        instruments: Sequence[Instrument] = (),
        applications: Sequence[MakeApplication] = (),
        signature: Signature | None = None,
        **config: Any,
    ) -> None:
        super().__init__(
            name, instruments=instruments, applications=applications, signature=signature
        )
        if not isinstance(last, Op):
            raise GraphError(
                f"Service {name!r} needs the last op of its graph, got {last!r}: "
                f"give it a Model or a function under @op(...)"
            )
        self._last = last
        self._config = config

    @property
    def _written_in(self) -> str:
        """The place of its configuration in messages."""
        return f"Service({self.name!r})"

    @property
    def _own_keys(self) -> Mapping[tuple[str, ...], object]:
        return dict(_leaves(self._config))

    @property
    def config(self) -> dict[str, Any]:
        """Its configuration if it runs alone."""
        return {**DEFAULT_PORTS, **self._config}

    @property
    def ports(self) -> dict[str, int | None]:
        """See PipelineServer."""
        if self.is_prepared:
            return super().ports
        return {key: self._config[key] for key in _PORTS if key in self._config}

    def get_pipeline_response(self, read_op: RequestOp) -> Op:
        """The given graph; its roots now read the request."""
        frontier = [self._last]
        seen: set[int] = set()
        while frontier:
            op = frontier.pop()
            if id(op) in seen or isinstance(op, RequestOp):
                continue
            seen.add(id(op))
            if not op.get_input_ops():
                op.set_input_ops([read_op])
            frontier.extend(op.get_input_ops())
        return self._last

    def prepare_beside(self, ports: Mapping[str, int | None]) -> None:
        """Load this object's configuration, unless another one was loaded."""
        if not self.is_prepared:
            self.one_port = True
            self._config_name = self._written_in
            self.prepare_pipeline_config(yml_dict={**DEFAULT_PORTS, **ports, **self._config})

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        self.run_service()


def add_keys(service: Service, keys: Mapping[str, Any]) -> None:
    """Add configuration keys, also those that the constructor has other parameters for:
    ``instruments`` and ``applications``, which name what is imported.
    """
    service._config |= keys
