"""The types of functions behind OpenAI's routes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from penstock.openai import ChatMessage, ChatReply, CompletionReply, FunctionCall, ToolCall, Usage
from penstock.protocols.openai import CALLS, FINISH, LOGPROBS, TEXT, USAGE


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("a", "a"),
        ([], ""),
        (
            [{"type": "text", "text": "a"}, {"type": "image_url"}, {"text": None}, {"text": "b"}],
            "ab",
        ),
    ],
)
def test_the_text_of_a_message_is_that_of_its_parts(content: Any, text: str) -> None:
    assert ChatMessage(role="user", content=content).text == text


def test_further_members_of_a_message_are_attributes() -> None:
    message = ChatMessage.model_validate({"role": "user", "reasoning": "a"})
    assert message.model_dump(exclude_none=True) == {"role": "user", "reasoning": "a"}


@pytest.mark.parametrize(
    ("reply", "part"),
    [
        ({}, {TEXT: b""}),
        ({"content": "", "role": "assistant", "tool_calls": None}, {TEXT: b""}),
        ({"content": "é\n"}, {TEXT: '{"content":"é\\n"}'.encode()}),
        ({"reasoning_content": "a"}, {TEXT: b'{"reasoning_content":"a"}'}),
        ({"refusal": "no", "finish_reason": "stop"}, {TEXT: b'{"refusal":"no"}', FINISH: "stop"}),
        ({"logprobs": {"content": []}}, {TEXT: b"", LOGPROBS: {"content": []}}),
    ],
)
def test_a_reply_is_a_part_of_an_answer(reply: dict[str, Any], part: dict[str, Any]) -> None:
    assert ChatReply.model_validate(reply).part() == part


def test_arguments_of_a_tool_may_be_a_dict() -> None:
    call = ToolCall(function=FunctionCall.model_validate({"name": "f", "arguments": {"a": 1}}))
    assert ChatReply(tool_calls=[call]).part() == {
        TEXT: b"",
        CALLS: [{"function": {"name": "f", "arguments": '{"a": 1}'}}],
    }


def test_the_total_of_tokens_is_their_sum_unless_it_is_told() -> None:
    usage = Usage(prompt_tokens=1, completion_tokens=2)
    assert ChatReply(usage=usage).part()[USAGE] == {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "total_tokens": 3,
    }
    details = Usage.model_validate({"total_tokens": 9, "prompt_tokens_details": {"cached": 1}})
    assert details.plain()["total_tokens"] == 9
    assert details.plain()["prompt_tokens_details"] == {"cached": 1}


def test_a_completion_is_a_part_of_an_answer() -> None:
    assert CompletionReply(text="é").part() == {TEXT: '"é"'.encode()}
    assert CompletionReply(finish_reason="length").part() == {TEXT: b"", FINISH: "length"}


def test_a_wrong_reply_is_refused() -> None:
    with pytest.raises(ValidationError):
        ChatReply.model_validate({"content": 1})
