"""OpenAI's routes of an App."""

from __future__ import annotations

import base64
import json
import math
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import httpx
import numpy as np
import pytest
from pydantic import BaseModel

from penstock import App, Array, Caller, Done, Header, HttpError, Middleware, Response
from penstock.api import stream_call
from penstock.api.middleware import Request
from penstock.errors import ConfigError, GraphError, HookError
from penstock.openai import (
    ChatMessage,
    ChatReply,
    ChatRequest,
    CompletionReply,
    CompletionRequest,
    EmbeddingsReply,
    EmbeddingsRequest,
    Usage,
)
from penstock.protocols import openai
from penstock.security.keys import line_of, new_key
from penstock.testing import client

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello to you"}]

Words = Iterator[str | ChatReply]


def words_of(messages: list[ChatMessage], max_tokens: int = 9) -> Words:
    """Say the words of the last message."""
    words = messages[-1].text.split()
    for word in words[:max_tokens]:
        if word == "teapot":
            raise HttpError(418, "a teapot")
        if word == "fail":
            raise ValueError("a secret")
        yield f"{word} "
    if len(words) > max_tokens:
        yield ChatReply(finish_reason="length")
    yield ChatReply(usage=Usage(prompt_tokens=1, completion_tokens=len(words)))


async def letters(request: ChatRequest) -> AsyncIterator[dict[str, Any]]:
    for each in request.messages[-1].text:
        yield {"content": each, "role": "assistant"}


class Polite:
    def load(self) -> None:
        self.greeting = "Dear"

    def predict(
        self,
        messages: list[ChatMessage],
        stop: list[str] | None = None,
        name: Annotated[str, Header(alias="x-name")] = "sir",
    ) -> str:
        return f"{self.greeting} {name}: {stop}"


def upper(prompt: str) -> CompletionReply:
    return CompletionReply(text=prompt.upper(), finish_reason="length")


def echo(request: CompletionRequest) -> Iterator[str]:
    yield request.prompt
    yield getattr(request, "extra", "")


def repeat(messages: list[ChatMessage]) -> Iterator[str]:
    yield from messages[-1].text


def lengths(input: list[str], dimensions: int = 2) -> list[list[float]]:
    if input[0] == "wrong":
        return [[1.0]]
    return [[len(each) / 3, *[0.5] * (dimensions - 1)] for each in input]


Vectors = Annotated[np.ndarray, Array("float32", (None, None))]


def arrays(request: EmbeddingsRequest) -> Vectors:
    return np.array([[len(each), 0.1] for each in request.input], "float32")


def by_column(input: list[str]) -> Any:
    if input[0] in ("nan", "inf"):
        return np.array([[1, float(input[0])]], "float32")
    return np.array([[len(each) for each in input], [0.1] * len(input)], "float32").T


def batched(input: list[list[str]]) -> list[EmbeddingsReply]:
    usage = Usage(prompt_tokens=7)
    return [EmbeddingsReply(vectors=[[len(input)]] * len(each), usage=usage) for each in input]


def nearest(query: str, documents: list[str]) -> list[float]:
    if query == "wrong":
        return [1.0]
    if query == "nan":
        return [math.nan] * len(documents)
    return [-abs(len(query) - len(each)) for each in documents]


def assistant(**config: Any) -> App:
    app = App("assistant", **config)
    app.chat("words", workers=4)(words_of)
    app.chat("letters")(letters)
    app.chat("org/polite:1")(Polite)
    app.completion("words")(upper)
    app.completion("echo")(echo)
    app.embeddings("lengths")(lengths)
    app.embeddings("arrays")(arrays)
    app.embeddings("by_column")(by_column)
    app.embeddings("batched", batch=4)(batched)
    app.rerank("nearest")(nearest)
    return app


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with client(assistant()) as found:
        yield found


def ask(http: httpx.Client, path: str = CHAT, **body: Any) -> httpx.Response:
    if path == CHAT:
        body = {"model": "words", "messages": HELLO, **body}
    return http.post(path, json=body)


