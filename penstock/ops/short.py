"""The short form: models and functions as ops, without classes and without configuration.

left, right = Model("left.onnx"), Model("right.onnx")

@op(left, right)
def combine(left, right):
    return {"mean": (left["y"] + right["y"]) / 2}

service = Service("ensemble", combine)
"""

from __future__ import annotations

import inspect
import os
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from penstock.batching.decision import Verify
from penstock.batching.rows import Declared
from penstock.caller import Caller
from penstock.errors import GraphError, HookError, NotProvided, RequestError
from penstock.ops import words
from penstock.ops.callers import caller_parameter, must_be_last
from penstock.ops.classes import ServedClass, method_of, takes_object
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
from penstock.ops.product import product_error
from penstock.ops.seats import STEPS, SeatHooks, check_seats, hooks_of
from penstock.protocols.json_arrays import array_of
from penstock.request import Feed
from penstock.tensor import LOD_SUFFIX


class Model(Op):
    """An op that runs one saved model on its input, and returns the model's outputs.

    Args:
        path: a model's file or folder; with ``versions`` the folder, or its URL, that has a folder
            for each version.
        inputs: the op before it; None means the request.
        name: the op's name; by default the file name without its suffix, or for the folder of a
            version, such as ``models/double/1``, the name of the folder above it.
        rows: the row axes of the model's inputs and outputs, such as ``{"x": 0, "scale": None}``,
            or ``"first"``: axis 0 of all of them.
        shared_outputs: outputs without a row axis that each request of a batch gets whole.
        verify_batches: ``"auto"``, ``"strict"`` or ``"off"``, see the key of this name.
        examples: inputs for it, one dict of arrays for each request.
        batch: the most requests joined into one run of the model; by default 1.
        wait: milliseconds that a request waits for its batch to fill; by default 0: the requests
            that arrived while the workers were busy are the next batch.
        workers: number of threads or processes that run it; by default 1.
        executor: ``thread`` (the default) or ``process``.
        timeout: seconds for one run; by default no limit.
        retry: attempts in all, repeated after a timeout.
        versions: ``"latest"``, or the number of a version; by default ``path`` is the model itself.
        options: other parameters of ``Op``, and keys of an op's configuration, such as ``pad``.

    Nested lists of numbers, and texts such as ``"[[1, 2, 3]]"``, are converted to arrays. After
    another Model, inputs are matched with its outputs by name, and further outputs are left out;
    or, if there are as many outputs of other names, by position.

    Raises:
        GraphError: ``inputs`` is not one op, or an option is unknown.
        ConfigError: ``timeout`` is no number of seconds.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        inputs: Op | None = None,
        *,
        name: str | None = None,
        rows: Declared | None = None,
        shared_outputs: Sequence[str] = (),
        verify_batches: Verify | None = None,
        examples: Sequence[Feed] = (),
        batch: int | None = None,
        wait: float | None = None,
        workers: int | None = None,
        executor: str | None = None,
        timeout: float | None = None,
        retry: int | None = None,
        versions: str | int | None = None,
        **options: Any,
    ) -> None:
        place = os.fspath(path)
        self.model_path = None if "://" in place else Path(place)
        if self.model_path is None:
            local = options.get("local_service_conf") or {}
            options["local_service_conf"] = {"model_config": place, **local}
        self.rows = rows
        self.shared_outputs = shared_outputs  # type: ignore[misc]  # of this op, not of its class
        self.verify_batches = verify_batches
        self.examples = examples
        name = name or model_name(Path(place))
        own = {
            "batch": batch,
            "wait": wait,
            "workers": workers,
            "executor": executor,
            "timeout": timeout,
            "retry": retry,
            "versions": versions,
        }
        self.given = _read(name, {**own, **options})
        super().__init__(name=name, input_ops=inputs, **self.given.parameters)
        if len(self.get_input_ops()) > 1:
            raise GraphError(
                f"op {self.name!r}: a Model reads one op: join several with a function first"
            )

    def preprocess(self, input_dicts: dict[str, Feed], data_id: int = 0, log_id: int = 0) -> Feed:
        """The input op's dict, with texts converted to arrays."""
        (feed,) = input_dicts.values()
        for source in self._input_ops:  # one at most
            if isinstance(source, Model):
                return inputs_from(self.client.model.feed_names, feed)
        for value in feed.values():
            if type(value) is not np.ndarray:
                return {
                    name: array_of(name, value, self._dtype_of(name))
                    for name, value in feed.items()
                }
        return feed

    def _dtype_of(self, name: str) -> np.dtype[Any] | None:
        """The dtype of the model's input; None if it has no such input, or is not open here."""
        model = getattr(getattr(self, "client", None), "model", None)
        found = None if model is None else model.input(name)
        return None if found is None else found.dtype


