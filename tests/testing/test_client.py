"""The client for tests of a service."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from penstock import App, HttpError
from penstock.openai import ChatMessage
from penstock.testing import client
from penstock.testing.http_client import HttpClient

closed = threading.Event()


def make_app() -> App:
    app = App("letters")

    @app.post("/spell")
    def spell(word: str) -> Iterator[str]:
        for letter in word:
            if letter == "?":
                raise HttpError(418, "no letter")
            yield letter

    @app.post("/raw")
    def raw(size: int, times: int) -> Iterator[bytes]:
        for n in range(times):
            yield bytes([n]) * size

    @app.post("/endless")
    async def endless(n: int) -> AsyncIterator[int]:
        try:
            while True:
                yield n
                n += 1
        finally:
            closed.set()

    @app.chat("echo")
    def chat(messages: list[ChatMessage]) -> Iterator[str]:
        yield from spell(messages[-1].text)

    @app.get("/whole")
    def whole(n: int = 1) -> int:
        return n

    return app


@pytest.fixture(scope="module")
def http() -> Iterator[HttpClient]:
    with client(make_app()) as found:
        yield found


def test_a_whole_answer_is_that_of_every_httpx_client(http: httpx.Client) -> None:
    assert http.get("/whole", params={"n": 3}).json() == 3
    assert http.head("/whole").status_code == 200
    assert http.get("/nowhere").status_code == 404


def test_pieces_are_plain_values_and_bytes_are_bytes() -> None:
    with client(make_app()) as http:
        assert [*http.pieces("/spell", json={"word": "aé"})] == ["a", "é"]
        assert [*http.pieces("/spell", json={"word": ""})] == []
        found = [*http.pieces("/raw", json={"size": 1000, "times": 3})]
        assert b"".join(found) == b"".join(bytes([n]) * 1000 for n in range(3))


def test_an_error_before_the_first_piece_has_its_status_and_one_after_it_its_text() -> None:
    with client(make_app()) as http:
        with pytest.raises(httpx.HTTPStatusError) as before:
            next(http.pieces("/spell", json={"word": "?"}))
        assert before.value.response.status_code == 418
        assert before.value.response.json()["message"] == "no letter"
        pieces = http.pieces("/spell", json={"word": "a?"})
        assert next(pieces) == "a"
        with pytest.raises(httpx.RemoteProtocolError, match="no letter"):
            next(pieces)


def chat(http: HttpClient, word: str) -> Iterator[str]:
    body = {"model": "echo", "stream": True, "messages": [{"role": "user", "content": word}]}
    for chunk in http.pieces("/v1/chat/completions", json=body):
        yield chunk["choices"][0]["delta"].get("content") or ""


def test_pieces_of_openais_routes_have_no_mark_and_their_error_its_text(http: HttpClient) -> None:
    assert "".join(chat(http, "ab")) == "ab"
    pieces = chat(http, "a?")
    while not next(pieces):
        pass
    with pytest.raises(httpx.RemoteProtocolError, match="no letter"):
        assert not [*pieces]


def test_pieces_of_generate_stream_are_objects_and_its_error_has_its_text(
    http: HttpClient,
) -> None:
    path = "/v2/models/spell/generate_stream"
    assert [each["result"] for each in http.pieces(path, json={"word": "ab"})] == ["a", "b"]
    pieces = http.pieces(path, json={"word": "a?"})
    assert next(pieces)["result"] == "a"
    with pytest.raises(httpx.RemoteProtocolError, match="no letter"):
        next(pieces)


def test_an_answer_is_read_while_it_is_made_and_who_leaves_ends_it() -> None:
    closed.clear()
    with client(make_app()) as http:
        for number, piece in enumerate(http.pieces("/endless", json={"n": 0})):
            assert piece == number
            if number == 1000:
                break
        assert closed.wait(30)
        assert http.get("/whole").json() == 1


def test_an_answer_that_is_cut_off_is_an_error_in_every_format(http: httpx.Client) -> None:
    accept = {"accept": "application/x-ndjson"}
    with pytest.raises(httpx.RemoteProtocolError, match="in the middle"):
        http.post("/spell", json={"word": "a?"}, headers=accept)
