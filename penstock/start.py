"""The entry of the command ``penstock``: what must hold while its modules are imported."""

from __future__ import annotations

import os
import signal

from penstock.supervisor.signals import end_at_once


def main() -> None:
    """Run the command."""
    before = signal.getsignal(signal.SIGINT)
    # Ctrl-C, or --reload that starts again, while modules are imported: an end without a traceback.
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Process 1 of a container ignores signals without a handler: it would be killed, much later.
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end_at_once)
    from penstock.cli import main as command

    signal.signal(signal.SIGINT, before)
    command()
