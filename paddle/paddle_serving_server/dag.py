"""Has none of the original's makers of graphs: importing one raises an error that says why."""

from typing import Any

from paddle_serving_server import SERVE
from penstock_paddle import refuse_name

_MISSING = dict.fromkeys(("OpGraphMaker", "OpMaker", "OpSeqMaker"), SERVE)


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _MISSING)
