"""Speaks the protocol of ``penstock.executors.ray.holder``, without Ray and without workers.

Its settings name what it does: ``address`` the kind of its end at the start. An order's ``opening``
says what happens to a worker.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    file = line.makefile("rw", buffering=1)

    def tell(**what: Any) -> None:
        file.write(json.dumps(what) + "\n")

    given = json.loads(file.readline())
    match given["address"]:
        case "refuses":
            tell(failed=f"the versions do not fit, at {time.monotonic_ns()}")
            return
        case "dies":
            print("Traceback\nMemoryError: \x1b[1mno room")
            return
        case "hangs":
            file.read()
            return
        case "talks":
            file.write("no JSON\n")
            return
    wait = {"text": "it wants 4 CPU (1 of 2 are free)", "wants": {"CPU": 4}, "possible": False}
    tell(ready="192.0.2.1")
    for text in file:
        order = json.loads(text)
        if "kill" in order:
            tell(ended=order["kill"], how="it was killed")
            continue
        if "fits" in order:
            lacks = order["wants"]["CPU"] > 2
            tell(fits=order["fits"], text="it wants much, which no node has" if lacks else "")
            continue
        number = order["start"]
        match order["opening"]:
            case "no room":
                tell(waiting=number, log=True, **wait)
                tell(waiting=number, log=False, **wait)
                tell(ended=number, how="it wants 4 CPU, for 3 s")
            case "waits":
                tell(waiting=number, log=True, **wait)
            case "die":
                os._exit(3)
            case "ends":
                node = {"id": "ab", "address": "192.0.2.1", "host": "one"}
                tell(started=number, where="node ab at 192.0.2.1, pid 12", node=node)
                tell(ended=number, how="exit status 9")
            case _:
                tell(started=number, where=f"pid {os.getpid()}", node=None)


if __name__ == "__main__":
    main()
