"""The service that external programs call.

It echoes. The answer to ``do=seen`` has the count of each echoed value of ``x`` that begins with
``count-``, which shows the requests that a proxy in front forwarded.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections import Counter
from typing import Any

from penstock import Op, WebService
from penstock.door.listeners import bind
from penstock.service import lifecycle
from penstock.service.door import open_door

CONFIG = {"http_port": 0, "rpc_port": 0, "op": {"echo": {"executor": "inline"}}}

seen: Counter[str] = Counter()


class Echo(Op):
    """Returns its input."""

    def preprocess(self, input_dicts, data_id, log_id):
        (feed,) = input_dicts.values()
        return feed, False, None, ""

    def process(self, feed_batch, typical_logid):
        (feed,) = feed_batch
        if feed.get("do") == "seen":
            return {"seen": json.dumps(seen)}
        if str(feed.get("x", "")).startswith("count-"):
            seen[str(feed["x"])] += 1
        return feed


class Peers(WebService):
    """request -> echo -> response."""

    def get_pipeline_response(self, read_op):
        return Echo(name="echo", input_ops=[read_op])


listening: list[asyncio.Task[None]] = []


def open_door_with_tls(*arguments: Any) -> Any:
    """The service's door, with a third listener: the configuration has no keys for TLS yet."""
    door = open_door(*arguments)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(os.environ["PEERS_CERTIFICATE"], os.environ["PEERS_KEY"])
    listener = bind("127.0.0.1", int(os.environ["PEERS_TLS_PORT"]), "PEERS_TLS_PORT")
    listening.append(asyncio.get_running_loop().create_task(door.listen(listener, tls)))
    return door


if __name__ == "__main__":
    lifecycle.open_door = open_door_with_tls
    service = Peers(name="echo")
    service.prepare_pipeline_config(yml_dict=CONFIG)
    service.run_service()
