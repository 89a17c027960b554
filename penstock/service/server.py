"""PipelineServer and WebService: how a user's script configures and runs its graph.

Names are the original's. Source: ``docs/compatibility.md`` (servers).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from penstock.errors import ConfigError, GraphError, StartupError
from penstock.ops.ends import RequestOp, ResponseOp
from penstock.ops.op import Op
from penstock.service import flags

# What reads configurations and serves needs pydantic, ruamel.yaml and uvloop; it is imported
# by the methods that use it, so that a script that defines ops can be imported without.
if TYPE_CHECKING:
    from penstock.config.load import Loaded
    from penstock.service.build import Blueprint

DEFAULT_NAME = "default_service"

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _briefly(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Why a service cannot start is in the message: a script that ends with it shows its own line
    and that, not ours on the way. What was raised first stays the error's ``__context__``.
    """

    @wraps(method)
    def brief(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except StartupError as error:
            raise error.with_traceback(None) from None

    return brief


class NotAnOp(GraphError, ValueError):
    """``get_pipeline_response`` returned something else than an op."""


class PipelineServer:
    """Runs one graph behind a gRPC and an HTTP port.

    Args:
        name: the service's name, first part of its URL. Requests for another name are refused;
            without a name every name is accepted.

    Threads: ``run_server`` must be called in the main thread, which it keeps.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self._response_op: ResponseOp | None = None
        self._loaded: Loaded | None = None

    def __repr__(self) -> str:
        return f"<PipelineServer {self.name!r}>"

    @property
    def is_prepared(self) -> bool:
        """Whether a configuration was loaded."""
        return self._loaded is not None

    def set_response_op(self, response_op: ResponseOp) -> None:
        """Set the end of the graph, and with it the graph.

        Raises:
            GraphError: it is no ResponseOp.
        """
        if not isinstance(response_op, ResponseOp):
            raise GraphError(
                f"set_response_op needs a ResponseOp, got {type(response_op).__name__}: "
                f"give it ResponseOp(input_ops=[last_op])"
            )
        self._response_op = response_op

    @_briefly
    def prepare_server(
        self, yml_file: str | Path | None = None, yml_dict: Mapping[str, Any] | None = None
    ) -> None:
        """Load and check the configuration, from a file or from a dict.

        Raises:
            ConfigError: every problem at once.
        """
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
            environ=os.environ,
            lenient=now.lenient,
        )

    prepare_pipeline_config = prepare_server

    def blueprint(self) -> Blueprint:
        """The checked service, before anything is opened or started.

        Raises:
            StartupError: graph, hooks or options are wrong, or a step was left out.
        """
        if self._response_op is None:
            raise StartupError("call set_response_op before running the server")
        if self._loaded is None:
            raise StartupError("call prepare_server before running the server")
        from penstock.service.build import draw_blueprint

        return draw_blueprint(self._response_op, self._loaded)

    @_briefly
    def run_server(self) -> None:
        """Serve until SIGTERM or SIGINT. Returns after the drain.

        Raises:
            StartupError: the service cannot start.
        """
        if flags.only_defines():
            return
        blueprint = self.blueprint()
        from penstock.service.run import run_service

        run_service(self._public_name(blueprint.config.name), blueprint)

    def _public_name(self, configured: str | None) -> str | None:
        """The name in the URL: a flag, the environment, the constructor, the file, the default."""
        outranks = "name" in flags.current().overrides or bool(os.environ.get("PENSTOCK_NAME"))
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


class WebService:
    """A service whose graph is made by ``get_pipeline_response``.

    Args:
        name: the service's name, first part of its URL.
    """

    def __init__(self, name: str = DEFAULT_NAME) -> None:
        self.name = name
        self._server = PipelineServer(name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def is_prepared(self) -> bool:
        """Whether graph and configuration were loaded."""
        return self._server.is_prepared

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
            GraphError, ConfigError: what is wrong with them.
        """
        if flags.only_defines():
            return
        last = self.get_pipeline_response(RequestOp())
        if not isinstance(last, Op):
            raise NotAnOp(
                f"{type(self).__name__}.get_pipeline_response must return the last op, "
                f"got {type(last).__name__}"
            )
        self._server.set_response_op(ResponseOp(input_ops=[last]))
        self._server.prepare_server(yml_file=yml_file, yml_dict=yml_dict)

    def blueprint(self) -> Blueprint:
        """The checked service, before anything is opened or started."""
        return self._server.blueprint()

    def run_service(self) -> None:
        """Serve until SIGTERM or SIGINT. Returns after the drain.

        Raises:
            StartupError: the service cannot start.
        """
        self._server.run_server()
