"""The types of functions behind OpenAI's routes: their requests, and what they return or yield."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import to_json

from penstock.protocols.openai import CALLS, FINISH, LOGPROBS, TEXT, USAGE
from penstock.request import Feed


class _Open(BaseModel):
    """An object that may have further members, which are kept."""

    model_config = ConfigDict(extra="allow")


class FunctionCall(_Open):
    """The function of a tool call.

    Attributes:
        name: of the function; None in the further parts of a call.
        arguments: an object as JSON, or a part of it. A dict is converted.
    """

    name: str | None = None
    arguments: str | None = None

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return json.dumps(value) if isinstance(value, Mapping) else value


class ToolCall(_Open):
    """A call of a function that the model asks for, or a part of one.

    Attributes:
        function: its name and arguments.
        id: what the caller's answer refers to; made if it is None.
        type: ``function`` by default.
        index: which call a part belongs to; by default a part with an ``id`` or a name begins the
            next call, and another one continues the last.
    """

    function: FunctionCall = Field(default_factory=FunctionCall)
    id: str | None = None
    type: str | None = None
    index: int | None = Field(default=None, ge=0)


class ChatMessage(_Open):
    """One message of a chat. Further members of the request's message are attributes as well.

    Attributes:
        role: who says it, such as ``user``.
        content: a text, or a list of parts such as ``{"type": "text", "text": "Hello"}``; None in
            messages with tool calls only.
        name: of who says it.
        tool_calls: the calls that the model asked for.
        tool_call_id: the call that a message of the role ``tool`` answers.
    """

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The content without its pictures and the like: its texts, joined."""
        if isinstance(self.content, list):
            return "".join(
                [text for each in self.content if isinstance(text := each.get("text"), str)]
            )
        return self.content or ""


class _Request(_Open):
    """What requests for texts have in common.

    Attributes:
        model: as sent by the caller.
        temperature, top_p, seed, presence_penalty, frequency_penalty: for sampling.
        max_tokens: the limit of the answer; also if it was sent as ``max_completion_tokens``.
        stop: texts before which the answer ends; a single one is a list of one.
        stream: whether the answer is sent in pieces.
        user: the caller's own name of its user.
    """

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    stream: bool = False
    user: str | None = None


class ChatRequest(_Request):
    """A whole request for the next message of a chat. Its further members are attributes as well.

    Attributes:
        messages: the chat so far.
        tools: descriptions of functions that the model may call.
        tool_choice: whether it must, as ``"required"``, or which one.
        response_format: the form of the content, such as ``{"type": "json_object"}``.
    """

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None


class CompletionRequest(_Request):
    """A whole request for the continuation of a text.

    Attributes:
        prompt: the text.
        suffix: what follows after the continuation.
    """

    prompt: str
    suffix: str | None = None


class EmbeddingsRequest(_Open):
    """A whole request for embeddings.

    Attributes:
        input: the texts; a single one is a list of one.
        model: as sent by the caller.
        dimensions: the wanted length of embeddings.
        user: the caller's own name of its user.
    """

    input: list[str] = Field(min_length=1)
    model: str | None = None
    dimensions: int | None = None
    user: str | None = None


class RerankRequest(_Open):
    """A whole request for a ranking of documents.

    Attributes:
        query: what is searched for.
        documents: their texts, also of those that were sent as objects.
        model: as sent by the caller.
        top_n: how many are wanted; the function gives the scores of all nevertheless.
    """

    query: str
    documents: list[str]
    model: str | None = None
    top_n: int | None = None


class Usage(_Open):
    """The numbers of tokens of one request.

    Attributes:
        prompt_tokens: of the request.
        completion_tokens: of the answer.
        total_tokens: of both.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int | None = None

    def plain(self) -> dict[str, Any]:
        """As a dict, with the total."""
        total = self.total_tokens
        if total is None:
            total = self.prompt_tokens + self.completion_tokens
        return {**self.model_dump(exclude_none=True), "total_tokens": total}


class _Reply(_Open):
    """What replies have in common."""

    finish_reason: str | None = None
    usage: Usage | None = None
    logprobs: dict[str, Any] | None = None

    def _end(self) -> Feed:
        """What it tells apart from its content, as members of a part."""
        found: Feed = {}
        if self.finish_reason is not None:
            found[FINISH] = self.finish_reason
        if self.usage is not None:
            found[USAGE] = self.usage.plain()
        if self.logprobs is not None:
            found[LOGPROBS] = self.logprobs
        return found


_OF_REPLIES = {"finish_reason", "usage", "logprobs"}


class ChatReply(_Reply):
    """The next message of a chat, or a piece of it. Further members are sent as they are.

    Attributes:
        content: the text, or a piece of it.
        tool_calls: calls that the model asks for, or parts of them.
        refusal: why the model refuses, instead of a content.
        finish_reason: why the message ends: by default ``stop``, or ``tool_calls`` if it has any.
        usage: the numbers of tokens; of several pieces with it the last one counts.
        logprobs: the log probabilities of the tokens, ``{"content": [...]}``.
        role: ignored; it is ``assistant``.
    """

    content: str | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: str | None = None
    role: str | None = None

    def part(self) -> Feed:
        """As a part of an answer; see ``penstock.protocols.openai``."""
        found = self._end()
        delta = self.model_dump_json(
            exclude={*_OF_REPLIES, "tool_calls", "role"}, exclude_none=True
        ).encode()
        found[TEXT] = b"" if delta in _EMPTY else delta
        if self.tool_calls:
            found[CALLS] = [each.model_dump(exclude_none=True) for each in self.tool_calls]
        return found


_EMPTY = (b"{}", b'{"content":""}')


class CompletionReply(_Reply):
    """The continuation of a text, or a piece of it.

    Attributes:
        text: the text.
        finish_reason: why it ends; ``stop`` by default.
        usage: the numbers of tokens; of several pieces with it the last one counts.
        logprobs: the log probabilities of the tokens.
    """

    text: str = ""

    def part(self) -> Feed:
        """As a part of an answer; see ``penstock.protocols.openai``."""
        return {**self._end(), TEXT: to_json(self.text) if self.text else b""}


class EmbeddingsReply(BaseModel):
    """Embeddings of the texts of one request.

    Attributes:
        vectors: numbers, a row for each text: lists or an array.
        usage: the numbers of tokens.
    """

    vectors: Any
    usage: Usage | None = None


class RerankReply(BaseModel):
    """Scores of the documents of one request.

    Attributes:
        scores: one for each document, in the order of the request: a list or an array.
        usage: the numbers of tokens.
    """

    scores: Any
    usage: Usage | None = None
