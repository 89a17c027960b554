"""TypedOp: a typed function or class as an op.

The op decodes and checks the request's body, calls the function, checks the result and encodes the
answer's body, all in the op's worker: an invalid request fails alone, and the event loop only
passes bytes. A request of the pipeline protocol is a dict, and is checked likewise.
"""

from __future__ import annotations

import functools
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, aclosing, closing
from inspect import isawaitable
from types import CoroutineType, MappingProxyType
from typing import Any, Final, Self

from penstock.caller import Caller
from penstock.errors import HookError, HttpError
from penstock.ops.callers import caller_parameter
from penstock.ops.classes import ServedClass, check_method, method_of, takes_object
from penstock.ops.failures import type_instead
from penstock.ops.functions import (
    is_async_generator,
    is_coroutine,
    is_generator,
    name_of,
    plain_result,
    runs_on_loop,
    uncallable,
)
from penstock.ops.hooks import read_results
from penstock.ops.op import Op
from penstock.ops.seats import STEPS, SeatHooks, check_seats, hooks_of
from penstock.ops.words import Given
from penstock.protocols import media
from penstock.request import Feed
from penstock.typed import pictures
from penstock.typed.lifespan import Lifespan, values_for
from penstock.typed.response import BODILESS, Response
from penstock.typed.signature import Schema, Signature, response_of, response_of_step

BODY: Final = "@body"
"""Key of the request's body in the op's input, and of the answer's body in its output."""
KIND: Final = "@kind"
"""Key of the media type of the request's body."""
ANSWER: Final = "@answer"
"""Key of the media type of the answer."""
HEAD: Final = "@head"
"""Key of the status of an answer, and its header fields as pairs, in the op's output; without it
the answer has the usual ones of its route."""

_CALLER = "caller"
_ITEM = "item"
RESULT: Final = "result"
"""Key of the results in the output of ``process``, and of an answer that is no dict."""


