"""Functions behind OpenAI's routes as ops: they get a request's members, and make parts of answers.

Members that the function does not name are left out: clients send ever more of them. See
``penstock.protocols.openai`` for the parts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import aclosing, closing
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, is_typeddict

import numpy as np
from pydantic import BaseModel
from pydantic_core import to_json

from penstock.caller import Caller
from penstock.errors import HookError, InvalidInput, UnknownService
from penstock.protocols import media
from penstock.protocols.openai import (
    COUNT,
    SCORES,
    STOP,
    TEXT,
    USAGE,
    embedded,
    has_tokens,
    parameters,
    text_of,
)
from penstock.protocols.openai_stops import Stops
from penstock.request import Feed
from penstock.typed.annotations import unnamed
from penstock.typed.op import BODY, KIND, RESULT, TypedOp
from penstock.typed.openai import ChatReply, CompletionReply, EmbeddingsReply, RerankReply
from penstock.typed.parameters import top_of


class OpenAiOp(TypedOp):
    """A typed function or class behind one of OpenAI's routes; see ``TypedOp``.

    Raises:
        HookError: it lacks the parameter that its requests need, or its result is no answer.
    """

    needs: ClassVar[str]
    """The parameter, or member, that each request has."""
    example: ClassVar[str]
    """How a function for this route looks."""
    may_yield: ClassVar[bool] = False

    def __init__(self, target: Any, **more: Any) -> None:
        super().__init__(target, **more)
        signature = self.signature
        if self.streams and not self.may_yield:
            what = "has seats" if self.seated else "yields"
            raise HookError(f"{self._called} {what}, which this route cannot: write {self.example}")
        members = top_of(signature.request.describe(refs="{model}")).get("properties", {})
        if self.needs not in members:
            raise HookError(f"{self._called} has no parameter {self.needs}: write {self.example}")
        self._members = frozenset(members)
        if signature.response.responds or not self._answers_with(signature.response.annotation):
            kind = signature.response.annotation
            raise HookError(
                f"{self._called} answers with {getattr(kind, '__name__', kind)}: write"
                f" {self.example}"
            )

    def _answers_with(self, kind: Any) -> bool:
        """Whether values of a type are answers, or parts of them."""
        raise NotImplementedError

    def _read(self, input_dicts: dict[str, Feed]) -> Any:
        (feed,) = input_dicts.values()
        signature = self.signature
        body = feed.get(BODY)
        if body is None:  # of the pipeline protocol, which has every graph's name
            raise UnknownService(f"{self._called} answers OpenAI's routes only")
        given = self._members_of(media.decode(body, feed[KIND], exact=False, texts=True))
        if signature.parameters is None:
            return signature.request.accept(given)
        return signature.parameters.read(feed, lambda: signature.request.accept(given))

    def _members_of(self, body: dict[str, Any]) -> dict[str, Any]:
        """The members of a request's body that the function takes."""
        # A model of the whole request takes what it likes.
        return parameters(body, None if self.signature.whole else self._members)


