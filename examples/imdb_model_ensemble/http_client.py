"""Asks the film review service over HTTP; needs nothing but Python.

python http_client.py [http://127.0.0.1:18071]
"""

import json
import sys
import urllib.request

REVIEWS = [
    "I am very sad",
    "This film was a great pleasure, brilliant and really funny",
    "The plot is not good and the ending was a horrible disappointment",
    "It was never bad, and the cast was fantastic",
    "A charming cast, a perfect script, and that wonderful music",
    "The worst waste of two hours",
    "I think it isn't terrible",
    "Awful dialogue, but the actors were lovely, delightful and so talented",
    "Hardly a success: the story seemed stupid",
    "We loved the beautiful ending",
]


def ask(server: str, words: str) -> dict:
    # The server has no name of its own, so any does.
    request = urllib.request.Request(
        f"{server}/imdb/prediction", data=json.dumps({"key": ["words"], "value": [words]}).encode()
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


if __name__ == "__main__":
    server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:18071"
    for review in REVIEWS:
        print(review, "->", ask(server, review)["value"])
