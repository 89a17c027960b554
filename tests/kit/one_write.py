"""An HTTP/1.1 client that sends a whole request in one write, so that no time passes in between."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any


def post(port: int, path: str, document: Any, headers: Mapping[str, str]) -> tuple[int, Any]:
    """The status of the answer, and what its JSON says."""
    body = json.dumps(document).encode()
    fields = {
        "host": f"127.0.0.1:{port}",
        "connection": "close",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **headers,
    }
    head = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
        with connection.makefile("rb") as answer:
            first, _, rest = answer.read().partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(rest)