def said(http: httpx.Client, text: str, **body: Any) -> httpx.Response:
    return ask(http, messages=[{"role": "user", "content": text}], **body)


def message(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def chunks(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream"
    assert "\r" not in answer.text
    *events, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(each.removeprefix("data: ")) for each in events]


def error(answer: httpx.Response, status: int) -> Any:
    assert answer.status_code == status, answer.text
    found = answer.json()["error"]
    assert found.keys() == {"message", "type", "param", "code"}
    return found


def test_a_function_that_yields_is_answered_at_once_unless_chunks_are_asked_for(
    http: httpx.Client,
) -> None:
    answer = ask(http)
    assert message(answer) == "Hello to you "
    found = answer.json()
    assert found["model"] == "words"
    assert found["usage"] == {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    assert found["choices"][0]["finish_reason"] == "stop"


def test_chunks_come_as_events(http: httpx.Client) -> None:
    options = {"include_usage": True}
    answer = ask(http, stream=True, stream_options=options, max_completion_tokens=2)
    found = chunks(answer)
    assert [each["choices"] and each["choices"][0]["delta"] for each in found] == [
        {"role": "assistant", "content": "Hello "},
        {"content": "to "},
        {},
        [],
    ]
    assert found[2]["choices"][0]["finish_reason"] == "length"
    assert found[3]["usage"]["total_tokens"] == 4
    assert answer.headers["cache-control"] == "no-store, no-transform"


def test_a_request_chooses_its_model(http: httpx.Client) -> None:
    assert message(ask(http, model="letters")) == "Hello to you"
    assert len(chunks(ask(http, model="letters", stream=True))) == len("Hello to you") + 1
    assert message(ask(http, model="org/polite:1", stop="a")) == "Dear sir: ['a']"
    assert message(ask(http, model="org/polite:1", stop=["a", "b"])) == "Dear sir: ['a', 'b']"


def test_a_function_that_returns_is_answered_in_chunks_as_well(http: httpx.Client) -> None:
    found = chunks(ask(http, model="org/polite:1", stream=True))
    assert [each["choices"][0]["delta"] for each in found] == [
        {"role": "assistant", "content": "Dear sir: None"},
        {},
    ]


def test_parameters_may_come_from_header_fields(http: httpx.Client) -> None:
    body = {"model": "org/polite:1", "messages": HELLO}
    answer = http.post(CHAT, json=body, headers={"x-name": "Ann"})
    assert message(answer) == "Dear Ann: None"


def test_unknown_members_and_nulls_are_accepted(http: httpx.Client) -> None:
    answer = ask(http, max_tokens=None, metadata={"a": 1}, store=False, tools=None)
    assert message(answer) == "Hello to you "


def test_the_text_of_a_message_may_be_in_parts(http: httpx.Client) -> None:
    parts = [
        {"type": "text", "text": "Wa"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "text", "text": "ter"},
    ]
    assert message(ask(http, messages=[{"role": "user", "content": parts}])) == "Water "


def test_completions(http: httpx.Client) -> None:
    answer = ask(http, "/v1/completions", model="words", prompt="abc")
    choice = answer.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ABC", "length")
    found = chunks(ask(http, "/v1/completions", model="echo", prompt="a", extra="b", stream=True))
    assert [each["choices"][0]["text"] for each in found] == ["a", "b", ""]


def test_a_completion_continues_one_text(http: httpx.Client) -> None:
    path = "/v1/completions"
    answer = ask(http, path, model="words", prompt=["abc"])
    assert answer.json()["choices"][0]["text"] == "ABC"
    for prompt in ([], ["a", "b"], [1, 2], [[1]], None, 5):
        assert error(ask(http, path, model="words", prompt=prompt), 400)["param"] == "prompt"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "stop", "said", "made"),
    [
        ("one two three", "tw", "one ", 6),
        ("one two three", [" t", "e"], "on", 3),
        ("one two", ["two three", "five"], "one two", 7),
        ("one", [], "one", 3),
        ("one", None, "one", 3),
    ],
)
def test_a_text_ends_before_a_stop_text_that_the_function_does_not_take(
    text: str, stop: Any, said: str, made: int, stream: bool
) -> None:
    pieces = []

    async def slowly(messages: list[ChatMessage]) -> AsyncIterator[ChatReply]:
        for each in messages[-1].text:
            pieces.append(each)
            yield ChatReply(content=each, finish_reason="length")

    def whole(messages: list[ChatMessage]) -> dict[str, Any]:
        return {"content": messages[-1].text}

    app = App("stops")
    for function in (repeat, slowly, whole):
        app.chat(function.__name__)(function)
    with client(app) as http:
        for model in ("repeat", "slowly", "whole"):
            messages = [{"role": "user", "content": text}]
            answer = ask(http, model=model, messages=messages, stop=stop, stream=stream)
            if stream:
                found = [each["choices"][0] for each in chunks(answer)]
                given = "".join(each["delta"].get("content", "") for each in found)
                reason = found[-1]["finish_reason"]
            else:
                given, reason = message(answer), answer.json()["choices"][0]["finish_reason"]
            assert given == said
            assert reason == ("length" if said == text and model == "slowly" else "stop")
    assert len(pieces) == made


