"""Asks the house price service over HTTP; needs nothing but Python.

python http_client.py [http://127.0.0.1:18082]
"""

import json
import sys
import urllib.request

HOUSE = (
    "0.0137, -0.1136, 0.2553, -0.0692, 0.0582, -0.0727, -0.1583, -0.0584, "
    "0.6283, 0.4919, 0.1856, 0.0795, -0.0332"
)


def ask(server: str, x: str) -> dict:
    request = urllib.request.Request(
        f"{server}/uci/prediction", data=json.dumps({"key": ["x"], "value": [x]}).encode()
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


if __name__ == "__main__":
    server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:18082"
    print(ask(server, HOUSE))
    print(ask(server, f"{HOUSE};{HOUSE}"))
