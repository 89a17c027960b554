"""PipelineServer and WebService: how a user's script configures and runs its graph.

Names are the original's. Source: ``docs/compatibility.md`` (servers).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.config.load import Loaded, load
from penstock.errors import ConfigError, GraphError, StartupError
from penstock.ops.ends import RequestOp, ResponseOp
from penstock.ops.op import Op
from penstock.service import flags
from penstock.service.build import Blueprint, draw_blueprint
from penstock.service.run import run_service


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

    def prepare_server(
        self, yml_file: str | Path | None = None, yml_dict: Mapping[str, Any] | None = None
    ) -> None:
        """Load and check the configuration, from a file or from a dict.

        Raises:
            ConfigError: every problem at once.
        """
        if (yml_file is None) == (yml_dict is None):
            raise ConfigError(["give either yml_file or yml_dict"])
        now = flags.current()
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
        return draw_blueprint(self._response_op, self._loaded)

    def run_server(self) -> None:
        """Serve until SIGTERM or SIGINT. Returns after the drain.

        Raises:
            StartupError: the service cannot start.
        """
        run_service(self.name, self.blueprint())


class WebService:
    """A service whose graph is made by ``get_pipeline_response``.

    Args:
        name: the service's name, first part of its URL.
    """

    def __init__(self, name: str = "default_service") -> None:
        self.name = name
        self._server = PipelineServer(name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

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
            GraphError, ConfigError: what is wrong with them.
        """
        last = self.get_pipeline_response(RequestOp())
        if not isinstance(last, Op):
            raise ValueError(
                f"get_pipeline_response must return the last op, got {type(last).__name__}"
            )
        self._server.set_response_op(ResponseOp(input_ops=[last]))
        self._server.prepare_server(yml_file=yml_file, yml_dict=yml_dict)

    def blueprint(self) -> Blueprint:
        """The checked service, before anything is opened or started."""
        return self._server.blueprint()

    def run_service(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        self._server.run_server()
