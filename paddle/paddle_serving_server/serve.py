"""``python -m paddle_serving_server.serve``: Penstock's model server.

It takes the flags of ``penstock serve``, which include all flags of the original. Like the
original, it listens on all interfaces, unless ``--host`` or ``PENSTOCK_HOST`` is set, and runs
models on the CPU if there is no GPU, or other hardware of a flag. ``check``
shows which libraries are installed. ``stop`` and ``kill`` stop the servers that were started from
the working directory, or the one with ``--port``. ``--use_encryption_model`` without
``--encryption_key`` waits until a client sends the key.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from paddle_serving_server.process_info import end, recorded
from penstock.errors import StartupError
from penstock.version import VERSION
from penstock_paddle import DEFAULTS

_LIBRARIES: Final = {
    "paddlepaddle": "Paddle's models, on the CPU",
    "paddlepaddle-gpu": "Paddle's models, on the CPU and on cards",
    "onnxruntime": "ONNX models",
}
_ON: Final = ("--pad=true", "--hot_loading=true")
"""On in the original; flags that follow may switch them off."""

_SIGNALS: Final = {"stop": signal.SIGTERM, "kill": signal.SIGKILL}
"""By command. After SIGTERM a server still answers its in-flight requests."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status."""
    command = arguments[0] if arguments else ""
    if command == "check":
        return check()
    if command in _SIGNALS:
        parser = argparse.ArgumentParser(f"python -m paddle_serving_server.serve {command}")
        parser.add_argument(
            "--port", type=int, help="Port of the server to stop; without it, all servers."
        )
        given = parser.parse_args(arguments[1:])
        return end(_SIGNALS[command], given.port)
    if _waits_for_key(arguments):
        from paddle_serving_server.key_service import run

        with _recorded([*arguments, "--encryption_key", os.devnull]):
            return run(arguments)
    from penstock.cli import app

    with _recorded(arguments):
        app(["serve", *_ON, *arguments], prog_name="penstock", obj=DEFAULTS)
    return 0


def _waits_for_key(arguments: Sequence[str]) -> bool:
    from penstock.service.serve_flags import parser

    if {"-h", "--help"} & {*arguments}:
        return False
    try:
        given = parser().parse_args([*arguments])
    except StartupError:
        return False  # the server reports it
    return given.use_encryption_model and given.encryption_key is None


def _recorded(arguments: Sequence[str]) -> AbstractContextManager[None]:
    """See ``recorded``. Records nothing if the arguments are invalid: the server reports that."""
    from penstock.config.load import from_environment
    from penstock.service.serve_flags import parse

    try:
        server, keys = parse(arguments, DEFAULTS)
    except StartupError:
        return nullcontext()
    environment = {key: value for key, (_, value) in from_environment(os.environ).items()}
    config = {**server.config, **environment, **keys}
    ports = dict.fromkeys(config.get(key) for key in ("http_port", "rpc_port"))
    models = [node.path for each in server.workflows for node in each.nodes]
    return recorded(ports, str(models))


def check() -> int:
    """Print the installed libraries. Returns 1 if Paddle's models cannot be opened."""
    found: dict[str, str | None] = {"penstock": VERSION}
    found |= {name: _installed(name) for name in ("numpy", *_LIBRARIES)}
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
