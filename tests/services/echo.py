"""An echo service, for clients and attackers that need no more.

``large=N`` is answered with N KiB, ``load`` with its length, and ``do=seen`` with the count of each
echoed value of ``x`` that begins with ``count-``, which shows the requests that a proxy in front
forwarded.

Environment: ``ECHO_CONFIG`` is the configuration as JSON. With ``ECHO_TLS``, JSON of a port, a
certificate and its key, the door has a third listener.
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

seen: Counter[str] = Counter()


class Echo(Op):
    """Returns its input."""

    def preprocess(self, input_dicts, data_id, log_id):
        (feed,) = input_dicts.values()
        return feed, False, None, ""

    def process(self, feed_batch, typical_logid):
        (feed,) = feed_batch
        if "load" in feed:
            return {"length": str(len(feed["load"]))}
        if "large" in feed:
            return {"x": "x" * (int(feed["large"]) << 10)}
        if feed.get("do") == "seen":
            return {"seen": json.dumps(seen)}
        if str(feed.get("x", "")).startswith("count-"):
            seen[str(feed["x"])] += 1
        return feed


class EchoService(WebService):
    """request -> echo -> response."""

    def get_pipeline_response(self, read_op):
        return Echo(name="echo", input_ops=[read_op], concurrency=2)


listening: list[asyncio.Task[None]] = []


def open_door_with_tls(*arguments: Any) -> Any:
    """The service's door, with a third listener: the configuration has TLS for all or for none."""
    door = open_door(*arguments)
    port, certificate, key = json.loads(os.environ["ECHO_TLS"])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    listener = bind("127.0.0.1", port, "ECHO_TLS")
    listening.append(asyncio.get_running_loop().create_task(door.listen(listener, tls)))
    return door


if __name__ == "__main__":
    if "ECHO_TLS" in os.environ:
        lifecycle.open_door = open_door_with_tls
    service = EchoService(name="echo")
    config = {"http_port": 0, "rpc_port": 0, "op": {}, **json.loads(os.environ["ECHO_CONFIG"])}
    service.prepare_pipeline_config(yml_dict=config)
    service.run_service()