def model_name(path: Path) -> str:
    """The default name of a model: the file name without its suffix; for the folder of a version,
    whose name is a number, that of the folder above it.
    """
    above = path.parent.name
    is_version = path.name.isascii() and path.name.isdigit() and above not in ("", "..")
    return above if is_version else path.stem


def sources_of(inputs: Sequence[str], outputs: Collection[str]) -> dict[str, str] | None:
    """For each input of a model, the output of the model before it that it takes; None if the model
    cannot run on these outputs.
    """
    if {*inputs} <= {*outputs}:
        return {name: name for name in inputs}
    return dict(zip(inputs, outputs, strict=True)) if len(inputs) == len(outputs) else None


def inputs_from(wanted: Sequence[str], outputs: Feed) -> Feed:
    """The inputs of a model from the outputs of another, as ``Model`` matches them."""
    names = {*wanted}
    if outputs.keys() == names:
        return outputs
    if outputs.keys() > names:
        return {
            name: value
            for name, value in outputs.items()
            if name in names or name.removesuffix(LOD_SUFFIX) in names
        }
    if len(wanted) == len(outputs):
        return dict(zip(wanted, outputs.values(), strict=True))
    return outputs


_RESULTS = "results"
_CALLER = "@caller"


def _lists(feed_batch: list[Feed]) -> list[list[Any]]:
    """For each input, the dicts of all requests."""
    return [[feed[name] for feed in feed_batch] for name in feed_batch[0]]


