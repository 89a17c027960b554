"""Op, the base class of users' ops: its hooks, and the options of its constructor.

An op creates no threads, queues or clients; the service reads its options and runs it in workers.
Names, order of parameters and defaults are the original's. Source:
``docs/compatibility.md`` (the op API).
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, MethodType
from typing import Any, ClassVar, Self

from penstock.batching.decision import Verify
from penstock.batching.rows import Declared
from penstock.errors import GraphError, NotProvided
from penstock.ops.callers import CallerParameter
from penstock.ops.channel_data import ChannelData
from penstock.ops.functions import is_generator
from penstock.ops.seats import SeatHooks
from penstock.ops.words import WORDS, Given
from penstock.request import Feed
from penstock.tensor import DeclaredTensors

_unnamed = itertools.count()


class Op:
    """One node of the graph.

    Args:
        name: unique in the graph; its key in the configuration, and in the inputs of its
            successors.
        input_ops: predecessors; a single op needs no list.
        server_endpoints: addresses of a remote model server.
        client_config: its ``serving_client_conf.prototxt``, or the folder of it.
        client_type: its protocol: ``brpc``, ``grpc`` or ``pipeline_grpc``.
        fetch_list: names of the outputs to fetch; None means all.
        concurrency: number of workers.
        timeout: milliseconds for one ``process`` call; None or <= 0 means no limit.
        retry: attempts of ``process`` in all, repeated after a timeout; 0 means "as configured".
        batch_size: the most requests joined into one batch.
        auto_batching_timeout: milliseconds that the oldest request waits for its batch to fill.
        local_service_handler: a ready LocalServiceHandler.
        jump_to_ops: ops downstream whose place this op's result may take.

    Every option that is None is taken from the configuration, then from its default.

    Threads: after one ``init_op`` each worker gets a shallow copy of the op, so attributes set in
    ``init_op`` are shared by the workers, those set later are private to one. With one worker and
    ``batch_size`` 1 the hooks of one request are never mixed with another's.
    """

    shared_outputs: ClassVar[Sequence[str]] = ()
    """Outputs of ``process`` that are not split: each request of the batch gets the whole value."""

    rows: Declared | None = None
    """The row axes of the inputs and outputs of the op's model, as for the key ``rows``."""

    verify_batches: Verify | None = None
    """The key of this name; None: as configured."""

    examples: Sequence[Feed] = ()
    """Inputs of the model, one dict of arrays for each request, with which ``verify_batches``
    compares batches and single runs; by default they are generated."""

    config_keys: ClassVar[Mapping[str, object]] = {}
    """The op's own keys in its entry of the configuration, with their defaults. A value must have
    the type of its default (bool, int, float, str, list or dict); of None it may have any."""

    config: Mapping[str, Any] = MappingProxyType({})
    """The values of ``config_keys``, in every executor from ``init_op`` on; read-only. Without a
    service the defaults."""

    model_path: Path | None = None
    """The constructor's model, if any."""

    tensors: DeclaredTensors | None = None
    """The inputs and outputs of the op's model as a repository declares them."""

    warmups: Sequence[Feed] = ()
    """Inputs with which the op's model runs each time it is opened, before it gets requests."""

    batch_gives_way: bool = False
    """Whether ``batch_size`` is changed without a warning for a model with a fixed number of rows:
    True if the user has not set the size explicitly."""

    joins_feeds: bool = True
    """Whether ``process`` gets one dict with the joined feeds of the batch; otherwise it gets a
    list of feeds, and returns a dict of lists with an element for each."""

    one_at_a_time: bool = False
    """Whether ``process`` is a function of one request, so that ``batch_size`` can only be 1."""

    seated: bool = False
    """Whether it is a class with seats, whose methods run in the place of ``process``."""

    given: Given | None = None
    """The options of an op of the short form, as its author wrote them; None for other ops."""

    error_statuses: Mapping[type[BaseException], tuple[int, str | None]] = MappingProxyType({})
    """Exceptions of the hooks that end a request with an HTTP status, and the error's code for
    programs (None: that of the status); other exceptions have 500."""

    caller_parameter: CallerParameter | None = None
    """The parameter of the user's function that gets who calls, if the op is made of a function."""

    hooks_block: bool = False
    """Whether ``preprocess`` and ``postprocess`` may take long, so that an op whose ``process`` is
    a coroutine runs them in a thread, not on the loop."""

    def __init__(
        self,
        name: str | None = None,
        input_ops: Op | Sequence[Op] | None = None,
        server_endpoints: Sequence[str] | None = None,
        fetch_list: Sequence[str] | None = None,
        client_config: str | None = None,
        client_type: str | None = None,
        concurrency: int | None = None,
        timeout: int | None = None,
        retry: int = 0,
        batch_size: int | None = None,
        auto_batching_timeout: float | None = None,
        local_service_handler: Any = None,
        jump_to_ops: Op | Sequence[Op] | None = None,
    ) -> None:
        self.name = f"Op{next(_unnamed)}" if name is None else name
        self.server_endpoints = server_endpoints
        self.fetch_list = fetch_list
        self.client_config = client_config
        self.client_type = client_type
        self.concurrency = concurrency
        self.timeout = timeout
        self.retry = retry
        self.batch_size = batch_size
        self.auto_batching_timeout = auto_batching_timeout
        self.local_service_handler = local_service_handler
        self.concurrency_idx: int | None = None
        self.client: Any = None
        self.dynamic_shape_info: Mapping[str, Any] = {}
        self.pack_tensor_format = False
        self._input_ops: list[Op] = []
        self._followers: list[Op] = []
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            raise GraphError(f"an op's name must be printable text, got {name!r}")
        if self.config_keys:
            self.config = self.config_keys
        self.set_input_ops(() if input_ops is None else input_ops)
        self.set_jump_to_ops(() if jump_to_ops is None else jump_to_ops)
        self.set_dynamic_shape_info()

    def __repr__(self) -> str:
        inputs = [op.name for op in self._input_ops]
        return f"<{type(self).__name__} {self.name!r} after {inputs}>"

    def __copy__(self) -> Self:
        """A worker's copy: attribute values are shared, bound methods among them are bound to the
        copy.
        """
        twin = object.__new__(type(self))
        for name, value in vars(self).items():
            if inspect.ismethod(value) and value.__self__ is self:
                # Otherwise it would write one worker's state to the shared object.
                value = MethodType(value.__func__, twin)
            vars(twin)[name] = value
        return twin

    @property
    def with_serving(self) -> bool:
        """Whether the op has a model or a remote server to call."""
        return self.client is not None

    @property
    def is_one_coroutine(self) -> bool:
        """Whether it is an ``async def`` function of one request, whose calls share the event loop.
        Each worker of a class has an object of its own.
        """
        return False

    def word(self, key: str) -> str:
        """What messages call an option: its word if the short form gives it, else its key."""
        by_word = self.given is not None and key in self.given.parameters
        return WORDS.get(key, key) if by_word else key

    def hook_name(self, hook: str) -> str:
        """The name of a hook in messages: the user's function that it runs, if known."""
        return hook

    def hook_function(self, hook: str) -> Callable[..., Any]:
        """The user's function that a hook runs, if known; else the hook."""
        return getattr(self, hook)  # type: ignore[no-any-return]

    @property
    def streams(self) -> bool:
        """Whether ``process`` is a generator, or the op has seats: an answer comes in pieces, and a
        call answers one request.
        """
        return self.seated or is_generator(self.process)

    @property
    def seat_hooks(self) -> SeatHooks | None:
        """The methods of a class with seats, which run in the place of ``process``; after
        ``init_op``.
        """
        return None

    def piece_maker(self, input_data: dict[str, Feed]) -> Callable[[Any], Feed] | None:
        """What makes the pieces of one answer of the values that ``process`` yields, instead of
        ``postprocess``, whose errors its errors count as; None: ``postprocess`` does.

        Args:
            input_data: as of ``postprocess``.
        """
        return None

    @property
    def closes(self) -> bool:
        """Whether ``close`` has work to do."""
        return type(self).close is not Op.close

    @property
    def loads(self) -> bool:
        """Whether ``init_op`` has work to do before the service is ready."""
        return type(self).init_op is not Op.init_op

    # Hooks that users override.

    def init_op(self) -> None:
        """Prepare resources of the hooks; runs once per op (in processes: per worker) before the
        service is ready.
        """

    def close(self) -> Any:
        """Release what ``init_op`` has opened; runs once in each worker that ends regularly, after
        its last batch. May be a coroutine. An exception is logged, and a worker whose ``close``
        does not return in some seconds is abandoned.
        """

    def preprocess(self, input_dicts: dict[str, Feed], data_id: int = 0, log_id: int = 0) -> Any:
        """One request: make the feed of ``process``.

        Args:
            input_dicts: predecessor name to its output dict, which this op may change.
            data_id: the request's id in this service.
            log_id: the caller's trace id.

        Returns:
            a dict (one feed, arrays carry the batch axis), or a list of dicts (a mini-batch), or
            the tuple ``(data, skip, prod_errcode, prod_errinfo)``.
        """
        if len(input_dicts) != 1:
            raise NotProvided("this Op has multiple previous inputs. Please override this func.")
        (feed,) = input_dicts.values()
        return feed, False, None, ""

    def process(self, feed_batch: list[Feed], typical_logid: int = 0) -> Any:
        """One batch: run the model. May be a coroutine, which then runs on the service's loop.

        Args:
            feed_batch: one element, the merged feed, or one piece of a mini-batch.
            typical_logid: the trace id of the batch's first request.

        Returns:
            a dict of results, or the tuple ``(dict, error_code, error_info)``.
        """
        return self.client.predict(
            feed=feed_batch[0], fetch=self.fetch_list, batch=True, log_id=typical_logid
        )

    def postprocess(
        self, input_data: dict[str, Feed], fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        """One request: make the op's output dict.

        Args:
            input_data: the input dicts of ``preprocess``, with its changes.
            fetch_data: this request's part of the result; a list of dicts when ``preprocess``
                returned a list; what ``preprocess`` returned when ``process`` was skipped.
            data_id: as in ``preprocess``.
            log_id: as in ``preprocess``.

        Returns:
            a dict, or the tuple ``(dict, prod_errcode, prod_errinfo)``.
        """
        return (fetch_data if isinstance(fetch_data, dict) else {}), None, ""

    def set_dynamic_shape_info(self) -> None:
        """Set ``self.dynamic_shape_info`` for TensorRT here; runs in the constructor."""

    def check_jumping(self, input_data: dict[int, ChannelData]) -> bool:
        """Whether this batch's results jump over ``jump_to_ops``; data id to its result."""
        return False

    # Accessors for users and the service.

    def get_input_ops(self) -> list[Op]:
        """The predecessors."""
        return list(self._input_ops)

    def set_input_ops(self, ops: Op | Sequence[Op]) -> None:
        """Set the predecessors."""
        inputs = _ops(self, "input_ops", ops)
        for op in self._input_ops:
            op._followers.remove(self)
        self._input_ops = inputs
        for op in inputs:
            op._followers.append(self)

    def get_jump_to_ops(self) -> list[Op]:
        """The ops that this op may jump over."""
        return list(self._jump_to_ops)

    def set_jump_to_ops(self, ops: Op | Sequence[Op]) -> None:
        """Set the ops that this op may jump over."""
        self._jump_to_ops = _ops(self, "jump_to_ops", ops)

    def is_jump_op(self) -> bool:
        """Whether this op may jump at all."""
        return bool(self._jump_to_ops)

    def set_pack_tensor_format(self, is_tensor_format: bool = False) -> None:
        """Whether a remote pipeline is called with typed tensors."""
        self.pack_tensor_format = is_tensor_format

    def followers(self) -> list[Op]:
        """The ops that have this op as an input."""
        return list(self._followers)


def _ops(owner: Op, parameter: str, given: Op | Sequence[Op]) -> list[Op]:
    try:
        ops = [given] if isinstance(given, Op) else list(given)
    except TypeError:
        ops = [given]  # type: ignore[list-item]  # refused below
    for op in ops:
        if not isinstance(op, Op):
            raise GraphError(
                f"op {owner.name!r}: {parameter} holds {op!r}, which is not an Op; "
                f"give it Op objects, such as {parameter}=[read_op]"
            )
    return ops
