"""The service whose wall clock jumps: a request takes as many seconds as its ``do``."""

from __future__ import annotations

import logging
import os
import threading

from penstock import Op, WebService

EXECUTOR = os.environ["CLOCK_EXECUTOR"]
OPTIONS = {"executor": EXECUTOR, "concurrency": 16, "timeout": 2000}
CONFIG = {"http_port": 0, "rpc_port": 0, "op": {"wait": OPTIONS}}


class Wait(Op):
    """Logs a line before and after the wait."""

    def process(self, feed_batch, typical_logid):
        (feed,) = feed_batch
        log = logging.getLogger("users.own")
        log.info("begun %s", feed["n"])
        threading.Event().wait(float(feed["do"]))
        log.info("ended %s", feed["n"])
        return feed


class Clocked(WebService):
    """request -> wait -> response."""

    def get_pipeline_response(self, read_op):
        return Wait(name="wait", input_ops=[read_op])


if __name__ == "__main__":
    service = Clocked(name="wait")
    service.prepare_pipeline_config(yml_dict=CONFIG)
    service.run_service()