class FunctionOp(Op):
    """An op made of a function, or of a class, by ``op``; it remains callable.

    The function, of a class its method ``predict`` or ``inference``, is the op's ``process``: it
    runs in the op's worker, a coroutine function on the service's loop, within the op's
    ``timeout``. With ``batch`` it is called for several requests at once, or for one if ``batch``
    is 1: each of its inputs is a list with a dict for each of them, and so is its result. A
    parameter that is annotated ``Caller`` gets who calls. A function that yields dicts answers in
    pieces, and so does a class with ``seats``, whose ``step`` makes dicts.

    Raises:
        HookError: the function does not take one argument for each input, or yields and has
            ``batch``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Op],
        batch: int | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        name = name or name_of(function)
        self._target = self.function = function
        self._class: ServedClass | None = None
        self._object: Any = None
        self._close: Callable[[], Any] | None = None
        self._fresh = False
        self.seated = options.get("seats") is not None
        if self.seated:
            check_seats(function)
        if isinstance(function, type):
            self._method = "join" if self.seated else _method_of(function)
            self._class = ServedClass(function)
            self._own = takes_object(function, self._method)
            self.function = getattr(function, self._method)
        self.batched = batch is not None
        self.one_at_a_time = self.joins_feeds = not self.batched
        self.given = _read(name, {"batch": batch, **options})
        super().__init__(name=name, input_ops=inputs, **self.given.parameters)
        self._check_function()
        if self.caller_parameter is not None:
            self.preprocess = self._with_caller  # type: ignore[method-assign]
        if self.batched:
            self.process = self._process_batch  # type: ignore[method-assign]
        if is_coroutine(self.function):
            self.process = (  # type: ignore[method-assign]
                self._await_batch if self.batched else self._await_function
            )
        elif is_generator(self.function):
            waits = is_async_generator(self.function)
            self.process = self._pieces_async if waits else self._pieces  # type: ignore[method-assign]

    def _check_function(self) -> None:
        if self.batched and self.seated:
            raise HookError(
                f"op {self.name!r} has seats, and batch: leave out batch, since step gets all"
                " running requests"
            )
        if self.batched and is_generator(self.function):
            raise HookError(
                f"op {self.name!r}: {self._noun} is a generator, whose answers come in pieces:"
                " leave out batch, since each call answers one request"
            )
        self.caller_parameter = caller = caller_parameter(self.function, batched=self.batched)
        if caller is not None:
            must_be_last(self.function, caller)
        names = [source.name for source in self.get_input_ops()]
        given_by_name = {} if caller is None else {caller.name: None}
        own = [] if self._class is None else [None] * self._own  # for ``self``
        try:
            signature = inspect.signature(self.function)
            signature.bind(*own, *(names or ["the request"]), **given_by_name)
        except ValueError:
            return  # a C function without a signature
        except TypeError as error:
            given = f"{len(names)} dicts, those of {' and '.join(names)}"
            if len(names) < 2:
                given = f"one dict, that of {names[0] if names else 'the request'}"
            raise HookError(
                f"op {self.name!r}: {self._noun} gets {given}, but does not accept that ({error})"
            ) from error

    @property
    def _noun(self) -> str:
        """The function in messages about its definition."""
        return "the function" if self._class is None else f"{self._class.called}.{self._method}"

    def __copy__(self) -> Self:
        """Copy the op for a worker; one of a class has an object of its own."""
        twin = super().__copy__()
        if self._fresh:
            self._fresh = twin._fresh = False
        elif self._object is not None:
            twin._make()
        return twin

    def init_op(self) -> None:
        """See Op: makes the object of a class."""
        if self._class is not None:
            self._make()
            self._fresh = True

    def _make(self) -> None:
        assert self._class is not None
        self._object = self._class.make()
        self.function = getattr(self._object, self._method)
        self._close = getattr(self._object, "close", None)

    @property
    def _called(self) -> str:
        return name_of(self._target)

    @property
    def seat_hooks(self) -> SeatHooks | None:
        if not self.seated or self._object is None:
            return None
        return hooks_of(self._object, self._join, self._read)

    def _join(self, feed: Feed) -> Any:
        return plain_result(self._call(feed), self.hook_name("join"))

    @property
    def is_one_coroutine(self) -> bool:
        return self.one_at_a_time and self._class is None and runs_on_loop(self.function)

    @property
    def loads(self) -> bool:
        return self._class is not None and self._class.loads

    @property
    def closes(self) -> bool:
        return self._close is not None

    def close(self) -> Any:
        """See Op: calls that of the class's object."""
        return None if self._close is None else self._close()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function or class as if it had never been decorated."""
        return self._target(*args, **kwargs)

    def hook_name(self, hook: str) -> str:
        if self._class is not None and hook == "init_op":
            return self._class.step
        if self.seated and hook in ("process", *STEPS, "leave", "fits"):
            return f"{self._called}.{'step' if hook == 'process' else hook}"
        if hook in ("process", "postprocess"):
            return name_of(self.function) if self._class is None else self._noun
        return hook

    def hook_function(self, hook: str) -> Callable[..., Any]:
        if hook == "close" and self._close is not None:
            return self._close
        return self.function if hook == "process" else super().hook_function(hook)

    def preprocess(self, input_dicts: dict[str, Feed], data_id: int = 0, log_id: int = 0) -> Any:
        """The inputs unchanged: dicts of dicts, which are never joined with another request's."""
        if len(input_dicts) < len(self._input_ops):
            got = " and ".join(input_dicts)
            raise NotProvided(f"op {self.name!r} got the dict of {got} only, not of all its inputs")
        return input_dicts

    def _with_caller(
        self,
        input_dicts: dict[str, Feed],
        data_id: int = 0,
        log_id: int = 0,
        *,
        caller: Caller | None = None,
    ) -> Any:
        return {**FunctionOp.preprocess(self, input_dicts), _CALLER: caller}

    def postprocess(
        self, input_data: dict[str, Feed], fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        """The function's result for this request, or the product error that it declares."""
        if not self.batched:
            return fetch_data
        (result,) = fetch_data[_RESULTS]
        value = self._read(result)
        if isinstance(value, RequestError):
            raise value
        return value

    def _process_batch(self, feed_batch: list[Feed], typical_logid: int = 0) -> Any:
        return self._results(self._call_batch(feed_batch), len(feed_batch))

    async def _await_batch(self, feed_batch: list[Feed], typical_logid: int = 0) -> Any:
        return self._results(await self._call_batch(feed_batch), len(feed_batch))

    def _results(self, results: Any, size: int) -> Feed:
        return {_RESULTS: read_results(self, results, size, "dict")}

    def _call_batch(self, feed_batch: list[Feed]) -> Any:
        if self.caller_parameter is None:
            return self.function(*_lists(feed_batch))
        *inputs, callers = _lists(feed_batch)
        return self.function(*inputs, **{self.caller_parameter.name: callers})

    def _call(self, feed: Feed) -> Any:
        if self.caller_parameter is None:
            return self.function(*feed.values())
        *inputs, caller = feed.values()
        return self.function(*inputs, **{self.caller_parameter.name: caller})

    def process(self, feed_batch: list[Feed], typical_logid: int = 0) -> Any:
        """The function's result, or the product error that it declares."""
        return self._read(self._call(feed_batch[0]))

    async def _await_function(self, feed_batch: list[Feed], typical_logid: int = 0) -> Any:
        return self._read(await self._call(feed_batch[0]))

    def _pieces(
        self, feed_batch: list[Feed], typical_logid: int = 0
    ) -> Iterator[Feed | RequestError]:
        with closing(self._call(feed_batch[0])) as pieces:
            for each in pieces:
                yield self._read(each)

    async def _pieces_async(
        self, feed_batch: list[Feed], typical_logid: int = 0
    ) -> AsyncIterator[Feed | RequestError]:
        async with aclosing(self._call(feed_batch[0])) as pieces:
            async for each in pieces:
                yield self._read(each)

    def _read(self, result: Any) -> Feed | RequestError:
        if isinstance(result, dict):
            return result
        if isinstance(result, tuple) and len(result) == 3:
            value, number, text = result
            if number is not None:
                return product_error(number, text)
            if isinstance(value, dict):
                return value
        verb = "yield dicts" if self.streams else "return a dict"
        raise TypeError(f"{self.name} must {verb}, got {type_instead(result, may_yield=True)}")


def op(
    *inputs: Op,
    name: str | None = None,
    batch: int | None = None,
    wait: float | None = None,
    workers: int | None = None,
    executor: str | None = None,
    timeout: float | None = None,
    retry: int | None = None,
    seats: int | None = None,
    **options: Any,
) -> Callable[..., FunctionOp]:
    """Make an op of a function, which gets the output dict of each input op, in order.

    Or of a class, whose method ``predict`` or ``inference`` is that function. Each worker makes one
    object, and calls its ``load`` once, if it has one, and its ``close`` at the end; ``load`` and
    the function may be ``async def``.

    Args:
        inputs: the input ops; none means the request.
        name: the op's name; the function's by default.
        batch: the most requests in one call; the function then takes a list of dicts for each
            input, and returns a list of dicts, also with ``batch=1``: lists of one. None: one call
            for each request, with dicts.
        wait: milliseconds that a request waits for its batch to fill; by default 0: the requests
            that arrived while the workers were busy are the next batch.
        workers: number of threads or processes that run it; of an ``async def`` function, the most
            calls in flight, by default 64 without ``batch``. Of any other one by default 1.
        executor: ``thread`` (the default), ``process``, ``inline``, or ``external`` with the path
            of a ``socket``.
        timeout: seconds for one call; by default no limit.
        retry: attempts in all, repeated after a timeout.
        seats: for a class with ``join`` and ``step``: the number of requests that each worker runs
            at once. ``join`` gets the dicts, and ``step`` makes dicts.
        options: other parameters of ``Op``, and keys of an op's configuration, such as
            ``memory_limit_mib``.

    The function returns a dict, or ``(dict, number, text)`` to end the request with a product
    error (``{}, 51, "no cat"``). That of a graph's last op may yield such values instead: then its
    answers come in pieces.

    Raises:
        GraphError: an input is no op, or an option is unknown.
        HookError: the function does not take one argument for each input, or yields and has
            ``batch``; a class has no such method.
        ConfigError: ``timeout`` is no number of seconds.
    """
    own = {
        "wait": wait,
        "workers": workers,
        "executor": executor,
        "timeout": timeout,
        "retry": retry,
        "seats": seats,
    }
    for source in inputs:
        if not isinstance(source, Op):
            raise GraphError(
                f"op(...) is given the ops before it, got {source!r}: above a function that "
                f"reads the request, write @op(), with brackets"
            )

    def decorate(function: Callable[..., Any]) -> FunctionOp:
        problem = uncallable(function)
        if problem is not None:
            raise HookError(problem)
        return FunctionOp(function, inputs, batch, name=name, **own, **options)

    return decorate


def _method_of(target: type) -> str:
    """The method of a class that is called with the requests.

    Raises:
        HookError: there is none, or a step around it, which only routes have.
    """
    for each in ("preprocess", "postprocess"):
        if hasattr(target, each):
            raise HookError(
                f"{target.__name__}.{each} would not run: make an op of its own of it, or call it"
                " in predict"
            )
    return method_of(target, ("predict", "inference"))


def _read(name: str, options: Mapping[str, Any]) -> words.Given:
    """Read the options of one op.

    Raises:
        GraphError: one of them is unknown.
        ConfigError: see ``words.read``.
    """
    for option in options:
        problem = words.unknown(option)
        if problem is not None:
            if option in _INPUTS:
                problem = ": the ops before it are given without a name"
            raise GraphError(f"op {name!r}: unexpected option {option}{problem}")
    return words.read(f"op {name!r}", options)


_INPUTS = ("input_ops", "inputs")
