"""The original's executor, of which Penstock has another one: no name is left for scripts."""

from typing import Any

from penstock_paddle import refuse_name

_MISSING = dict.fromkeys(
    ("DAG", "DAGExecutor"), "PipelineServer and WebService make the graph of their ops"
)


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _MISSING)
