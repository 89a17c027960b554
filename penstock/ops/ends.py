"""RequestOp and ResponseOp, the two ends of a graph: wire messages to dicts, dicts to replies.

Users may override ``unpack_request_package`` and ``pack_response_package``; the defaults read and
write plain records without building protobuf messages. Source:
``docs/compatibility.md`` (request and response ops).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar, TypeAlias

import numpy as np
from google.protobuf.message import Message

from penstock.errors import (
    GraphError,
    HookFailed,
    PackageError,
    RequestError,
    WrongType,
    text_of,
)
from penstock.ops.channel_data import ChannelData
from penstock.ops.failures import HOOK_FAULTS, raised_by, short_text_of
from penstock.ops.hooks import bind, overrides
from penstock.ops.op import Op
from penstock.ops.product import CustomException, declared_error, product_error
from penstock.protocols import paddle, pb, tensors
from penstock.protocols.status import err_no_of
from penstock.request import REQUEST_OP_NAME, Feed, Outcome

_log = logging.getLogger(__name__)

_SHOWN = 32  # keys of an output in one line of the log, and letters of each

Unpacked: TypeAlias = tuple[Feed, int, RequestError | None]


class RequestOp(Op):
    """The graph's root: turns a request into the first dict.

    ``unpack_request_package`` may run for several requests at once, in several threads.

    Attributes:
        message_class: the class of its messages: ``Request`` with fields of one's own, generated
            by protobuf from a copy of the original's file.
    """

    message_class: ClassVar[type[Message]] = pb.Request

    def __init__(self) -> None:
        super().__init__(name=REQUEST_OP_NAME)

    def unpack_request_package(self, request: Any) -> Any:
        """Make the request's dict.

        Args:
            request: a ``message_class`` (or a record with the same fields).

        Returns:
            the dict, or the tuple ``(dict, log_id, prod_errcode, prod_errinfo)``; a log id of None
            is the request's own.

        Raises:
            PackageError: the pairs or tensors are invalid.
            ValueError: ``request`` is None.
        """
        if request is None:
            raise ValueError("request is None")
        feed, _ = paddle.unpack(request)
        return feed, request.logid, None, ""

    def proto_tensor_2_numpy(self, tensor: pb.Tensor) -> tuple[Any, np.ndarray[Any, Any] | None]:
        """A wire tensor's value, and its lod or None.

        Raises:
            PackageError: its parts contradict each other.
        """
        return tensors.decode(tensor)


class ResponseOp(Op):
    """The graph's end: turns the last op's dict into a reply.

    Args:
        input_ops: exactly one op.

    ``pack_response_package`` may run for several requests at once, in several threads.

    Attributes:
        message_class: the class of its messages: ``Response`` with fields of one's own.
    """

    message_class: ClassVar[type[Message]] = pb.Response

    def __init__(self, input_ops: Op | Sequence[Op]) -> None:
        super().__init__(name=REQUEST_OP_NAME, input_ops=input_ops)
        self.only_input()
        self.is_tensor_format = False

    def only_input(self) -> Op:
        """The op whose output is the reply.

        Raises:
            GraphError: there is not exactly one.
        """
        inputs = self.get_input_ops()
        if not inputs:
            raise GraphError(
                "the ResponseOp has 0 inputs, but takes exactly one: give it input_ops=[last_op]"
            )
        if len(inputs) > 1:
            raise GraphError(
                f"the ResponseOp has {len(inputs)} inputs, "
                f"{', '.join(repr(op.name) for op in inputs)}, but takes exactly one: "
                f"put an op before it that combines them"
            )
        return inputs[0]

    def set_pack_format(self, isTensor: bool = False) -> None:
        """Whether replies carry typed tensors instead of text pairs."""
        self.is_tensor_format = isTensor

    def pack_response_package(self, channeldata: ChannelData) -> Any:
        """Make the reply message, a ``message_class``, from a value or an error."""
        made = self._message(channeldata)
        kind = self.message_class
        return made if kind is pb.Response else kind.FromString(made.SerializeToString())

    def _message(self, channeldata: ChannelData) -> pb.Response:
        if channeldata.error_code:
            product = channeldata.prod_error_code
            if product is not None:
                return pb.Response(err_no=product, err_msg=channeldata.prod_error_info)
            return pb.Response(err_no=channeldata.error_code, err_msg=channeldata.error_info)
        reply = self._default_reply(channeldata.parse(), channeldata.typed)
        return pb.Response(
            err_no=reply.err_no,
            err_msg=reply.err_msg,
            key=reply.key,
            value=reply.value,
            tensors=[tensor.message() for tensor in reply.tensors],
        )

    def _default_reply(self, value: Feed, typed: bool) -> paddle.Reply:
        """The default reply; ``typed``: the request had tensors."""
        alone = self.is_tensor_format
        op = self.get_input_ops()[0].name
        return paddle.pack(value, typed=typed or alone, keep_text=not alone, op=op)


def problem_of_messages(op: RequestOp | ResponseOp) -> str | None:
    """Why a ``message_class`` cannot be used; None if it can."""
    ours = pb.Request if isinstance(op, RequestOp) else pb.Response
    given: Any = op.message_class
    where = f"{type(op).__name__}.message_class"
    if not isinstance(given, type) or not issubclass(given, Message):
        return f"{where} must be a class that protobuf generated, got {given!r}"
    different = _difference(ours.DESCRIPTOR, given.DESCRIPTOR)
    if different is None:
        return None
    return (
        f"{where}: {different} must be as in the {ours.DESCRIPTOR.name} of pipeline_service.proto"
    )


def _difference(ours: Any, theirs: Any) -> str | None:
    """The first field of a descriptor that the other one lacks, or has with another number or
    type.
    """
    for field in ours.fields:
        other = theirs.fields_by_number.get(field.number)
        where = f"{theirs.full_name}.{field.name} = {field.number}"
        if other is None or (other.name, other.type, other.is_repeated) != (
            field.name,
            field.type,
            field.is_repeated,
        ):
            return where
        if field.message_type is not None:
            inner = _difference(field.message_type, other.message_type)
            if inner is not None:
                return inner
    return None


class Ends:
    """Both ends of one service, with the user's hooks bound, or the faster defaults.

    Attributes:
        blocking_unpack, blocking_pack: user code runs there, which may block and must not run on
            the loop.
        own_fields: names, in protobuf and in JSON, of the fields that the service has added to
            ``Request``.
    """

    def __init__(self, request_op: RequestOp, response_op: ResponseOp) -> None:
        self._response_op = response_op
        self._request_class = request_op.message_class
        self.own_fields = frozenset(
            name
            for field in request_op.message_class.DESCRIPTOR.fields
            if field.number not in pb.Request.DESCRIPTOR.fields_by_number
            for name in (field.name, field.json_name)
        )
        self._unpack = self._pack = None
        if overrides(request_op, "unpack_request_package", RequestOp):
            self._unpack = bind(request_op, "unpack_request_package")
        if overrides(response_op, "pack_response_package", ResponseOp):
            self._pack = bind(response_op, "pack_response_package")
        self.blocking_unpack = self._unpack is not None
        self.blocking_pack = self._pack is not None

    def unpack(self, call: paddle.Call) -> Unpacked:
        """The request's dict, its log id, and the error that ends it at once, if any.

        Never raises: every error is the third value.
        """
        if self._unpack is None:
            try:
                feed, _ = paddle.unpack(call)
            except RequestError as error:
                return {}, call.logid, _rpc_package_error(error)
            return feed, call.logid, None
        try:
            message = call.message(self._request_class)
        except RequestError as error:
            return {}, call.logid, _rpc_package_error(error)
        try:
            return _read_unpacked(self._unpack(message), call.logid)
        except HOOK_FAULTS as error:
            return {}, call.logid, _end_failed("unpack_request_package", error, call.logid)

    def reply_size(self, value: Feed, typed: bool) -> int:
        """An estimate of the bytes of the default reply."""
        only_tensors = self._response_op.is_tensor_format
        return paddle.reply_size(value, typed=typed or only_tensors, keep_text=not only_tensors)

    def pack(self, outcome: Outcome, data_id: int, log_id: int, typed: bool) -> Any:
        """The reply to a request: a ``Reply``, or a message.

        Args:
            outcome: the graph's result.
            data_id: the request's id.
            log_id: the caller's trace id.
            typed: whether the request had tensors, so that the reply has them too.
        """
        if self._pack is None:
            error = outcome.error
            if error is not None:
                return error_reply(error)
            value = outcome.value or {}
            try:
                reply = self._response_op._default_reply(value, typed)
                if reply.err_no:
                    _log.warning("%s (data_id=%s log_id=%s)", reply.err_msg, data_id, log_id)
                return reply
            except HOOK_FAULTS as failure:  # a value's repr may raise anything
                _log.warning(
                    "op %s: its output %s cannot be packed (data_id=%s log_id=%s)",
                    self._response_op.only_input().name, _keys(value), data_id, log_id,
                    exc_info=failure,
                )  # fmt: skip
                return error_reply(_rpc_package_error(failure))
        given: Any
        try:
            given = self._pack(ChannelData(outcome, data_id, log_id, typed=typed))
        except HOOK_FAULTS as failure:
            return error_reply(_end_failed("pack_response_package", failure, log_id))
        if not isinstance(given, pb.Response | self._response_op.message_class):
            text = f"pack_response_package must give a Response, got {type(given).__name__}"
            _log.warning("%s (log_id=%s)", text, log_id)
            return error_reply(WrongType(text))
        return given


def _keys(value: Feed) -> str:
    names = [repr(key)[:_SHOWN] for key in value]
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def error_reply(error: RequestError) -> paddle.Reply:
    """A reply with the error's number and text only."""
    return paddle.Reply(err_no=err_no_of(error), err_msg=text_of(error))