class OwnRequest(BaseModel):
    messages: list[ChatMessage]


def spell_request(request: ChatRequest) -> Iterator[str]:
    yield from request.messages[-1].text


def repeat_request(request: OwnRequest) -> str:
    return request.messages[-1].text


def test_a_text_ends_before_a_stop_text_that_only_a_whole_request_has() -> None:
    app = App("requests")
    app.chat("spell")(spell_request)
    app.chat("repeat")(repeat_request)
    with client(app) as http:
        for model in ("spell", "repeat"):
            assert message(said(http, "one two", model=model, stop=["t"])) == "one "


class Together:
    """Says the letters of the last message, for all running requests at once."""

    def join(self, messages: list[ChatMessage], max_tokens: int = 9) -> list[str]:
        if messages[-1].text == "fail":
            raise ValueError("a secret")
        return [*reversed(messages[-1].text[:max_tokens])]

    def step(self, running: list[list[str]]) -> list[str | ChatReply | Done | None]:
        return [each.pop() if each else Done(ChatReply(finish_reason="length")) for each in running]


class Stopping(Together):
    def join(
        self, messages: list[ChatMessage], max_tokens: int = 9, stop: list[str] | None = None
    ) -> list[str]:
        return [*reversed(f"{messages[-1].text}{stop}")]


class StoppingWhole(Together):
    def join(self, request: ChatRequest) -> list[str]:
        return [*reversed(f"{request.messages[-1].text}{request.stop}")]


def test_a_class_with_seats() -> None:
    app = App("seats")
    app.chat("together", seats=4)(Together)
    app.chat("whole", seats=2)(StoppingWhole)
    app.chat("stopping", seats=2)(Stopping)
    with client(app) as http, ThreadPoolExecutor(8) as threads:
        texts = [f"letter{n}" for n in range(8)]
        for stream in (False, True):
            asked = [
                threads.submit(said, http, each, model="together", stream=stream) for each in texts
            ]
            answers = [each.result() for each in asked]
            if not stream:
                assert [message(each) for each in answers] == texts
                continue
            for text, answer in zip(texts, answers, strict=True):
                found = [each["choices"][0] for each in chunks(answer)]
                assert "".join(each["delta"].get("content", "") for each in found) == text
                assert found[-1]["finish_reason"] == "length"
        assert error(said(http, "fail", model="together"), 500)["code"] == "hook_failed"
        refused = error(said(http, "a", model="together", stop="b"), 400)
        assert (refused["param"], refused["code"]) == ("stop", "unsupported_value")
        for model in ("stopping", "whole"):
            assert message(said(http, "a", model=model, stop="b")) == "a['b']"


async def whole(messages: list[ChatMessage]) -> str:
    return messages[-1].text


