"""Has none of the original's executor classes: importing one raises an error that says why."""

from typing import Any

from penstock_paddle import refuse_name

_MISSING = dict.fromkeys(
    ("DAG", "DAGExecutor"), "PipelineServer and WebService make the graph of their ops"
)


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _MISSING)
