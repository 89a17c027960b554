"""Service: the short form's way to run a graph without configuration."""

from __future__ import annotations

from typing import Any

from penstock.errors import GraphError
from penstock.ops.ends import RequestOp
from penstock.ops.op import Op
from penstock.service.server import WebService

DEFAULT_HTTP_PORT = 8080
DEFAULT_RPC_PORT = 8081


class Service(WebService):
    """A graph, given by its last op, under a name.

    Args:
        name: first part of the URL.
        last: the op that makes the reply. Ops without inputs read the request.
        config: top-level configuration keys, such as ``http_port=8000``.

    Raises:
        GraphError: ``last`` is no op.
    """

    def __init__(self, name: str, last: Op, **config: Any) -> None:
        super().__init__(name)
        if not isinstance(last, Op):
            raise GraphError(
                f"Service {name!r} needs the last op of its graph, got {last!r}: "
                f"give it a Model or a function under @op(...)"
            )
        self._last = last
        self.config = {"http_port": DEFAULT_HTTP_PORT, "rpc_port": DEFAULT_RPC_PORT, **config}

    def get_pipeline_response(self, read_op: RequestOp) -> Op:
        """The graph as it was given; its roots now read the request."""
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

    def run_service(self) -> None:
        """Serve until SIGTERM or SIGINT, with this object's configuration unless another was given.

        Raises:
            StartupError: the service cannot start.
        """
        if not self.is_prepared:
            self.prepare_pipeline_config(yml_dict=self.config)
        super().run_service()

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        self.run_service()
