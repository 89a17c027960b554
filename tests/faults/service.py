"""The services of the fault tests: their ops do what the request's ``do`` names.

Environment: ``FAULTS_SERVICES`` is JSON of each service's name, graph and configuration; several
share one door and one engine. ``FAULTS_CALLS`` is a file that gets a line at the begin and at the
end of every ``process`` call, ``FAULTS_HISTORY`` one for the engine's events for instruments.

A held call waits on the named pipe ``FAULTS_PIPE``: opening that for writing succeeds at the moment
the op reads it, and closing it ends every call that waits there.

The start of an op is blocked by a file at ``FAULTS_CALLS`` and the op's name: at a named pipe it
waits in the same way; with a regular file's text it fails. ``FAULTS_SLAB_BYTES`` and
``FAULTS_ANSWER_BYTES``, if set, replace the limits of data to and from a process in shared memory,
and of data from it through the socket.
"""

import ctypes
import importlib
import json
import os
import re
import signal
import stat
import time
from pathlib import Path

import numpy as np

import penstock.executors.processes.executor
import penstock.executors.processes.worker
import penstock.service.worker_process
from penstock import Op, WebService, run
from tests.kit.record import recorder


class FaultyOp(Op):
    """Does what the request names; its answer also has the name of its service.

    Attributes:
        service: the service's name.
        called: the op's name in the engine.
    """

    service = ""
    called = ""

    def init_op(self):
        fault = os.environ.get("FAULTS_INIT")
        if fault == "raise":
            raise OSError("the disk is gone")
        if fault == "import":
            importlib.import_module("no_such_module")
        if fault == "exit":
            os._exit(7)
        self.check_obstacle(Path(f"{os.environ['FAULTS_CALLS']}.{self.name}"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.calls = os.open(os.environ["FAULTS_CALLS"], flags)

    def check_obstacle(self, obstacle):
        if obstacle.is_file():
            raise OSError(obstacle.read_text())
        if obstacle.exists():
            obstacle.read_bytes()

    def note(self, what, nonce):
        # One write for each line, so that lines of several threads do not mix.
        os.write(self.calls, f"{what} {self.called} {nonce} {time.monotonic()}\n".encode())

    def preprocess(self, input_dicts, data_id, log_id):
        whole = {name: text for feed in input_dicts.values() for name, text in feed.items()}
        if "exit_before" in whole:
            os._exit(7)
        return whole

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        if "exit_after" in fetch_data:
            os._exit(7)
        if fetch_data.get("end") == self.name:
            return fetch_data, 17, "the journey ends here"
        return fetch_data, None, ""

    def process(self, feed_batch, typical_logid):
        feed = dict(feed_batch[0])
        do, _, much = feed.pop(f"do_{self.name}", "echo").partition(":")
        self.note("begin", feed["n"])
        try:
            getattr(self, f"do_{do}")(feed, much)
        finally:
            self.note("end", feed["n"])
        return {**feed, "service": self.service}

    def do_echo(self, feed, much):
        pass

    def do_sleep(self, feed, much):
        time.sleep(float(much))

    def do_sleep_at_first(self, feed, much):
        try:
            os.mkdir(f"{os.environ['FAULTS_CALLS']}.{feed['n']}")
        except FileExistsError:
            return
        time.sleep(float(much))

    def do_hold(self, feed, much):
        with open(os.environ["FAULTS_PIPE"], "rb") as pipe:
            pipe.read()

    def do_make(self, feed, much):
        feed["load"] = np.arange(int(much) << 17)  # of eight octets each

    def do_make_many(self, feed, much):
        feed |= {f"load_{n}": np.arange(1 << 20) for n in range(int(much))}

    def do_count(self, feed, much):
        loads = [name for name in feed if name.startswith("load_")]
        feed["count"] = str(sum(len(feed.pop(name)) for name in loads))

    def do_add(self, feed, much):
        feed["sum"] = str(feed.pop("load").sum())

    def do_kill(self, feed, much):
        os.kill(os.getpid(), signal.SIGKILL)

    def do_stop(self, feed, much):
        os.kill(os.getpid(), signal.SIGSTOP)

    def do_exit(self, feed, much):
        os._exit(7)

    def do_segfault(self, feed, much):
        ctypes.string_at(0)

    def do_spin(self, feed, much):
        while True:
            pass

    def do_native(self, feed, much):
        re.match(r"(a*)*b", "a" * 40)  # holds the GIL, practically for ever

    def do_balloon(self, feed, much):
        kept = []
        while True:
            kept.append(b"x" * (4 << 20))
            time.sleep(0.01)

    def do_garbage(self, feed, much):
        for name in os.listdir("/proc/self/fd"):
            if os.path.exists(f"/proc/self/fd/{name}") and stat.S_ISSOCK(
                os.stat(int(name)).st_mode
            ):
                os.write(int(name), b"GET / HTTP/1.1\r\n\r\n")
        time.sleep(60)

    def do_raise(self, feed, much):
        raise ValueError("planted " + "x" * int(much))


class Poisonable(FaultyOp):
    """Runs batches; a poison row kills the process during the batch."""

    def preprocess(self, input_dicts, data_id, log_id):
        (feed,) = input_dicts.values()
        do, _, much = feed.get("do_work", "").partition(":")
        return {"row": np.array([[int(feed["n"]), do == "segfault", float(much or 0)]])}

    def process(self, feed_batch, typical_logid):
        rows = feed_batch[0]["row"]
        for nonce in rows[:, 0].astype(int):
            self.note("begin", nonce)
        time.sleep(rows[:, 2].max())
        if rows[:, 1].any():
            os.kill(os.getpid(), signal.SIGSEGV)
        for nonce in rows[:, 0].astype(int):
            self.note("end", nonce)
        return {"row": rows}

    def postprocess(self, input_data, fetch_data, data_id, log_id):
        return {"n": str(int(fetch_data["row"][0, 0])), "service": self.service}


GRAPHS = {
    "poison": lambda read: Poisonable(name="work", input_ops=[read]),
    "one": lambda read: FaultyOp(name="work", input_ops=[read]),
    "chain": lambda read: FaultyOp(
        name="second", input_ops=[FaultyOp(name="first", input_ops=[read])]
    ),
    "branches": lambda read: FaultyOp(
        name="join",
        input_ops=[
            FaultyOp(name="slow", input_ops=[read]),
            FaultyOp(name="fast", input_ops=[read]),
        ],
    ),
}


class Faults(WebService):
    def __init__(self, name, graph, several, **more):
        super().__init__(name, **more)
        self.graph = graph
        self.several = several

    def get_pipeline_response(self, read_op):
        last = GRAPHS[self.graph](read_op)
        ops = [last]
        while ops:
            op = ops.pop()
            if isinstance(op, FaultyOp):
                op.service = self.name
                op.called = f"{self.name}/{op.name}" if self.several else op.name
                ops += op.get_input_ops()
        return last


def set_limits():
    """Set the limits given in the environment."""
    slab = os.environ.get("FAULTS_SLAB_BYTES")
    if slab is not None:
        penstock.executors.processes.executor.SLAB_BYTES = int(slab)
    answer = os.environ.get("FAULTS_ANSWER_BYTES")
    if answer is not None:
        penstock.executors.processes.worker.ANSWER_BYTES = int(answer)
        penstock.service.worker_process.ANSWER_BYTES = int(answer)


if __name__ == "__main__":
    set_limits()
    described = json.loads(os.environ["FAULTS_SERVICES"])
    written = recorder(os.environ["FAULTS_HISTORY"])
    services = []
    for name, (graph, config) in described.items():
        services.append(Faults(name, graph, len(described) > 1, instruments=[written]))
        services[-1].prepare_pipeline_config(yml_dict=config)
    run(*services)