def test_coroutines_and_batches_are_answered() -> None:
    def together(messages: list[list[ChatMessage]]) -> list[str]:
        return [each[-1].text for each in messages]

    app = App("others")
    app.chat("whole")(whole)
    app.chat("together", batch=4)(together)
    with client(app) as http:
        for model in ("whole", "together"):
            assert message(said(http, "one two", model=model, stop="t")) == "one "


def test_a_reader_is_told_that_the_first_chunk_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_call, "HEARTBEAT", 0.0)
    shown = threading.Event()

    def late(messages: list[ChatMessage]) -> Iterator[str]:
        assert shown.wait(30)
        yield "late"

    app = App("late")
    app.chat("late")(late)
    lines = []
    body = {"messages": HELLO, "stream": True}
    with client(app) as http, http.stream("POST", CHAT, json=body) as answer:
        for line in answer.iter_lines():
            lines.append(line)
            shown.set()
    assert lines[:2] == [": keep-alive", ""]
    events = [each for each in lines if each.startswith("data: ")]
    assert json.loads(events[0][6:])["choices"][0]["delta"]["content"] == "late"
    assert events[-1] == "data: [DONE]"


@pytest.mark.parametrize("stop", [[""], "", [1], 5, ["a"] * 65, ["a", "b" * 1001]])
def test_wrong_stop_texts_are_refused(http: httpx.Client, stop: Any) -> None:
    assert error(ask(http, stop=stop), 400)["param"] == "stop"


@pytest.mark.parametrize("model", ["lengths", "arrays", "by_column"])
@pytest.mark.parametrize("given", ["four", ["four", "eight"], []])
def test_embeddings(http: httpx.Client, model: str, given: Any) -> None:
    body = {"model": model, "input": given}
    if not given:
        assert error(ask(http, "/v1/embeddings", **body), 400)["param"] == "input"
        return
    answers = {
        form: ask(http, "/v1/embeddings", **body, encoding_format=form).json()
        for form in (None, "float", "base64")
    }
    assert answers[None] == answers["float"]
    floats, texts = answers["float"], answers["base64"]
    assert floats["model"] == model
    assert floats["usage"] == {"prompt_tokens": 0, "total_tokens": 0}
    count = 1 if isinstance(given, str) else len(given)
    for index in range(count):
        one, other = floats["data"][index], texts["data"][index]
        assert (one["index"], one["object"]) == (index, "embedding")
        read = np.frombuffer(base64.b64decode(other["embedding"]), "<f4")
        assert read.tolist() == np.float32(one["embedding"]).tolist()
    first = 4 / 3 if model == "lengths" else 4
    assert floats["data"][0]["embedding"][0] == pytest.approx(first)
    assert len(floats["data"]) == len(texts["data"]) == count