def _read_unpacked(given: Any, log_id: Any) -> Unpacked:
    """Read the result of a user's ``unpack_request_package``: a dict, or the tuple of four.

    A log id of None is the request's own.

    Raises:
        TypeError: it is neither, or its log id is no number.
    """
    failure: RequestError | None = None
    if isinstance(given, tuple) and len(given) == 4:
        given, own_log_id, number, text = given
        log_id = log_id if own_log_id is None else own_log_id
        if number is not None:
            failure = product_error(number, text)
    if not isinstance(log_id, Integral):
        raise TypeError(
            f"the log_id of unpack_request_package must be an int, got {type(log_id).__name__}"
        )
    if failure is None and not isinstance(given, dict):
        raise TypeError(f"unpack_request_package must give a dict, got {_kind(given)}")
    return (given if isinstance(given, dict) else {}), int(log_id), failure


def _kind(given: Any) -> str:
    return f"a tuple of {len(given)}" if isinstance(given, tuple) else type(given).__name__


def _end_failed(hook: str, error: BaseException, log_id: int) -> RequestError:
    """The error for an exception of a user's hook at one of the graph's ends."""
    level = logging.INFO if isinstance(error, CustomException) else logging.WARNING
    _log.log(level, "%s raised (log_id=%s)", hook, log_id, exc_info=error)
    if isinstance(error, CustomException):
        try:
            return declared_error(error, error.message)
        except HOOK_FAULTS as fault:  # a user's subclass that breaks its base class
            error = fault
    failed = _rpc_package_error(error)
    failed.raised = raised_by("", error)
    return failed


def _rpc_package_error(error: BaseException) -> RequestError:
    if isinstance(error, RequestError):
        error.forget_origin()  # the call may keep it
        if not isinstance(error, PackageError | HookFailed):
            return error
    return PackageError(f"rpc package error: {short_text_of(error)}")
