"""What callers read when they are refused: in the form of each protocol, with the header fields
that the error adds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.api import errors, general_model, oip_call
from penstock.api.baidu_std import BaiduStd
from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.http import Http, HttpCall
from penstock.api.router import Router
from penstock.client.errors import CallFailed
from penstock.client.http1 import outcome_of
from penstock.client.http_answer import read_head
from penstock.client.routing import Attempts
from penstock.door.limits import DoorLimits
from penstock.errors import (
    HttpError,
    PermissionDenied,
    RequestError,
    ServiceBusy,
    ServiceClosed,
    TooManyRequests,
    Unauthenticated,
    WorkerDied,
)
from penstock.protocols.status import BrpcCode, brpc_code_of
from tests.api.recorded_exchange import RecordedExchange, grpc_head, post
from tests.api.test_admission import SIZE, Doorkeeper, by_baidu_std, tell
from tests.services.door import Site

FORMS: dict[str, Callable[[HttpCall, RequestError], None]] = {
    "typed": errors.failed,
    "oip": oip_call.failed,
    "general model": general_model._failed,
    "pipeline": HttpCall.fail_with,
}
CHALLENGE = (b"www-authenticate", b'Bearer realm="a"')
REFUSALS: list[tuple[RequestError, int, tuple[bytes, bytes] | None]] = [
    (Unauthenticated("no key", 'Bearer realm="a"'), 401, CHALLENGE),
    (PermissionDenied("no scope"), 403, None),
    (TooManyRequests("slow down", 2.1), 429, (b"retry-after", b"3")),
]


class Refuses(Doorkeeper):
    def __init__(self, error: RequestError) -> None:
        super().__init__()
        self.error = error

    def admit(self, route: object, exchange: object) -> str:
        raise self.error


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("error", "status", "field"), REFUSALS)
def test_a_refusal_has_its_status_and_fields_in_every_form(
    form: str, error: RequestError, status: int, field: tuple[bytes, bytes] | None
) -> None:
    route = Http("POST", "/tell", tell, failed=FORMS[form])
    router = Router([route], max_message_bytes=SIZE, admission=Refuses(error))
    exchange = RecordedExchange(post("/tell", length=3), whole=b"abc")
    assert router.begin(exchange) is None
    [(given, headers, body, _)] = exchange.replies
    assert given == status
    assert str(error).encode() in body
    added = [each for each in headers if each[0] in (b"www-authenticate", b"retry-after")]
    assert added == ([field] if field is not None else [])


def _cut() -> ServiceClosed:
    error = ServiceClosed("dag closed.")
    error.admitted = True
    return error


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (ServiceBusy("full"), True),
        (ServiceClosed("the service is shutting down"), True),
        (_cut(), False),
        (WorkerDied("died"), False),
        (HttpError(503, "later"), False),
    ],
)
def test_a_model_server_s_clients_repeat_what_has_not_run(
    error: RequestError, refused: bool
) -> None:
    """What has run may only be repeated if its caller says so."""
    reply = oip_call.error_reply(error)
    lines = b"".join(b"%b: %b\r\n" % each for each in reply.headers)
    head = read_head(b"HTTP/1.1 %d X\r\n%b\r\n" % (reply.status, lines))
    assert head is not None
    failed = outcome_of(head, bytes(reply.body))
    assert isinstance(failed, CallFailed)
    once = Attempts(3, None, idempotent=False)
    assert once.repeatable(failed) == refused
    assert (brpc_code_of(error) in (BrpcCode.ELIMIT, BrpcCode.ELOGOFF)) == refused
    assert Attempts(3, None, idempotent=True).repeatable(failed)


@pytest.mark.parametrize(
    ("error", "code", "field"),
    [
        (REFUSALS[0][0], b"16", CHALLENGE),
        (REFUSALS[1][0], b"7", None),
        (REFUSALS[2][0], b"8", (b"grpc-retry-pushback-ms", b"2100")),
        (ServiceBusy("full"), b"8", (b"grpc-retry-pushback-ms", b"1000")),
    ],
)
def test_a_refusal_over_grpc_has_its_status_and_metadata(
    error: RequestError, code: bytes, field: tuple[bytes, bytes] | None
) -> None:
    method = Grpc("/a.B/Tell", tell, failed=GrpcCall.fail_with)
    router = Router([method], max_message_bytes=SIZE, admission=Refuses(error))
    exchange = RecordedExchange(grpc_head("/a.B/Tell"))
    assert router.begin(exchange) is None
    [(_, headers, _, _)] = exchange.replies
    assert dict(headers)[b"grpc-status"] == code
    assert field is None or field in headers


@pytest.mark.parametrize(
    ("error", "code"), [(REFUSALS[0][0], 1004), (REFUSALS[1][0], 1004), (REFUSALS[2][0], 2004)]
)
def test_a_refusal_over_baidu_std_has_its_code(error: RequestError, code: int) -> None:
    router = Router(
        [BaiduStd("a.B", "Tell", tell)], max_message_bytes=SIZE, admission=Refuses(error)
    )
    site = Site(asyncio.new_event_loop, DoorLimits(), application=router)
    try:
        assert by_baidu_std(site.port, b"abc") == (code, str(error))
    finally:
        site.close()