def test_embeddings_get_parameters_and_tell_tokens(http: httpx.Client) -> None:
    answer = ask(http, "/v1/embeddings", model="lengths", input="a", dimensions=3)
    assert len(answer.json()["data"][0]["embedding"]) == 3
    answer = ask(http, "/v1/embeddings", model="batched", input=["a", "b"])
    assert answer.json()["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert [each["embedding"] for each in answer.json()["data"]] == [[1.0], [1.0]]


@pytest.mark.parametrize("given", [[1, 2], [[1, 2], [3]], ["a", [1]]])
def test_tokens_instead_of_texts_are_refused_with_what_to_do(
    http: httpx.Client, given: Any
) -> None:
    found = error(ask(http, "/v1/embeddings", model="lengths", input=given), 400)
    assert (found["param"], found["code"]) == ("input", "invalid_type")
    assert "check_embedding_ctx_length=False" in found["message"]


def test_a_function_may_take_tokens() -> None:
    def sums(input: list[str] | list[int] | list[list[int]]) -> list[list[float]]:
        rows: list[Any] = [input] if isinstance(input[0], int) else input
        return [[float(sum(each))] for each in rows]

    app = App("tokens")
    app.embeddings("sums")(sums)
    with client(app) as http:
        for given, wanted in (([1, 2], [3.0]), ([[1], [2, 3]], [1.0, 5.0])):
            data = ask(http, "/v1/embeddings", input=given).json()["data"]
            assert [each["embedding"][0] for each in data] == wanted


def test_wrong_embeddings_are_an_error_of_the_function(http: httpx.Client) -> None:
    answer = ask(http, "/v1/embeddings", model="lengths", input=["wrong", "wrong"])
    assert error(answer, 500)["type"] == "server_error"
    for given in ("nan", "inf"):
        for form in ("float", "base64"):
            body = {"model": "by_column", "input": given, "encoding_format": form}
            assert error(ask(http, "/v1/embeddings", **body), 500)["code"] == "hook_failed"
    wrong = ask(http, "/v1/embeddings", model="lengths", input="a", encoding_format="int8")
    assert error(wrong, 400)["param"] == "encoding_format"


DOCUMENTS = ["a", {"text": "four", "id": 7}, "three"]


def test_a_ranking_has_the_best_first(http: httpx.Client) -> None:
    body = {"model": "nearest", "query": "good", "documents": DOCUMENTS}
    found = ask(http, "/v1/rerank", **body).json()
    assert found["id"].startswith("rerank-")
    assert (found["model"], found["usage"]) == ("nearest", {"total_tokens": 0})
    assert found["results"] == [
        {"index": 1, "relevance_score": 0.0, "document": {"text": "four", "id": 7}},
        {"index": 2, "relevance_score": -1.0, "document": {"text": "three"}},
        {"index": 0, "relevance_score": -3.0, "document": {"text": "a"}},
    ]
    found = ask(http, "/v1/rerank", **body, top_n=1, return_documents=False).json()
    assert found["results"] == [{"index": 1, "relevance_score": 0.0}]


def test_a_ranking_of_many_documents_is_written_in_a_thread(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranking, threads = openai.ranking, []

    def noted(*args: Any) -> bytes:
        threads.append(threading.get_ident())
        return ranking(*args)

    monkeypatch.setattr(openai, "ranking", noted)
    for count in (2, 1000):
        body = {"model": "nearest", "query": "good", "documents": ["four", "a"] * (count // 2)}
        found = ask(http, "/v1/rerank", **body).json()["results"]
        wanted = [*range(0, count, 2), *range(1, count, 2)]
        assert [each["index"] for each in found] == wanted
    loop, aside = threads
    assert loop != aside


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"top_n": 0}, 400, "top_n"),
        ({"top_n": "2"}, 400, "top_n"),
        ({"return_documents": "no"}, 400, "return_documents"),
        ({"documents": [{"id": 7}]}, 400, "documents.0"),
        ({"documents": "a"}, 400, "documents"),
        ({"documents": None}, 400, "documents"),
        ({"query": None}, 400, "query"),
        ({"query": "wrong"}, 500, None),
        ({"query": "nan"}, 500, None),
    ],
)
def test_a_wrong_ranking_is_refused(
    http: httpx.Client, body: dict[str, Any], status: int, param: str | None
) -> None:
    whole = {"model": "nearest", "query": "good", "documents": DOCUMENTS, **body}
    assert error(ask(http, "/v1/rerank", **whole), status)["param"] == param


