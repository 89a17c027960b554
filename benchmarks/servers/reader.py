"""The model of token lists, alone in a graph: JSON texts over HTTP, padded by the engine."""

from __future__ import annotations

from benchmarks.servers.options import server_options
from penstock import Model, Service

if __name__ == "__main__":
    options = server_options()
    (folder,) = options.models
    reader = Model(
        folder,
        batch=options.batch_size,
        wait=options.window_ms,
        policy=options.policy,
        pad={"enabled": True},
    )
    Service("reader", reader, http_port=options.http_port, rpc_port=options.grpc_port).run()
