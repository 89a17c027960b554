"""Service: the short form's way to run a graph without configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import GraphError
from penstock.ops.ends import RequestOp
from penstock.ops.op import Op
from penstock.service.server import WebService

if TYPE_CHECKING:
    from penstock.instrument import Instrument
    from penstock.service.blueprint import MakeApplication

DEFAULT_PORTS = {"http_port": 8080, "rpc_port": 8081}


class Service(WebService):
    """A graph, given by its last op, under a name.

    Args:
        name: first part of the URL.
        last: the op that makes the reply. Ops without inputs read the request.
        instruments, applications: as WebService has them.
        config: top-level configuration keys, such as ``http_port=8000``.

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
        **config: Any,
    ) -> None:
        super().__init__(name, instruments=instruments, applications=applications)
        if not isinstance(last, Op):
            raise GraphError(
                f"Service {name!r} needs the last op of its graph, got {last!r}: "
                f"give it a Model or a function under @op(...)"
            )
        self._last = last
        self._config = config

    @property
    def config(self) -> dict[str, Any]:
        """Its configuration when it runs alone."""
        return {**DEFAULT_PORTS, **self._config}

    @property
    def ports(self) -> dict[str, int | None]:
        """See PipelineServer."""
        if self.is_prepared:
            return super().ports
        return {key: self._config[key] for key in DEFAULT_PORTS if key in self._config}

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

    def prepare_beside(self, ports: Mapping[str, int | None]) -> None:
        """Take this object's configuration, unless it was given another one."""
        if not self.is_prepared:
            self.prepare_pipeline_config(yml_dict={**DEFAULT_PORTS, **ports, **self._config})

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        self.run_service()
