"""Pieces of a graph's answer over HTTP, which the service encodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import BaseModel

from penstock import App, Op, op
from penstock.testing import client

LINES = {"accept": "application/x-ndjson"}
LARGE = 10_000  # elements; their text is made in a thread


def answer(last: Op, body: dict[str, Any], **schemas: Any) -> Any:
    app = App("graphs")
    app.graph("/ask", last, **schemas)
    with client(app) as http:
        return http.post("/ask", json=body, headers=LINES)


def pieces(last: Op, body: dict[str, Any]) -> list[Any]:
    return [json.loads(each) for each in answer(last, body).text.splitlines()]


@op()
def sizes(request: Any) -> Iterator[dict[str, Any]]:
    for number, size in enumerate(request["sizes"]):
        yield {"number": number, "values": np.arange(size)}


@pytest.mark.parametrize(
    "given",
    [
        [1, 2],
        [LARGE],
        [LARGE, 1, 2, LARGE, LARGE, 3],
        [1, *[LARGE] * 20, *range(40)],
        [],
    ],
    ids=["small", "large", "mixed", "more than are on their way", "none"],
)
def test_pieces_that_a_thread_encodes_keep_their_order(given: list[int]) -> None:
    found = pieces(sizes, {"sizes": given})
    assert [each["number"] for each in found] == [*range(len(given))]
    assert [each["values"] for each in found] == [[*range(size)] for size in given]


def test_pieces_that_a_thread_encodes_after_their_op_has_ended_are_sent() -> None:
    @op()
    def few_bytes(request: Any) -> Iterator[dict[str, Any]]:
        for number in range(request["count"]):  # the op has credit for all of them
            yield {"number": number, "values": np.ones(LARGE, np.int8)}

    for count in (1, 5):
        found = pieces(few_bytes, {"count": count})
        assert [each["number"] for each in found] == [*range(count)]


class Word(BaseModel):
    word: str


@op()
def words(request: Any) -> Iterator[dict[str, Any]]:
    yield from ({"word": each} for each in request["words"])


def test_each_piece_is_checked_as_the_route_s_answer() -> None:
    good = answer(words, {"words": ["a", "b"]}, response=Word)
    assert [json.loads(each) for each in good.text.splitlines()] == [{"word": "a"}, {"word": "b"}]
    assert answer(words, {"words": [1, "b"]}, response=Word).status_code == 500
    app = App("graphs")
    app.graph("/ask", words, response=Word)
    with client(app) as http:
        found = http.pieces("/ask", json={"words": ["a", 2, "c"]})
        assert next(found) == {"word": "a"}
        with pytest.raises(httpx.RemoteProtocolError, match="wrong_type"):
            next(found)


@pytest.mark.parametrize("before", [0, 1])
def test_a_large_piece_that_cannot_be_encoded_ends_the_answer(before: int) -> None:
    @op()
    def odd(request: Any) -> Iterator[dict[str, Any]]:
        for n in range(before):
            yield {"n": n}
        yield {"values": np.arange(LARGE), "odd": object()}
        yield {"n": 9}

    app = App("graphs")
    app.graph("/ask", odd)
    with client(app) as http:
        found = http.pieces("/ask", json={})
        assert [next(found) for _ in range(before)] == [{"n": n} for n in range(before)]
        with pytest.raises(httpx.RemoteProtocolError if before else httpx.HTTPStatusError):
            next(found)


def test_examples_are_compared_with_the_list_of_pieces() -> None:
    app = App("graphs")
    examples = [({"words": ["a"]}, [{"word": "a"}])]
    app.graph("/ask", words, response=Word, examples=examples)
    with client(app) as http:
        assert http.get("/health/deep").status_code == 200
