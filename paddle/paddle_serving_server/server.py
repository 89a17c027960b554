"""Has none of the original's server classes: importing one raises an error that says why."""

from typing import Any

from paddle_serving_server import SERVE
from penstock_paddle import refuse_name

_MISSING = dict.fromkeys(("MultiLangServer", "MultiLangServerServiceServicer", "Server"), SERVE)


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _MISSING)
