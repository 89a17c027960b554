"""Sends a picture over gRPC and prints the lines found.

python grpc_client.py PICTURE [--endpoint 127.0.0.1:18090]
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from pathlib import Path

from penstock import PipelineClient

ENDPOINT = "127.0.0.1:18090"


def ask(
    picture: bytes, endpoint: str = ENDPOINT, timeout: float = 60.0
) -> tuple[int, str, dict[str, str]]:
    """One call.

    Returns:
        ``err_no`` (0 when all is well), ``err_msg``, and the reply's values by key.
    """
    image = base64.b64encode(picture).decode()
    with PipelineClient() as client:
        client.connect([endpoint])
        reply = client.predict(feed_dict={"image": image}, timeout=timeout)
    return reply.err_no, reply.err_msg, dict(zip(reply.key, reply.value, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="Reads a picture over gRPC.")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--endpoint", default=ENDPOINT)
    arguments = parser.parse_args()

    try:
        picture = arguments.picture.read_bytes()
    except OSError as error:
        print(f"{arguments.picture}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    err_no, err_msg, values = ask(picture, arguments.endpoint)
    if err_no:
        sys.exit(f"error {err_no}: {err_msg}")
    for line in json.loads(values["result"]):
        corners = " ".join(f"{x:.0f},{y:.0f}" for x, y in line["box"])
        print(f"{line['confidence']:.3f}  {line['text']}  [{corners}]")


if __name__ == "__main__":
    main()
