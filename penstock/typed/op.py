"""TypedOp: a typed function or class as an op.

The op decodes and checks the request's body, calls the function, checks the result and encodes the
answer's body, all in the op's worker: an invalid request fails alone, and the event loop only
passes bytes. A request of the pipeline protocol is a dict, and is checked likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from penstock.errors import HookError
from penstock.ops.hooks import is_coroutine, is_generator, read_results
from penstock.ops.op import Op
from penstock.request import Feed
from penstock.typed import pictures
from penstock.typed.signature import Signature, response_of

BODY: Final = "@body"
"""Key of the request's body in the op's input, and of the answer's body in its output."""
KIND: Final = "@kind"
"""Key of the media type of the request's body."""
ANSWER: Final = "@answer"
"""Key of the media type of the answer."""

_ITEM = "item"
_RESULT = "result"


class TypedOp(Op):
    """A typed function or class as an op.

    Args:
        target: a function, or a class. A class has ``predict``, or ``inference`` (for batches also
            ``batch_inference``), and may have ``preprocess`` and ``postprocess`` of one request.
            Each worker makes one object, and calls its ``load`` once, if it has one.
        batched: see Signature.
        name: the op's name; the function's by default.
        inputs: the op before it; None means the request.
        options: any other parameter of ``Op``.

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
        **options: Any,
    ) -> None:
        self._target = target
        self._steps = _Steps(target, batched) if isinstance(target, type) else None
        run = target if self._steps is None else self._steps.run
        if is_generator(run):
            raise HookError(f"{target.__name__} is a generator: write return instead of yield")
        self.signature = _signature(target, self._steps, batched)
        self._run: Callable[..., Any] | None = None
        self._before: Callable[..., Any] | None = None
        self._after: Callable[[Any], Any] | None = None
        self._fresh = False
        self._step_of_start = f"{target.__name__}.__init__"
        if hasattr(target, "load"):
            own = f"{self._step_of_start} and " if _has_init(target) else ""
            self._step_of_start = f"{own}{target.__name__}.load"
        self._start = self._step_of_start
        super().__init__(name=name or target.__name__, input_ops=inputs, **options)
        self.hooks_block = self.signature.request.has_images or self.signature.response.has_images
        if is_coroutine(run):
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
        """See Op."""
        steps = self._steps
        if steps is None:
            named = {"process": self._target.__name__}
        else:
            named = {"process": steps.run.__qualname__, "init_op": self._step_of_start}
        before, after = (None, None) if steps is None else (steps.before, steps.after)
        named["preprocess"] = "the check of the request" if before is None else before.__qualname__
        named["postprocess"] = "the check of the result"
        if after is not None:
            named["postprocess"] = f"{after.__qualname__}, or the check of its result,"
        return named.get(hook, hook)

    @property
    def loads(self) -> bool:
        """See Op."""
        return self._steps is not None and (
            hasattr(self._target, "load") or _has_init(self._target)
        )

    def init_op(self) -> None:
        """See Op: makes the object of a class."""
        self.signature.request.check_packages(self.name)
        self.signature.response.check_packages(self.name)
        if self.hooks_block:
            pictures.prepare()
        self._make()
        self._fresh = True

    def _make(self) -> None:
        if self._steps is None:
            self._run = self._target
            return
        self._step_of_start = f"{self._target.__name__}.__init__"
        made = self._target()
        load = getattr(made, "load", None)
        if load is not None:
            self._step_of_start = f"{self._target.__name__}.load"
            load()
        self._step_of_start = self._start
        self._run = getattr(made, self._steps.run.__name__)
        self._before = getattr(made, "preprocess", None)
        self._after = getattr(made, "postprocess", None)

    def preprocess(self, input_dicts: dict[str, Feed], data_id: int = 0, log_id: int = 0) -> Feed:
        """Decode and check one request."""
        (feed,) = input_dicts.values()
        signature = self.signature
        body = feed.get(BODY)
        if body is None:
            value = signature.request.accept(feed)
        else:
            value = signature.request.read(body, feed[KIND], signature.raw)
        if self._before is not None:
            value = self._before(**signature.arguments(value))
        return {_ITEM: value}

    def process(self, feed_batch: list[Feed], typical_logid: int = 0) -> Feed:
        """Call the function for a batch."""
        values = [feed[_ITEM] for feed in feed_batch]
        return self._results(self._call(values), len(values))

    async def _process_async(self, feed_batch: list[Feed], typical_logid: int = 0) -> Feed:
        values = [feed[_ITEM] for feed in feed_batch]
        return self._results(await self._call(values), len(values))

    def postprocess(
        self, input_data: dict[str, Feed], fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Feed:
        """Check and encode one request's answer."""
        (feed,) = input_data.values()
        (result,) = fetch_data[_RESULT]
        if self._after is not None:
            result = self._after(result)
        response = self.signature.response
        checked = response.check(result)
        if BODY in feed:
            return {BODY: response.write(checked, feed[ANSWER])}
        plain = response.plain(checked)
        return plain if isinstance(plain, dict) else {_RESULT: plain}

    def _call(self, values: list[Any]) -> Any:
        run, steps = self._run, self._steps
        assert run is not None, "init_op has run"
        if steps is None or not steps.has_before:
            return self.signature.call(run, values)
        return run(values) if self.signature.batched else run(*values)

    def _results(self, given: Any, size: int) -> Feed:
        if not self.signature.batched:
            return {_RESULT: [given]}
        return {_RESULT: read_results(self, given, size, "result")}


def _has_init(target: Any) -> bool:
    return getattr(target, "__init__", None) is not object.__init__


class _Steps:
    """The methods of a served class.

    Attributes:
        run: name of the method that is called with a batch, or with one request.
        has_before: whether ``preprocess`` makes its input.
    """

    def __init__(self, target: type, batched: bool) -> None:
        names = ("batch_inference", "inference", "predict") if batched else ("inference", "predict")
        run = next((getattr(target, name) for name in names if hasattr(target, name)), None)
        if run is None:
            raise HookError(
                f"{target.__name__} has no method inference or predict: one of them is called with"
                f" the requests"
            )
        self.run = run
        self.has_before = hasattr(target, "preprocess")
        self.before = getattr(target, "preprocess", None)
        self.after = getattr(target, "postprocess", None)


def _signature(target: Any, steps: _Steps | None, batched: bool) -> Signature:
    """Return the schemas of one request and answer; for a class, of its first and last step."""
    if steps is None:
        return Signature(target, batched=batched)
    last = response_of(steps.after or steps.run, batched=batched and not steps.after)
    found = Signature(
        steps.before or steps.run,
        batched=batched and not steps.before,
        skip=1,
        response=last,
        name=target.__name__,
    )
    found.batched = batched
    return found
