"""Functions behind OpenAI's routes as ops: they get a request's members, and make parts of answers.

Members that the function does not name are left out: clients send ever more of them. See
``penstock.protocols.openai`` for the parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin, is_typeddict

from pydantic_core import to_json

from penstock.errors import HookError, UnknownService
from penstock.protocols import media
from penstock.protocols.openai import TEXT, parameters
from penstock.request import Feed
from penstock.typed.annotations import unnamed
from penstock.typed.op import BODY, KIND, TypedOp
from penstock.typed.openai import ChatReply, CompletionReply
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

    def __init__(self, target: Any, **more: Any) -> None:
        super().__init__(target, **more)
        signature = self.signature
        members = top_of(signature.request.describe(refs="{model}")).get("properties", {})
        if self.needs not in members:
            raise HookError(f"{self._called} has no parameter {self.needs}: write {self.example}")
        # A model of the whole request takes what it likes.
        self._names = None if signature.whole else frozenset(members)
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
        value = media.decode(body, feed[KIND], exact=False)
        given = parameters(value, self._names)
        if signature.parameters is None:
            return signature.request.accept(given)
        return signature.parameters.read(feed, lambda: signature.request.accept(given))


class ChatOp(OpenAiOp):
    """See ``OpenAiOp``."""

    needs = "messages"
    example = "def chat(messages: list[ChatMessage]) -> str, or -> Iterator[str] with yield"

    def _answers_with(self, kind: Any) -> bool:
        return _is_text_or(kind, ChatReply)

    def _answer(self, result: Any, feed: Feed) -> Feed:
        checked = self.signature.response.check(result)
        if isinstance(checked, str):
            return {TEXT: b'{"content":%b}' % to_json(checked) if checked else b""}
        reply = checked if isinstance(checked, ChatReply) else ChatReply.model_validate(checked)
        return reply.part()


class CompletionOp(OpenAiOp):
    """See ``OpenAiOp``."""

    needs = "prompt"
    example = "def complete(prompt: str) -> str, or -> Iterator[str] with yield"

    def _answers_with(self, kind: Any) -> bool:
        return _is_text_or(kind, CompletionReply)

    def _answer(self, result: Any, feed: Feed) -> Feed:
        checked = self.signature.response.check(result)
        if isinstance(checked, str):
            return {TEXT: to_json(checked) if checked else b""}
        if not isinstance(checked, CompletionReply):
            checked = CompletionReply.model_validate(checked)
        return checked.part()


def _is_text_or(kind: Any, reply: type) -> bool:
    """Whether all values of a type are texts, objects of this class, or dicts."""
    kind = unnamed(kind)
    if get_origin(kind) in (Union, UnionType):
        return all(_is_text_or(each, reply) for each in get_args(kind))
    found = get_origin(kind) or kind
    if found is Any or is_typeddict(found):
        return True
    return isinstance(found, type) and issubclass(found, (str, reply, Mapping))
