"""Has none of the original's monitors, which downloaded new models for a running server."""

import sys
from typing import Any, Final

from penstock_paddle import refuse_name

_INSTEAD: Final = "download the new model with another program, and restart the server"
_MISSING = dict.fromkeys(
    ("AFSMonitor", "FTPMonitor", "GeneralMonitor", "HadoopMonitor", "Monitor"), _INSTEAD
)


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _MISSING)


if __name__ == "__main__":
    sys.exit(
        f"error: paddle_serving_server.monitor is not available in penstock-paddle: {_INSTEAD}"
    )