class TextOp(OpenAiOp):
    """An op whose answers are texts. It ends them at the request's stop texts, unless the function
    has a parameter for these.
    """

    may_yield = True
    content: ClassVar[str]
    """The member of a reply that is its text."""

    def __init__(self, target: Any, **more: Any) -> None:
        super().__init__(target, **more)
        # A whole request has them, whether or not the function looks at them.
        unseen = self.signature.whole and not self.seated
        self._ends_texts = unseen or "stop" not in self._members

    def preprocess(self, input_dicts: dict[str, Feed], data_id: int = 0, log_id: int = 0) -> Feed:
        """See ``TypedOp``."""
        return self._with_stops(super().preprocess(input_dicts), input_dicts)

    def _with_caller(
        self,
        input_dicts: dict[str, Feed],
        data_id: int = 0,
        log_id: int = 0,
        *,
        caller: Caller | None = None,
    ) -> Feed:
        return self._with_stops(super()._with_caller(input_dicts, caller=caller), input_dicts)

    def _with_stops(self, found: Feed, input_dicts: dict[str, Feed]) -> Feed:
        """Add the request's stop texts to the input of ``process``."""
        (feed,) = input_dicts.values()
        if self._ends_texts and STOP in feed:
            if self.seated:
                text = f"{self._called} has seats, and takes no stop texts"
                raise InvalidInput(
                    [{"loc": ["body", "stop"], "msg": text, "type": "unsupported_value"}]
                )
            found[STOP] = feed[STOP]
        return found

    def _pieces(self, feed_batch: list[Feed], typical_logid: int = 0) -> Generator[Feed]:
        pieces = super()._pieces(feed_batch, typical_logid)
        texts = feed_batch[0].get(STOP)
        if texts is None:
            yield from pieces
            return
        ending = _Ending(self.content, texts)
        with closing(pieces):
            for each in pieces:
                yield ending.of(each)
                if ending.found:
                    return
        yield from ending.rest()

    async def _pieces_async(
        self, feed_batch: list[Feed], typical_logid: int = 0
    ) -> AsyncGenerator[Feed]:
        texts = feed_batch[0].get(STOP)
        ending = None if texts is None else _Ending(self.content, texts)
        async with aclosing(super()._pieces_async(feed_batch, typical_logid)) as pieces:
            async for each in pieces:
                yield each if ending is None else ending.of(each)
                if ending is not None and ending.found:
                    return
        for each in () if ending is None else ending.rest():
            yield each

    def _answer(self, result: Any, feed: Feed) -> Feed:
        """Check and encode a text or a reply."""
        checked = self.signature.response.check(result)
        if self._ends_texts and STOP in feed and not self.streams:
            checked = _Ending(self.content, feed[STOP]).whole(checked)
        return self._part(checked)

    def _part(self, checked: Any) -> Feed:
        """The part of an answer that a text or a reply is."""
        raise NotImplementedError


class _Ending:
    """Ends the text of replies, which may be texts, dicts or models, at stop texts.

    Args:
        content: the member of replies that is their text.
        texts: where to end.
    """

    def __init__(self, content: str, texts: list[str]) -> None:
        self._content = content
        self._stops = Stops(texts)
        self._last: Any = ""

    @property
    def found(self) -> bool:
        """Whether the text has ended."""
        return self._stops.found

    def of(self, piece: Feed) -> Feed:
        """What may be passed on after a further piece of the result."""
        (value,) = piece[RESULT]
        self._last = value
        text = self._text_of(value)
        return piece if text is None else {RESULT: [self._with(value, self._stops.add(text))]}

    def rest(self) -> Iterator[Feed]:
        """The piece with what was held back, at the end; none if that is nothing."""
        text = self._stops.rest()
        if text:
            yield {RESULT: [self._with(_bare(self._last), text)]}

    def whole(self, value: Any) -> Any:
        """The same for a whole reply."""
        text = self._text_of(value)
        if text is None:
            return value
        kept = self._stops.add(text)
        return self._with(value, kept + self._stops.rest())

    def _text_of(self, value: Any) -> str | None:
        """The text of a reply; None if it has none."""
        if isinstance(value, Mapping):
            value = value.get(self._content)
        elif isinstance(value, BaseModel):
            value = getattr(value, self._content, None)
        return value if isinstance(value, str) else None

    def _with(self, value: Any, text: str) -> Any:
        """A reply with another text."""
        if isinstance(value, str):
            return text
        more: dict[str, Any] = {self._content: text}
        if self.found:
            more["finish_reason"] = "stop"
        if isinstance(value, Mapping):
            return {**value, **more}
        return value.model_copy(update=more)


def _bare(value: Any) -> Any:
    """A reply of the same type without anything."""
    if isinstance(value, BaseModel):
        return type(value)()
    return {} if isinstance(value, Mapping) else ""