class TypedOp(Op):
    """A typed function or class as an op.

    Args:
        target: a function, or a class. A class has ``predict``, or ``inference`` (for batches also
            ``batch_inference``), and may have ``preprocess`` and ``postprocess`` of one request.
            Each worker makes one object, and calls its ``load`` once, if it has one, and its
            ``close`` at the end.
        batched: see Signature.
        name: the op's name; the function's by default.
        inputs: the op before it; None means the request.
        status: of answers, unless they are a ``Response`` with another one.
        answers: the further statuses that a ``Response`` may have, each with the schema of its
            value; None: without a body. Without a mapping every status, with the type of the
            result: the route is another program's.
        method, placeholders: see Signature.
        lifespans: run in each process that runs the op; parameters of the function, or of the
            class's ``__init__``, that have the type of a value get it.
        given: the options that the author of a route wrote.

    Attributes:
        signature: the schemas of requests and answers.

    Raises:
        HookError: the annotations have no schema, or the class lacks a method.
    """

    joins_feeds = False

    def __init__(
        self,
        target: Callable[..., Any],
        *,
        batched: bool,
        name: str | None = None,
        inputs: Op | Sequence[Op] = (),
        status: int = 200,
        answers: Mapping[int, Schema | None] | None = MappingProxyType({}),
        method: str = "POST",
        placeholders: Sequence[str] = (),
        lifespans: Sequence[Lifespan] = (),
        given: Given | None = None,
    ) -> None:
        problem = uncallable(target)
        if problem is not None:
            raise HookError(problem)
        self._target = target
        self._called = called = name_of(target)
        self._steps: _Steps | None = None
        self._class: ServedClass | None = None
        self.seated = _seated(target, batched, given)
        if isinstance(target, type):
            self._steps, self._class = _Steps(target, batched, self.seated), ServedClass(target)
        self._function = run = target if self._steps is None else self._steps.run
        streams = self.seated or is_generator(run)
        if streams and batched:
            raise HookError(
                f"{called} is a generator, whose answers come in pieces: leave out batch, since"
                " each call answers one request"
            )
        if streams and status in BODILESS:
            raise HookError(f"{called} yields pieces, and an answer with {status} has no body")
        self._lifespans = tuple(lifespans)
        self._given: dict[str, Lifespan] = {}
        if self._class is None:
            self._given = values_for(target, lifespans)
        elif self._class.has_init:
            self._given = values_for(target.__init__, lifespans, 1)
        self.signature = _signature(target, self._steps, batched, method, placeholders, self._given)
        self._run: Callable[..., Any] | None = None
        self._before: Callable[..., Any] | None = None
        self._after: Callable[[Any], Any] | None = None
        self._close: Callable[[], Any] | None = None
        self._seat_hooks: SeatHooks | None = None
        self._fresh = False
        self._entering: str | None = None
        self.given = given
        self.one_at_a_time = not batched
        options = {} if given is None else given.parameters
        super().__init__(name=name or called, input_ops=inputs, **options)
        response = self.signature.response
        self._answers: dict[int, Schema | None] = {**(answers or {}), status: response}
        self._any_status = answers is None
        self._status = status
        # A File is read by ``postprocess``.
        self.hooks_block = (
            self.signature.request.has_images or response.has_images or response.responds
        )
        self.caller_parameter = self.signature.caller
        if self.caller_parameter is not None:
            self.preprocess = self._with_caller  # type: ignore[method-assign]
        if streams and not self.seated:
            waits = is_async_generator(run)
            self.process = self._pieces_async if waits else self._pieces  # type: ignore[method-assign, assignment]
        elif is_coroutine(run):
            self.process = self._process_async  # type: ignore[method-assign, assignment]

    def __copy__(self) -> Self:
        """Copy the op for a worker; if the target is a class, with an object of its own."""
        twin = super().__copy__()
        if self._fresh:
            self._fresh = twin._fresh = False
        elif self._run is not None:
            twin._make()
        return twin

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function or class directly."""
        return self._target(*args, **kwargs)

    def hook_name(self, hook: str) -> str:
        steps, called = self._steps, self._called
        before, after = "the check of the request", "the check of the result"
        if steps is None:
            named = {"process": called, "preprocess": before, "postprocess": after}
            if self._lifespans:
                named["init_op"] = self._entering or f"{called}.__init__"
            return named.get(hook, hook)
        if steps.before is not None:
            before = f"{called}.preprocess"
        if steps.after is not None:
            after = f"{called}.postprocess, or the check of its result,"
        assert self._class is not None
        named = {"process": f"{called}.{steps.name}", "init_op": self._entering or self._class.step}
        if self.seated:
            named["process"] = f"{called}.step"
            named |= {each: f"{called}.{each}" for each in (*STEPS, "leave", "fits")}
        return {**named, "preprocess": before, "postprocess": after}.get(hook, hook)

    def hook_function(self, hook: str) -> Callable[..., Any]:
        if hook == "close" and self._close is not None:
            return self._close
        return self._function if hook == "process" else super().hook_function(hook)

    @property
    def is_one_coroutine(self) -> bool:
        return self.one_at_a_time and self._class is None and runs_on_loop(self._function)

    @property
    def loads(self) -> bool:
        return self._class is not None and self._class.loads

    def init_op(self) -> None:
        """See Op: makes the object of a class."""
        self.signature.request.check_packages(self.name)
        self.signature.response.check_packages(self.name)
        if self.hooks_block:
            pictures.prepare()
        self._make()
        self._fresh = True

    @property
    def closes(self) -> bool:
        return self._close is not None or bool(self._lifespans)

    def close(self) -> Any:
        """See Op: calls that of the class's object, and then leaves the lifespans."""
        try:
            closing = None if self._close is None else self._close()
        except BaseException:
            self._leave()
            raise
        if isawaitable(closing) and self._lifespans:
            return self._leave_after(closing)
        self._leave()
        return closing

    async def _leave_after(self, closing: Awaitable[Any]) -> None:
        try:
            await closing
        finally:
            self._leave()

    def _leave(self) -> None:
        with ExitStack() as all_of_them:
            for each in self._lifespans:
                all_of_them.callback(each.leave)

    def _enter(self) -> dict[str, Any]:
        """Enter the lifespans; return the arguments with their values."""
        values: dict[Lifespan, Any] = {}
        with ExitStack() as entered:
            for each in self._lifespans:
                self._entering = each.name
                values[each] = each.enter()
                entered.callback(each.leave)
            entered.pop_all()
        self._entering = None
        return {name: values[each] for name, each in self._given.items()}

    def _make(self) -> None:
        given = self._enter()
        try:
            self._make_with(given)
        except BaseException:
            self._leave()
            raise

    def _make_with(self, given: dict[str, Any]) -> None:
        if self._steps is None or self._class is None:
            self._run = functools.partial(self._target, **given) if given else self._target
            return
        made = self._class.make(**given)
        self._run = getattr(made, self._steps.name)
        self._before = getattr(made, "preprocess", None)
        self._after = getattr(made, "postprocess", None)
        self._close = getattr(made, "close", None)
        if self.seated:
            self._seat_hooks = hooks_of(made, self._join, _as_result)

    @property
    def seat_hooks(self) -> SeatHooks | None:
        return self._seat_hooks

    def _join(self, feed: Feed) -> Any:
        state = self._call([feed])
        return plain_result(state, self.hook_name("join"))

    def preprocess(self, input_dicts: dict[str, Feed], data_id: int = 0, log_id: int = 0) -> Feed:
        """Decode and check one request."""
        value = self._read(input_dicts)
        if self._before is not None:
            value = self._before(**self.signature.arguments(value))
            plain_result(value, f"{self._called}.preprocess")
        return {_ITEM: value}

    def _with_caller(
        self,
        input_dicts: dict[str, Feed],
        data_id: int = 0,
        log_id: int = 0,
        *,
        caller: Caller | None = None,
    ) -> Feed:
        value = self._read(input_dicts)
        if self._before is None:
            return {_ITEM: value, _CALLER: caller}
        assert self.signature.caller is not None
        given = {self.signature.caller.name: caller}
        value = self._before(**self.signature.arguments(value), **given)
        return {_ITEM: plain_result(value, f"{self._called}.preprocess")}

    def _read(self, input_dicts: dict[str, Feed]) -> Any:
        (feed,) = input_dicts.values()
        signature = self.signature
        body = feed.get(BODY)
        if body is None:
            return signature.accept(feed)
        if signature.only_body:  # of nearly every route: directly, for its speed
            return signature.request.read(body, feed[KIND], signature.raw)
        return signature.read(feed, body, feed[KIND])

    def process(self, feed_batch: list[Feed], typical_logid: int = 0) -> Feed:
        """Call the function for a batch."""
        return self._results(self._call(feed_batch), len(feed_batch))

    async def _process_async(self, feed_batch: list[Feed], typical_logid: int = 0) -> Feed:
        return self._results(await self._call(feed_batch), len(feed_batch))

    def _pieces(self, feed_batch: list[Feed], typical_logid: int = 0) -> Generator[Feed]:
        with closing(self._call(feed_batch)) as pieces:
            for each in pieces:
                yield {RESULT: [each]}

    async def _pieces_async(
        self, feed_batch: list[Feed], typical_logid: int = 0
    ) -> AsyncGenerator[Feed]:
        async with aclosing(self._call(feed_batch)) as pieces:
            async for each in pieces:
                yield {RESULT: [each]}

    def piece_maker(self, input_data: dict[str, Feed]) -> Callable[[Any], Feed]:
        """See Op: ``postprocess``, whose results need no check."""
        return functools.partial(self.postprocess, input_data)

    def postprocess(
        self, input_data: dict[str, Feed], fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Feed:
        """Check and encode one request's answer."""
        (feed,) = input_data.values()
        (result,) = fetch_data[RESULT]
        if self._after is not None:
            result = plain_result(self._after(result), f"{self._called}.postprocess")
        if isinstance(result, Response):
            if self.streams:
                raise TypeError("it yielded a Response: pieces of one answer are values")
            return self._respond(result, feed)
        return self._answer(result, feed)

    def _answer(self, result: Any, feed: Feed) -> Feed:
        """Check and encode a value."""
        response = self.signature.response
        checked = response.check(result)
        if BODY in feed:
            return {BODY: response.write(checked, feed[ANSWER])}
        plain = response.plain(checked)
        return plain if isinstance(plain, dict) else {RESULT: plain}

    def _respond(self, given: Response[Any], feed: Feed) -> Feed:
        """Check and encode an answer with a status and header fields of its own."""
        declared = self.signature.response
        if not declared.responds and declared.annotation is not Any:
            raise TypeError("it returned a Response: write -> Response[...] instead of its type")
        status = self._status if given.status is None else given.status
        if status not in self._answers and not self._any_status:
            raise TypeError(
                f"it returned the status {status}, which the route does not declare: add"
                f" answers={{{status}: ...}}, with the type of its value, or None for no body"
            )
        schema, value = self._answers.get(status, declared), given.content()
        if self._any_status and value is None and 300 <= status < 400:
            schema = None
        if schema is None or status in BODILESS:
            if value is not None:
                raise TypeError(
                    f"an answer with the status {status} has no body: its value is None"
                )
            return _without_body(given, status) if BODY in feed else {}
        checked = schema.check(value)
        if BODY not in feed:
            plain = schema.plain(checked)
            if status >= 400:
                raise HttpError(status, str(plain))
            return plain if isinstance(plain, dict) else {RESULT: plain}
        if given.media_type is None:
            kind = feed[ANSWER]
            if kind not in (media.JSON, media.MSGPACK, *schema.files):
                kind = media.JSON  # a file's type, of an answer with another status
            body = schema.write(checked, kind)
        else:
            kind, body = _as_file(schema, checked, given.media_type)
        return {BODY: body, KIND: kind, HEAD: [status, [*map(list, given.headers)]]}

    def _call(self, feeds: list[Feed]) -> Any:
        run, steps = self._run, self._steps
        assert run is not None, "init_op has run"
        values = [feed[_ITEM] for feed in feeds]
        if steps is None or not steps.has_before:
            if self.caller_parameter is None:
                return self.signature.call(run, values)
            return self.signature.call(run, values, [feed[_CALLER] for feed in feeds])
        return run(values) if self.signature.batched else run(*values)

    def _results(self, given: Any, size: int) -> Feed:
        if not self.signature.batched:
            if type(given) is CoroutineType:
                raise TypeError(f"{self.hook_name('process')} returned a {type_instead(given)}")
            return {RESULT: [given]}
        return {RESULT: read_results(self, given, size, "result")}


def _as_result(piece: Any) -> Feed:
    return {RESULT: [piece]}


def _seated(target: Any, batched: bool, given: Given | None) -> bool:
    """Whether the target is a class with seats.

    Raises:
        HookError: it has seats, and cannot.
    """
    if given is None or "seats" not in given.keys:
        return False
    check_seats(target)
    if batched:
        raise HookError(
            f"{name_of(target)} has seats, and batch: leave out batch, since step gets all running"
            " requests"
        )
    return True


def _without_body(given: Response[Any], status: int) -> Feed:
    return {BODY: b"", KIND: "", HEAD: [status, [*map(list, given.headers)]]}


def _as_file(schema: Schema, value: Any, kind: str) -> tuple[str, bytes]:
    """A media type, and the body with it, of a value that is sent as it is."""
    if schema.files:
        if media.essence(kind) not in schema.files:
            raise TypeError(f"its media type {kind!r} is none of {', '.join(schema.files)}")
        return kind, schema.write(value, media.essence(kind))
    if isinstance(value, str):
        more = "" if "charset=" in kind.lower() else "; charset=utf-8"
        return kind + more, value.encode()
    if not isinstance(value, bytes):
        raise TypeError(f"with media_type, the value is bytes or a text, not {type_instead(value)}")
    return kind, value


_ONLY_RUN: Final = "returns a coroutine, which only inference and predict may"


class _Steps:
    """The methods of a served class.

    Attributes:
        name: of the method that is called with a batch, or with one request.
        run: that method; of a class with seats, ``join``.
        has_before: whether ``preprocess`` makes its input.
        skip: number of leading parameters of the first step that are not the caller's: the object.
    """

    def __init__(self, target: type, batched: bool, seated: bool = False) -> None:
        self.seated = seated
        if seated:
            self.name, self.run = "join", target.join  # type: ignore[attr-defined]
            self.before = self.after = None
            self.has_before = False
            self.skip = takes_object(target, "join")
            self._check_unused(target)
            return
        names = ("batch_inference", "inference", "predict") if batched else ("inference", "predict")
        name = method_of(target, names)
        for each in ("preprocess", "postprocess"):
            step = getattr(target, each, None)
            if step is None:
                continue
            check_method(target, each)
            if is_coroutine(step):
                raise HookError(f"{target.__name__}.{each} {_ONLY_RUN}: write def {each}")
        later = [name] if hasattr(target, "preprocess") else []
        for each in [*later, "postprocess"]:
            step = getattr(target, each, None)
            if step is not None and caller_parameter(step, batched=batched and each == name):
                first = "preprocess" if later else name
                raise HookError(
                    f"{target.__name__}.{each} cannot ask for the Caller: take it in {first}"
                )
        self.name = name
        self.run = getattr(target, name)
        self.before = getattr(target, "preprocess", None)
        self.after = getattr(target, "postprocess", None)
        self.has_before = self.before is not None
        self.skip = takes_object(target, "preprocess" if self.has_before else name)

    @staticmethod
    def _check_unused(target: type) -> None:
        for each in ("preprocess", "postprocess"):
            if hasattr(target, each):
                raise HookError(
                    f"{target.__name__}.{each} would not run: a class with seats has join and step"
                )


def _signature(
    target: Any,
    steps: _Steps | None,
    batched: bool,
    method: str,
    placeholders: Sequence[str],
    given: Iterable[str] = (),
) -> Signature:
    """Return the schemas of one request and answer; for a class, of its first and last step."""
    if steps is None:
        if given:
            target = functools.partial(target, **dict.fromkeys(given))
        return Signature(target, batched=batched, method=method, placeholders=placeholders)
    if steps.seated:
        last = response_of_step(target.step, f"{target.__name__}.step")
    else:
        last = response_of(steps.after or steps.run, batched=batched and not steps.after)
    found = Signature(
        steps.before or steps.run,
        batched=batched and not steps.before,
        skip=steps.skip,
        response=last,
        name=target.__name__,
        method=method,
        placeholders=placeholders,
    )
    found.batched = batched
    found.streams = steps.seated or is_generator(steps.run)
    return found
