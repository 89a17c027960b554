"""Calls whose answer is made by a task of their own."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.api.call import Call
from penstock.errors import RequestError
from penstock.protocols.heads import Headers
from penstock.protocols.status import GrpcCode
from tests.api.recorded_exchange import RecordedExchange, grpc_head


class _Call(Call):
    """Records how it fails."""

    __slots__ = ("failures",)

    is_grpc = True
    label = "m"

    def __init__(self) -> None:
        self.exchange = RecordedExchange(grpc_head("/m"))
        self.failures: list[tuple[GrpcCode, str]] = []

    def fail(self, code: GrpcCode, text: str, metadata: Headers = ()) -> None:
        self.failures.append((code, text))

    def fail_with(self, error: RequestError) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError


async def test_a_call_whose_task_raises_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def raises() -> None:
        raise ValueError("a bug")

    call = _Call()
    await asyncio.wait([call.aside(raises())])
    await asyncio.sleep(0)
    assert call.failures == [(GrpcCode.INTERNAL, "internal error")]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert isinstance(record.exc_info, tuple)
    assert str(record.exc_info[1]) == "a bug"


async def test_a_caller_that_has_left_gets_no_error_of_its_task() -> None:
    call = _Call()
    task = call.aside(asyncio.sleep(60))
    await asyncio.sleep(0)
    call.stop()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert call.failures == []