class ChatOp(TextOp):
    """See ``TextOp``."""

    content = "content"

    needs = "messages"
    example = "def chat(messages: list[ChatMessage]) -> str, or -> Iterator[str] with yield"

    def _answers_with(self, kind: Any) -> bool:
        return _is_text_or(kind, ChatReply)

    def _part(self, checked: Any) -> Feed:
        if isinstance(checked, str):
            return {TEXT: b'{"content":%b}' % to_json(checked) if checked else b""}
        reply = checked if isinstance(checked, ChatReply) else ChatReply.model_validate(checked)
        return reply.part()


class CompletionOp(TextOp):
    """See ``TextOp``."""

    content = "text"

    needs = "prompt"
    example = "def complete(prompt: str) -> str, or -> Iterator[str] with yield"

    def _answers_with(self, kind: Any) -> bool:
        return _is_text_or(kind, CompletionReply)

    def _part(self, checked: Any) -> Feed:
        if isinstance(checked, str):
            return {TEXT: to_json(checked) if checked else b""}
        known = isinstance(checked, CompletionReply)
        reply = checked if known else CompletionReply.model_validate(checked)
        return reply.part()


class EmbeddingsOp(OpenAiOp):
    """See ``OpenAiOp``."""

    needs = "input"
    example = "def embed(input: list[str]) -> list[list[float]]"

    def _answers_with(self, kind: Any) -> bool:
        return _may_be_list(kind)

    def _read(self, input_dicts: dict[str, Feed]) -> Any:
        try:
            return super()._read(input_dicts)
        except InvalidInput:
            (feed,) = input_dicts.values()
            if not has_tokens(media.decode(feed[BODY], feed[KIND], exact=False, texts=True)):
                raise
        text = "send texts, not tokens: with LangChain, check_embedding_ctx_length=False does so"
        raise InvalidInput([{"loc": ["body", "input"], "msg": text, "type": "string_type"}])

    def _answer(self, result: Any, feed: Feed) -> Feed:
        checked = self.signature.response.check(result)
        usage = None
        if isinstance(checked, EmbeddingsReply):
            checked, usage = checked.vectors, checked.usage
        found: Feed = {TEXT: embedded(np.asarray(checked, "float32", "C"), feed)}
        return found if usage is None else {**found, USAGE: usage.plain()}


class RerankOp(OpenAiOp):
    """See ``OpenAiOp``."""

    needs = "documents"
    example = "def rerank(query: str, documents: list[str]) -> list[float]"

    def _answers_with(self, kind: Any) -> bool:
        return _may_be_list(kind)

    def _members_of(self, body: dict[str, Any]) -> dict[str, Any]:
        found = super()._members_of(body)
        if isinstance(found.get("documents"), list):
            found["documents"] = [text_of(each) for each in found["documents"]]
        return found

    def _answer(self, result: Any, feed: Feed) -> Feed:
        checked = self.signature.response.check(result)
        usage = None
        if isinstance(checked, RerankReply):
            checked, usage = checked.scores, checked.usage
        scores = np.asarray(checked, "float64")
        if scores.shape != (feed[COUNT],):
            shape = [*scores.shape]
            raise TypeError(f"it returned scores of the shape {shape} for {feed[COUNT]} documents")
        if not np.isfinite(scores).all():
            raise TypeError("it returned a score that is not finite")
        found: Feed = {SCORES: scores.tolist()}
        return found if usage is None else {**found, USAGE: usage.plain()}


def _may_be_list(kind: Any) -> bool:
    """Whether values of a type may be rows of numbers."""
    kind = unnamed(kind)
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    found = get_origin(kind) or kind
    return found not in (str, bytes, int, float, bool, dict, None, type(None))


def _is_text_or(kind: Any, reply: type) -> bool:
    """Whether all values of a type are texts, objects of this class, or dicts."""
    kind = unnamed(kind)
    if get_origin(kind) in (Union, UnionType):
        return all(_is_text_or(each, reply) for each in get_args(kind))
    found = get_origin(kind) or kind
    if found is Any or is_typeddict(found):
        return True
    return isinstance(found, type) and issubclass(found, (str, reply, Mapping))
