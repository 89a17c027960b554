"""Restarts a service when a file in its script's folder changes: for development.

Needs the package ``watchfiles``, which also stops and starts the process.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import StartupError
from penstock.observe.logs import LogOptions
from penstock.service.banner import announce

_SUFFIXES = (".py", ".yml", ".yaml", ".toml", ".json", ".html", ".onnx")
_STOP = 10  # seconds for a service to end before it is killed; a guess
_DEBOUNCE = 300  # milliseconds in which changes are merged: editors write a file in several steps


def run_and_reload(file: Path, arguments: Sequence[str], log: LogOptions) -> None:
    """Run ``penstock`` with these arguments until Ctrl-C, and restart it after each change in the
    folder.

    Raises:
        StartupError: ``watchfiles`` is not installed, or there is no such file.
    """
    try:
        import watchfiles
        from watchfiles import Change, DefaultFilter, run_process
    except ImportError as error:
        raise StartupError(
            "--reload needs the package watchfiles: pip install 'penstock-serving[reload]'"
        ) from error
    if not file.is_file():
        raise StartupError(f"{file} does not exist")
    folder = file.resolve().parent
    # Its warnings, such as the end of a broken script, repeat what has been reported.
    logging.getLogger(watchfiles.__name__).addHandler(logging.NullHandler())
    logging.getLogger(watchfiles.__name__).propagate = False

    class Sources(DefaultFilter):
        def __call__(self, change: Change, path: str) -> bool:
            return path.endswith(_SUFFIXES) and super().__call__(change, path)

    def changed(changes: set[tuple[Change, str]]) -> None:
        names = sorted({os.path.relpath(path, folder) for _, path in changes})
        announce([f"changed: {', '.join(names)}; starting again"], log)

    run_process(
        folder,
        target=shlex.join([sys.executable, "-m", "penstock", *arguments]),
        target_type="command",
        callback=changed,
        watch_filter=Sources(),
        debounce=_DEBOUNCE,
        sigint_timeout=_STOP,
    )
