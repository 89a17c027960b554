"""Has none of the original's internal generators: importing one raises an error."""

from typing import Any

from penstock_paddle import refuse_name

_MISSING = dict.fromkeys(
    ("AvailablePortGenerator", "NameGenerator", "PipelineProcSyncManager", "ThreadIdGenerator"),
    "it belonged to the server's inside",
)


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _MISSING)
