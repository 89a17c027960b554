"""Sends a picture over HTTP and prints the lines found. Only the standard library is needed.

python http_client.py PICTURE [--url http://127.0.0.1:9999/ocr/prediction]
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

URL = "http://127.0.0.1:9999/ocr/prediction"


def ask(picture: bytes, url: str = URL, timeout: float = 60.0) -> tuple[int, str, dict[str, str]]:
    """One call.

    Returns:
        ``err_no`` (0 when all is well), ``err_msg``, and the reply's values by key.
    """
    image = base64.b64encode(picture).decode()
    body = json.dumps({"key": ["image"], "value": [image]}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        reply: dict[str, Any] = json.load(answer)
    values = dict(zip(reply.get("key") or [], reply.get("value") or [], strict=True))
    return reply["err_no"], reply["err_msg"], values


def main() -> None:
    parser = argparse.ArgumentParser(description="Reads a picture over HTTP.")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--url", default=URL)
    arguments = parser.parse_args()

    try:
        picture = arguments.picture.read_bytes()
    except OSError as error:
        print(f"{arguments.picture}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    err_no, err_msg, values = ask(picture, arguments.url)
    if err_no:
        sys.exit(f"error {err_no}: {err_msg}")
    for line in json.loads(values["result"]):
        corners = " ".join(f"{x:.0f},{y:.0f}" for x, y in line["box"])
        print(f"{line['confidence']:.3f}  {line['text']}  [{corners}]")


if __name__ == "__main__":
    main()
