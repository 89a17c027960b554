"""How the collector walks the process: set once, when a service is about to serve."""

from __future__ import annotations

import gc


def spare_the_collector() -> None:
    """Take what was made until now, which stays for ever, out of what the collector walks through.

    Requests make many objects and no cycle, so it may also run more seldom. Measured with an echo
    over HTTP: a sixth less CPU time a request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
