"""What ``App.route`` declares, from which it makes the op and the route of a function or class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.api.descriptions import own_examples
from penstock.api.typed import TypedRoute
from penstock.errors import ERROR_STATUSES, GraphError, HookError, HttpError
from penstock.ops.functions import doc_of
from penstock.ops.words import Given
from penstock.protocols import media
from penstock.typed.lifespan import Lifespan
from penstock.typed.op import TypedOp
from penstock.typed.response import BODILESS, STATUSES
from penstock.typed.signature import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRoute:
    """See ``App.route``.

    Attributes:
        path: of the route.
        method: the HTTP method.
        placeholders: those of the path.
        batched: whether the function takes and returns lists.
        external: whether external workers run it.
        given: options of its op.
        status: of its answers.
        answers: its further answers; see ``answers_of``.
        examples: as given; see ``examples_of``.
        kind: of its op.
    """

    path: str
    method: str
    placeholders: tuple[str, ...]
    batched: bool
    external: bool
    given: Given
    status: int
    answers: Mapping[int, Any]
    examples: Sequence[Any]
    kind: type[TypedOp] = TypedOp

    def op(self, target: Callable[..., Any], lifespans: Sequence[Lifespan]) -> TypedOp:
        """The op that runs a function or class.

        Args:
            target: the function or class.
            lifespans: those of the app so far.

        Raises:
            HookError: the annotations make no schema, or external workers cannot run it.
        """
        op = self.kind(
            target,
            batched=self.batched,
            method=self.method,
            placeholders=self.placeholders,
            lifespans=lifespans,
            given=self.given,
            status=self.status,
            answers={at: each for at, each in self.answers.items() if each is not HttpError},
        )
        signature = op.signature
        if self.external and (signature.parameters is not None or not signature.has_body):
            raise HookError(
                f"{self.path}: external workers get the body of a request only: all parameters are"
                " its members"
            )
        return op

    def route(self, op: TypedOp, target: Callable[..., Any]) -> TypedRoute:
        """The route to this op of a function or class.

        Raises:
            HookError: an example is no plain value.
        """
        signature = op.signature
        summary, _, description = inspect.cleandoc(doc_of(target)).partition("\n")
        request = None if signature.parameters else signature.request
        return TypedRoute(
            path=self.path,
            graph=op.name,
            signature=signature,
            status=self.status,
            answers=self.answers,
            method=self.method,
            summary=summary,
            description=description.strip(),
            examples=examples_of(self.path, request, self.examples),
        )


def answers_of(path: str, status: Any, given: Mapping[int, Any]) -> dict[int, Any]:
    """The declared answers of a route, with schemas of their values.

    Raises:
        GraphError: a status is none, or has no such answer.
        HookError: a type makes no schema.
    """
    if type(status) is not int or status not in range(200, 300):
        raise GraphError(
            f"route({path!r}): status is that of the usual answer, 200 to 299, not {status!r}: give"
            " others as answers={404: ...}"
        )
    found: dict[int, Any] = {}
    for each, kind in given.items():
        if type(each) is not int or each not in STATUSES or each == status:
            raise GraphError(f"route({path!r}): answers has statuses other than {status}: {each!r}")
        if kind is HttpError and each not in ERROR_STATUSES:
            raise GraphError(f"route({path!r}): {each} is no status of an error")
        if kind is not None and each in BODILESS:
            raise GraphError(f"route({path!r}): answers with the status {each} have no body: None")
        plain = kind is None or kind is HttpError
        name = f"{path}, answers[{each}]"
        found[each] = kind if plain else Schema(kind, name, of_answers=True)
    return found


def examples_of(
    path: str, request: Schema | None, given: Sequence[Any]
) -> tuple[tuple[Any, Any], ...]:
    """Pairs of a request and its expected answer or None, as JSON values."""
    examples = given
    if not given and request is not None:
        examples = own_examples(request.describe(refs="#/$defs/{model}"))
    pairs = [
        each if isinstance(each, tuple) and len(each) == 2 else (each, None) for each in examples
    ]
    try:
        as_json = [
            [media.decode(media.encode(each, media.JSON), media.JSON) for each in pair]
            for pair in pairs
        ]
    except (TypeError, ValueError) as error:
        raise HookError(f"an example of {path} is no plain value: {error}") from error
    return tuple((request, answer) for request, answer in as_json)
