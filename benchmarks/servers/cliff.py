"""An op whose batches cost 1 ms, 0.2 ms a row, and from 16 rows on 8 ms more."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.servers.options import server_options
from penstock import Service, op

CLIFF = 16


def cost(rows: int) -> float:
    """Seconds of a batch."""
    return 1e-3 + 2e-4 * rows + (8e-3 if rows >= CLIFF else 0.0)


if __name__ == "__main__":
    options = server_options()

    @op(batch=options.batch_size, policy=options.policy)
    def answer(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Echo a batch after its time."""
        time.sleep(cost(len(requests)))
        return requests

    Service("cliff", answer, http_port=options.http_port, rpc_port=options.grpc_port).run()