def test_models_are_listed_once_and_one_by_one(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()["data"]
    names = [each["id"] for each in listed]
    assert names[:4] == ["words", "letters", "org/polite:1", "echo"]
    assert len(names) == len(set(names)) == 9
    for path in ("org/polite:1", "org%2Fpolite%3A1"):
        assert http.get(f"/v1/models/{path}").json() == listed[2]
    assert error(http.get("/v1/models/nope"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("model", "path"), [("nope", CHAT), ("echo", CHAT), ("letters", "/v1/completions")]
)
def test_another_model_is_not_found(http: httpx.Client, model: str, path: str) -> None:
    found = error(ask(http, path, model=model), 404)
    assert (found["code"], found["param"]) == ("model_not_found", "model")
    assert found["type"] == "invalid_request_error"
    assert repr(model) in found["message"]


def test_the_only_model_needs_no_name() -> None:
    app = App("one")
    app.chat("words")(words_of)
    with client(app) as http:
        assert message(ask(http, model=None)) == "Hello to you "
        assert message(http.post(CHAT, json={"messages": HELLO})) == "Hello to you "


def test_a_model_may_have_several_names() -> None:
    app = App("names")
    app.chat("words", "gpt-4o-mini")(words_of)
    with client(app) as http:
        for name in ("words", "gpt-4o-mini"):
            answer = ask(http, model=name)
            assert message(answer) == "Hello to you "
            assert answer.json()["model"] == name
        assert ask(http, model=None).json()["model"] == "words"
        listed = http.get("/v1/models").json()["data"]
        assert [each["id"] for each in listed] == ["words", "gpt-4o-mini"]
    with pytest.raises(GraphError, match="two functions of names are the model 'gpt-4o-mini'"):
        app.chat("other", "gpt-4o-mini")
    with pytest.raises(GraphError, match="two functions of names are the model 'twice'"):
        app.chat("twice", "twice")


def test_one_of_several_models_must_be_named(http: httpx.Client) -> None:
    found = error(ask(http, model=None), 400)
    assert (found["code"], found["param"]) == ("missing_required_parameter", "model")


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"content": "a"}]}, "messages.0.role", "missing_required_parameter"),
        ({"messages": "Hello"}, "messages", "invalid_type"),
        ({"max_tokens": "many"}, "max_tokens", "invalid_value"),
        ({"model": 5}, "model", "invalid_type"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"n": 2}, "n", "unsupported_value"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_member_is_named(
    http: httpx.Client, body: dict[str, Any], param: str, code: str, stream: bool
) -> None:
    found = error(ask(http, **{"stream": stream, **body}), 400)
    assert (found["param"], found["code"]) == (param, code)
    assert found["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_function_has_its_status_and_is_not_retried(
    http: httpx.Client, stream: bool
) -> None:
    answer = said(http, "fail", stream=stream)
    found = error(answer, 500)
    assert (found["type"], found["code"]) == ("server_error", "hook_failed")
    assert "secret" not in answer.text
    assert "this id: " in found["message"]
    assert answer.headers["x-should-retry"] == "false"
    answer = said(http, "teapot", stream=stream)
    assert error(answer, 418)["message"] == "a teapot"
    assert "x-should-retry" not in answer.headers


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", CHAT, b"{", 400, "undecodable"),
        ("GET", CHAT, b"", 405, None),
        ("GET", "/v1/what", b"", 404, "unknown_url"),
        ("POST", "/v1/responses", b"{}", 404, "unknown_url"),
        ("POST", "/v1/models", b"{}", 405, None),
    ],
)
def test_refusals_have_openais_form(
    http: httpx.Client, method: str, path: str, body: bytes, status: int, code: str | None
) -> None:
    answer = http.request(method, path, content=body)
    assert error(answer, status)["code"] == code


def test_another_media_type_is_refused(http: httpx.Client) -> None:
    answer = http.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})
    assert error(answer, 415)["type"] == "invalid_request_error"


def test_a_large_body_is_refused() -> None:
    with client(assistant(max_message_bytes=2000)) as http:
        assert error(said(http, "a" * 3000), 413)["code"] == "too_large"


def test_pictures_in_a_message_may_be_large(http: httpx.Client) -> None:
    url = f"data:image/png;base64,{'A' * (5 << 20)}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "see"}]
    answer = ask(http, messages=[{"role": "user", "content": content}])
    assert message(answer) == "see "


def test_a_large_body_is_read_and_a_long_answer_joined_in_a_thread(http: httpx.Client) -> None:
    text = "word " * 100_000
    assert message(said(http, text, model="words", max_tokens=400)) == "word " * 400


