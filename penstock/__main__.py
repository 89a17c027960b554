"""``python -m penstock`` is the ``penstock`` command."""

import signal

# Ctrl-C, or --reload that starts again, while modules are imported: an end without a traceback.
_before = signal.getsignal(signal.SIGINT)
if _before is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from penstock.cli import main  # noqa: E402

signal.signal(signal.SIGINT, _before)

main()
