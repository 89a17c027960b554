"""OpenAI's protocol: requests, chunks, whole answers, models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput, RequestError, Undecodable, UnknownMediaType
from penstock.protocols.media import JSON
from penstock.protocols.openai import (
    CALLS,
    FINISH,
    LOGPROBS,
    TEXT,
    USAGE,
    Answer,
    ChatAnswer,
    CompletionAnswer,
    asked,
    embeddings,
    has_tokens,
    models,
    of_chat,
    of_completion,
    of_embeddings,
    of_rerank,
    parameters,
)
from penstock.request import Feed

TOKENS = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


def text(content: str, **more: Any) -> Feed:
    return {TEXT: json.dumps({"content": content}).encode(), **more}


def call(arguments: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"function": function, **more}


def chat(*, usage: bool = False) -> ChatAnswer:
    return ChatAnswer("k", 7, "tiny", usage=usage)


def events(answer: Answer, parts: list[Feed]) -> list[Any]:
    """The data of all events, each of which is one line; checks the end."""
    *found, done, rest = answer.events(parts).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert all(each.startswith(b"data: ") and b"\n" not in each for each in found)
    return [json.loads(each[6:]) for each in found]


def choices(chunks: list[Any]) -> list[tuple[Any, Any]]:
    return [(each["choices"][0]["delta"], each["choices"][0]["finish_reason"]) for each in chunks]


@pytest.mark.parametrize(
    ("body", "model", "stream", "usage"),
    [
        ({}, None, False, False),
        ({"model": None, "stream": None, "stream_options": None, "n": None}, None, False, False),
        ({"model": "a", "stream": True, "n": 1, "what": [1]}, "a", True, False),
        ({"stream": True, "stream_options": {}}, None, True, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, None, True, True),
        ({"stream": True, "stream_options": {"include_usage": False}}, None, True, False),
    ],
)
def test_a_request_names_its_model_and_the_form_of_its_answer(
    body: dict[str, Any], model: str | None, stream: bool, usage: bool
) -> None:
    found = asked(json.dumps(body).encode(), JSON)
    assert (found.model, found.stream, found.usage) == (model, stream, usage)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"[]", ["body"]),
        (b'{"model": 1}', ["body", "model"]),
        (b'{"stream": "yes"}', ["body", "stream"]),
        (b'{"stream": 1}', ["body", "stream"]),
        (b'{"stream_options": []}', ["body", "stream_options"]),
        (b'{"n": 2}', ["body", "n"]),
        (b'{"n": "1"}', ["body", "n"]),
    ],
)
def test_a_wrong_member_is_refused_by_its_name(body: bytes, place: list[str]) -> None:
    with pytest.raises(InvalidInput) as failed:
        asked(body, JSON)
    assert failed.value.details[0]["loc"] == place


@pytest.mark.parametrize(
    ("body", "kind", "error"),
    [
        (b"{", JSON, Undecodable),
        (b"", JSON, Undecodable),
        (b"{}", "text/plain", UnknownMediaType),
    ],
)
def test_what_is_no_json_is_refused(body: bytes, kind: str, error: type[RequestError]) -> None:
    with pytest.raises(error):
        asked(body, kind)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3),
)
NAMES = (
    "model", "stream", "stream_options", "n", "stop", "input", "prompt", "messages", "documents",
    "max_tokens", "max_completion_tokens", "encoding_format", "top_n", "return_documents",
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(NAMES), values))
def test_any_object_is_read_or_refused(body: dict[str, Any]) -> None:
    for check in (of_chat, of_completion, of_embeddings, of_rerank):
        try:
            asked(json.dumps(body).encode(), JSON)
            found = check(body)
        except RequestError:
            continue
        assert isinstance(found, dict)
    assert isinstance(parameters(body, None), dict)
    assert has_tokens(body) in (True, False)


def test_a_function_gets_the_members_that_it_names() -> None:
    body = {"messages": [], "temperature": None, "top_p": 0.5, "stop": "a", "top_k": 3}
    names = frozenset(("messages", "temperature", "stop"))
    assert parameters(body, names) == {"messages": [], "stop": ["a"]}
    assert parameters(body, None) == {"messages": [], "top_p": 0.5, "stop": ["a"], "top_k": 3}
    assert parameters({"input": "a"}, frozenset(("input",))) == {"input": ["a"]}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("sent", ["max_tokens", "max_completion_tokens"])
def test_the_limit_of_tokens_has_two_names(name: str, sent: str) -> None:
    assert parameters({sent: 5}, frozenset((name,))) == {name: 5}


def test_of_two_limits_each_name_has_its_own() -> None:
    body = {"max_tokens": 5, "max_completion_tokens": 6}
    assert parameters(body, None) == body


def test_chunks_have_one_id_and_time_and_only_the_last_has_a_reason() -> None:
    chunks = events(chat(), [text("Wa"), text("ter"), {FINISH: "length", TEXT: b""}])
    assert choices(chunks) == [
        ({"role": "assistant", "content": "Wa"}, None),
        ({"content": "ter"}, None),
        ({}, "length"),
    ]
    common = {"id": "chatcmpl-k", "object": "chat.completion.chunk", "created": 7, "model": "tiny"}
    for each in chunks:
        assert {name: each[name] for name in common} == common
        assert "usage" not in each
        assert each["choices"][0]["index"] == 0


def test_tokens_are_sent_in_a_chunk_without_choices_if_they_are_asked_for() -> None:
    parts = [text("a"), {USAGE: TOKENS}]
    *others, last = events(chat(usage=True), parts)
    assert (last["choices"], last["usage"]) == ([], TOKENS)
    assert last["id"] == others[0]["id"]
    assert [each["usage"] for each in others] == [None, None]
    assert len(events(chat(), parts)) == 2


def test_tokens_that_the_function_does_not_tell_are_in_no_chunk() -> None:
    assert [len(each["choices"]) for each in events(chat(usage=True), [text("a")])] == [1, 1]


def test_no_chunk_comes_before_the_first_content() -> None:
    answer = chat()
    assert answer.chunk({TEXT: b"", USAGE: TOKENS}) == b""
    assert b'"role":"assistant"' in answer.chunk(text("a"))
    assert b"role" not in answer.chunk(text("b"))


def test_an_answer_without_content_has_an_empty_one() -> None:
    assert choices(events(chat(), [])) == [
        ({"role": "assistant", "content": ""}, None),
        ({}, "stop"),
    ]
    whole = json.loads(chat().whole([]))
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": ""}


def test_pieces_become_one_message() -> None:
    parts = [text("Wa"), text("ter", **{USAGE: TOKENS}), {FINISH: "length"}]
    assert json.loads(chat().whole(parts)) == {
        "id": "chatcmpl-k",
        "object": "chat.completion",
        "created": 7,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Water"},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": TOKENS,
    }


CALL_PARTS: list[Feed] = [
    text("Let me see"),
    {CALLS: [call('{"ci', "weather", id="a")]},
    {CALLS: [call('ty": 1}')]},
    {CALLS: [call("{}", "time", id="b", type="function")]},
]


def test_parts_of_tool_calls_have_an_index() -> None:
    first, *calls, last = choices(events(chat(), CALL_PARTS))
    assert first[0] == {"role": "assistant", "content": "Let me see"}
    assert [each["tool_calls"] for each, _ in calls] == [
        [{"function": {"name": "weather", "arguments": '{"ci'}, "id": "a", "index": 0,
          "type": "function"}],
        [{"function": {"arguments": 'ty": 1}'}, "index": 0}],
        [{"function": {"name": "time", "arguments": "{}"}, "id": "b", "index": 1,
          "type": "function"}],
    ]  # fmt: skip
    assert last == ({}, "tool_calls")


def test_parts_of_tool_calls_become_whole_calls() -> None:
    choice = json.loads(chat().whole(CALL_PARTS))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see"
    assert choice["message"]["tool_calls"] == [
        {
            "id": "a",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": 1}'},
        },
        {"id": "b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
    ]


def test_parts_with_an_index_keep_it_in_any_order() -> None:
    parts: list[Feed] = [
        {CALLS: [call("", "b", index=1), call("", "a", index=0)]},
        {CALLS: [call("1", index=0), call("2", index=1)]},
    ]
    calls = json.loads(chat().whole(parts))["choices"][0]["message"]["tool_calls"]
    assert [each["function"] for each in calls] == [
        {"name": "a", "arguments": "1"},
        {"name": "b", "arguments": "2"},
    ]
    assert len({each["id"] for each in calls}) == 2


@pytest.mark.parametrize(
    "again",
    [
        {"id": "a", "type": "function"},
        {"index": 0, "id": "a", "name": "weather"},
        {"index": 0, "name": "weather", "type": "function"},
        {"name": ""},
    ],
)
def test_what_a_further_part_of_a_call_repeats_is_not_sent_again(again: dict[str, Any]) -> None:
    """Clients join the names of the parts."""
    name = again.pop("name", None)
    parts: list[Feed] = [
        {CALLS: [call("1", "weather", id="a")]},
        {CALLS: [call("2", name, **again)]},
    ]
    _, second, last = choices(events(chat(), parts))
    assert second[0] == {"tool_calls": [{"index": 0, "function": {"arguments": "2"}}]}
    assert last == ({}, "tool_calls")
    (found,) = json.loads(chat().whole(parts))["choices"][0]["message"]["tool_calls"]
    assert found == {
        "id": "a",
        "type": "function",
        "function": {"name": "weather", "arguments": "12"},
    }


def test_a_message_with_tool_calls_only_has_no_content_and_ids_of_its_own() -> None:
    choice = json.loads(chat().whole([{CALLS: [call("{}", "time")]}]))["choices"][0]
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["id"].startswith("call_")


def test_further_members_of_a_message_are_joined_as_well() -> None:
    parts: list[Feed] = [
        {TEXT: b'{"reasoning_content":"a","level":1}'},
        {TEXT: b'{"reasoning_content":"b","level":2}'},
        text("c"),
    ]
    message = json.loads(chat().whole(parts))["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "c",
        "reasoning_content": "ab",
        "level": 2,
    }


def test_log_probabilities_are_sent_with_their_part_and_joined() -> None:
    parts = [text(each, **{LOGPROBS: {"content": [{"token": each}]}}) for each in "ab"]
    assert [each["choices"][0]["logprobs"] for each in events(chat(), parts)] == [
        {"content": [{"token": "a"}]},
        {"content": [{"token": "b"}]},
        None,
    ]
    joined = json.loads(chat().whole(parts))["choices"][0]["logprobs"]
    assert joined == {"content": [{"token": "a"}, {"token": "b"}]}
    assert parts[0][LOGPROBS] == {"content": [{"token": "a"}]}


def test_a_completion_has_texts() -> None:
    parts: list[Feed] = [{TEXT: b'"Wa"'}, {TEXT: b""}, {TEXT: b'"ter"'}]
    answer = CompletionAnswer("k", 7, "tiny")
    chunks = events(answer, parts)
    first = [each["choices"][0] for each in chunks]
    assert [(each["text"], each["finish_reason"]) for each in first] == [
        ("Wa", None),
        ("ter", None),
        ("", "stop"),
    ]  # fmt: skip
    assert {(each["id"], each["object"]) for each in chunks} == {("cmpl-k", "text_completion")}
    whole = json.loads(CompletionAnswer("k", 7, "tiny").whole(parts))
    assert whole["choices"] == [
        {"index": 0, "text": "Water", "logprobs": None, "finish_reason": "stop"}
    ]


def test_embeddings_always_have_numbers_of_tokens_which_clients_need() -> None:
    found = json.loads(embeddings("tiny", {TEXT: b"[1]"}))
    assert found == {
        "object": "list",
        "data": [1],
        "model": "tiny",
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }


def test_models_have_a_root_which_the_benchmark_of_vllm_reads() -> None:
    found = json.loads(models(["a", "org/b"], 7))
    assert found["object"] == "list"
    assert [(each["id"], each["root"], each["created"]) for each in found["data"]] == [
        ("a", "a", 7),
        ("org/b", "org/b", 7),
    ]