def test_pieces_that_are_kept_count_in_the_budget_of_bytes_in_flight() -> None:
    def much(messages: list[ChatMessage]) -> Iterator[str]:
        for _ in range(100):
            yield 20_000 * "a"

    app = App("much", max_inflight_bytes=1_000_000)
    app.chat("much")(much)
    with client(app) as http:
        for _ in range(2):
            assert error(ask(http, model="much"), 429)["message"].startswith("too many bytes")
            assert len(chunks(ask(http, model="much", stream=True))) == 101


def test_the_key_of_the_official_client_is_a_key_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = new_key()
    monkeypatch.setenv("KEYS", line_of("ann", key, ()))
    app = assistant(security={"keys_env": "KEYS"})

    @app.chat("who")
    def who(messages: list[ChatMessage], caller: Caller) -> str:
        return caller.name

    with client(app) as http:
        answer = ask(http)
        assert error(answer, 401)["code"] == "invalid_api_key"
        assert "www-authenticate" in answer.headers
        for path in ("/v1/models", "/v1/models/who", "/v1/what"):
            assert error(http.get(path), 401)["code"] == "invalid_api_key"
        http.headers["authorization"] = f"Bearer {key}"
        assert message(ask(http, model="who")) == "ann"
        assert http.get("/v1/models").status_code == 200


def test_beyond_its_quota_a_caller_is_told_when_to_retry() -> None:
    quotas = {"few": {"rate": 0.001, "burst": 1, "routes": [CHAT]}}
    with client(assistant(quotas=quotas)) as http:
        assert message(ask(http)) == "Hello to you "
        answer = ask(http)
        assert error(answer, 429)["code"] == "rate_limit_exceeded"
        assert "retry-after" in answer.headers
        assert "x-should-retry" not in answer.headers


def test_errors_of_middleware_have_the_form_of_the_route() -> None:
    class Door(Middleware):
        def before(self, request: Request) -> Response[Any] | None:
            if request.headers.get("x-do") == "fail":
                raise KeyError("a secret")
            raise HttpError(403, "not you")

    app = assistant()
    app.middleware(Door())
    with client(app) as http:
        assert error(ask(http), 403)["message"] == "not you"
        http.headers["x-do"] = "fail"
        assert error(ask(http), 500)["type"] == "server_error"


def test_an_error_of_middleware_about_an_error_has_the_form_of_the_route() -> None:
    class Rename(Middleware):
        def on_error(self, request: Request, error: Any) -> Response[Any] | None:
            raise HttpError(410, "gone")

    app = assistant()
    app.middleware(Rename())
    with client(app) as http:
        assert error(said(http, "fail"), 410)["message"] == "gone"


def test_declared_errors_of_the_app_have_openais_form() -> None:
    def lookup(messages: list[ChatMessage]) -> str:
        raise KeyError("no such topic")

    app = App("topics")
    app.chat("topics")(lookup)
    app.error(KeyError, status=404, code="no_topic")
    with client(app) as http:
        found = error(ask(http, model=None), 404)
    assert (found["code"], found["param"]) == ("no_topic", None)


class Greeting(str):
    __slots__ = ()


def test_a_value_of_a_lifespan_is_given_to_functions() -> None:
    app = App("lives")

    @app.lifespan
    def greeting() -> Iterator[Greeting]:
        yield Greeting("Dear")

    @app.chat("greets")
    def greets(messages: list[ChatMessage], greeting: Greeting) -> str:
        return f"{greeting} {messages[-1].role}"

    with client(app) as http:
        assert message(ask(http, model=None)) == "Dear user"


def test_routes_of_the_app_are_beside_those_of_openai() -> None:
    app = assistant()

    @app.get("/v1/what")
    def what() -> str:
        return "that"

    with client(app) as http:
        assert http.get("/v1/what").json() == "that"
        assert error(http.get("/v1/which"), 404)["code"] == "unknown_url"
        assert message(ask(http)) == "Hello to you "


