"""The service of ``service.py`` with an audit hook, which records the events of its process.

``do=watch`` starts the record, ``do=plant`` causes events on purpose. Each event is one line of
JSON in the file ``HOSTILE_EVENTS``: its name, its arguments, and the calling modules.
"""

import json
import os
import subprocess
import sys

from tests.hostile.service import Hostile, Obedient

# Running, loading or starting anything; writing; connecting to another machine.
WATCHED = (
    "exec",
    "compile",
    "code.__new__",
    "function.__new__",
    "import",
    "marshal.",
    "pickle.",
    "ctypes.",
    "cpython.",
    "os.",
    "shutil.",
    "subprocess.",
    "pty.",
    "tempfile.",
    "open",
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "urllib.",
    "http.client.",
    "webbrowser.",
    "sqlite3.",
)
_log = os.open(os.environ["HOSTILE_EVENTS"], os.O_WRONLY | os.O_APPEND)
_watching = False
_inside = False


def calling_modules():
    """The innermost modules of the stack, without this one."""
    frame = sys._getframe(2)
    found = []
    while frame is not None and len(found) < 8:
        found.append(frame.f_globals.get("__name__", "?"))
        frame = frame.f_back
    return found


def hook(event, arguments):
    global _watching, _inside
    if event == "penstock.tests.watch":
        _watching = True
    if not _watching or _inside or not event.startswith(WATCHED):
        return
    if event == "open" and not writes(arguments):
        return
    _inside = True
    line = json.dumps([event, repr(arguments)[:200], calling_modules()])
    os.write(_log, line.encode() + b"\n")
    _inside = False


def writes(arguments):
    _, mode, flags = arguments
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


class Watched(Obedient):
    def process(self, feed_batch, typical_logid):
        match feed_batch[0].get("do"):
            case "watch":
                sys.audit("penstock.tests.watch")
            case "plant":
                eval("1 + 1")
                open(os.devnull, "w").close()
                subprocess.run(["true"], check=True)
        return super().process(feed_batch, typical_logid)


class WatchedService(Hostile):
    def get_pipeline_response(self, read_op):
        return Watched(name="obedient", input_ops=[read_op], concurrency=4)


if __name__ == "__main__":
    sys.addaudithook(hook)
    service = WatchedService(name="uci")
    service.prepare_pipeline_config(yml_dict={"http_port": 0, "rpc_port": 0})
    service.run_service()
