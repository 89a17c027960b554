"""The public names of ``paddle-serving-server``, for Penstock's classes."""

from typing import Any

from penstock_paddle import refuse_name, refuse_originals

refuse_originals()

_SERVE = "serve models with python -m paddle_serving_server.serve --model PATH"
_MISSING = dict.fromkeys(("Server", "OpMaker", "OpSeqMaker", "OpGraphMaker"), _SERVE)


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _MISSING)