def test_models_are_not_served_by_the_names_of_their_functions(http: httpx.Client) -> None:
    for name in ("words_of", "Polite"):
        for path in (f"/{name}", f"/v2/models/{name}/infer"):
            assert http.post(path, json={}).status_code == 404, path
        answer = http.post(f"/{name}/prediction", json={"key": ["messages"], "value": ["[]"]})
        assert answer.json()["err_no"] != 0


def test_the_description_has_the_routes(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    chat = document["paths"][CHAT]["post"]
    assert chat["description"] == "Models: `words`, `letters`, `org/polite:1`."
    content = chat["requestBody"]["content"]["application/json"]
    assert content["schema"] == {"$ref": "#/components/schemas/ChatRequest"}
    assert content["examples"]["1"]["value"]["model"] == "words"
    assert chat["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}
    missing = chat["responses"]["404"]["$ref"].rpartition("/")[2]
    form = document["components"]["responses"][missing]["content"]["application/json"]["schema"]
    assert form == {"$ref": "#/components/schemas/OpenAIError"}
    others = {"completions", "embeddings", "rerank", "models", "models/{model}"}
    assert {f"/v1/{each}" for each in others} <= document["paths"].keys()


def no_messages(prompt: str) -> str:
    return prompt


def wrong_answer(messages: list[ChatMessage]) -> int:
    return 1


def wrong_pieces(messages: list[ChatMessage]) -> Iterator[str | int]:
    yield 1


def yields(input: list[str]) -> Iterator[list[float]]:
    yield [1.0]


def responds(messages: list[ChatMessage]) -> Response[str]:
    return Response("a")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (no_messages, "no_messages has no parameter messages: write def chat"),
        (wrong_answer, "wrong_answer answers with int: write def chat"),
        (wrong_pieces, "wrong_pieces answers with"),
        (responds, "responds answers with"),
    ],
)
def test_a_function_that_does_not_fit_is_refused_at_the_start(function: Any, text: str) -> None:
    with pytest.raises(HookError, match=text):
        App("wrong").chat("a")(function)


@pytest.mark.parametrize(
    ("kind", "function", "text"),
    [
        ("embeddings", yields, "yields yields, which this route cannot: write def embed"),
        ("embeddings", words_of, "words_of yields"),
        ("embeddings", upper, "upper has no parameter input"),
        ("rerank", lengths, "lengths has no parameter documents"),
        ("completion", lengths, "lengths has no parameter prompt"),
    ],
)
def test_a_function_of_another_route_is_refused_at_the_start(
    kind: str, function: Any, text: str
) -> None:
    with pytest.raises(HookError, match=text):
        getattr(App("wrong"), kind)("a")(function)


class SeatedRows:
    def join(self, input: list[str]) -> list[str]:
        return input

    def step(self, running: list[list[str]]) -> list[list[list[float]]]:
        return [[[1.0] for _ in texts] for texts in running]


def test_seats_of_a_route_without_pieces_are_refused_at_the_start() -> None:
    with pytest.raises(HookError, match="SeatedRows has seats, which this route cannot: write"):
        App("wrong").embeddings("a", seats=2)(SeatedRows)


def test_wrong_names_paths_and_options_are_refused() -> None:
    app = assistant()
    with pytest.raises(GraphError, match="two functions of assistant are the model 'words'"):
        app.chat("words")
    for names in ((words_of,), (), ("",)):
        with pytest.raises(GraphError, match="a model has a name"):
            app.chat(*names)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="two routes of assistant are called letters"):
        app.chat("other")(letters)
    with pytest.raises(GraphError, match="two routes of assistant are POST /v1/completions"):
        app.post("/v1/completions")
    with pytest.raises(GraphError, match="external workers"):
        app.chat("other", executor="external")
    with pytest.raises(ConfigError, match="status is not a known option"):
        app.chat("other", status=201)
    with pytest.raises(ConfigError, match="did you mean workers"):
        app.chat("other", worker=1)
    other = App("other")
    other.post(CHAT)(no_messages)
    with pytest.raises(GraphError, match="another route of other is POST /v1/chat/completions"):
        other.chat("words")
