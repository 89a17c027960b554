"""``python -m paddle_serving_server.serve``: Penstock's model server.

It takes the flags of ``penstock serve``, among which are all of the original's, and listens on all
interfaces as the original did, unless ``--host`` or ``PENSTOCK_HOST`` says otherwise. ``check``
shows what is installed here. ``--use_encryption_model`` without ``--encryption_key`` waits for a
client that brings the key.
"""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

_LIBRARIES: Final = {
    "paddlepaddle": "Paddle's models, on the CPU",
    "paddlepaddle-gpu": "Paddle's models, on the CPU and on cards",
    "onnxruntime": "ONNX models",
}
_ENDS: Final = {
    "stop": "SIGTERM, or Ctrl-C: it finishes the requests that it has, and exits with 0",
    "kill": "SIGKILL: its processes end with it",
}
"""Commands of the original for which the system's own do."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status."""
    command = arguments[0] if arguments else ""
    if command == "check":
        return check()
    if command in _ENDS:
        print(f"{command}: end the server with {_ENDS[command]}", file=sys.stderr)
        return 1
    os.environ.setdefault("PENSTOCK_HOST", "0.0.0.0")  # noqa: S104 (clients elsewhere rely on it)
    key_is_given = any(each.startswith("--encryption_key") for each in arguments)
    if "--use_encryption_model" in arguments and not key_is_given:
        from paddle_serving_server.key_service import run

        return run(arguments)
    from penstock.cli import app

    app(["serve", *arguments], prog_name="penstock")
    return 0


def check() -> int:
    """Show what can be served here. Returns 1 where no Paddle model could be opened."""
    found = {name: _installed(name) for name in ("penstock", "numpy", *_LIBRARIES)}
    for name, number in found.items():
        what = _LIBRARIES.get(name)
        print(f"{name:17} {number or 'not installed'}{f'   opens {what}' if what else ''}")
    if not (found["paddlepaddle"] or found["paddlepaddle-gpu"]):
        print("Paddle's models cannot be opened: install 'penstock-paddle[cpu]'")
        return 1
    print("A service's own configuration is checked by penstock check FILE.")
    return 0


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
