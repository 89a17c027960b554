"""The public names of ``paddle-serving-server``, for Penstock's classes."""

from typing import Any

from penstock_paddle import ORIGINAL_VERSION, refuse_name, refuse_originals

refuse_originals()

__version__ = ORIGINAL_VERSION

SERVE = "serve models with python -m paddle_serving_server.serve --model PATH"
"""What to use instead of the original's classes of servers and graphs."""

_MISSING = dict.fromkeys(("Server", "OpMaker", "OpSeqMaker", "OpGraphMaker"), SERVE)


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _MISSING)
