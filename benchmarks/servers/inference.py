"""``penstock serve`` with one model in async mode: one worker, batches of ``--batch-size`` rows;
the graph ``ragged`` pads them.
"""

from __future__ import annotations

from benchmarks.servers.options import server_options
from penstock.cli import app

if __name__ == "__main__":
    options = server_options()
    (model,) = options.models
    flags = ["serve", "--model", f"{model.name}={model}", "--runtime_thread_num", "1"]
    flags += ["--batch_infer_size", str(options.batch_size), "--host", "127.0.0.1"]
    flags += ["--port", str(options.http_port), "--grpc_port", str(options.grpc_port)]
    if options.policy is not None:
        flags += ["--policy", options.policy]
    if options.graph == "ragged":
        flags.append("--pad")
    app(flags)
