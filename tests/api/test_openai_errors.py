"""OpenAI's form of errors."""

from __future__ import annotations

import json

import pytest

from penstock.api.openai_errors import error_reply, refusal
from penstock.errors import (
    DeadlineExceeded,
    HookFailed,
    HttpError,
    InvalidInput,
    KillsWorkers,
    OpTimeout,
    PermissionDenied,
    ProductError,
    RequestError,
    ServiceBusy,
    ServiceClosed,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
    Undecodable,
    UnknownMediaType,
    UnknownService,
    WorkerDied,
    WrongType,
)

INVALID = InvalidInput([{"loc": ["body", "a", 0], "msg": "no", "type": "value_error"}])


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "may_retry"),
    [
        (Undecodable("no"), 400, "invalid_request_error", "undecodable", None),
        (INVALID, 400, "invalid_request_error", "invalid_value", None),
        (Unauthenticated("no"), 401, "invalid_request_error", "invalid_api_key", None),
        (PermissionDenied("no"), 403, "permission_error", "forbidden", None),
        (UnknownService("no"), 404, "invalid_request_error", "model_not_found", None),
        (DeadlineExceeded("no"), 408, "invalid_request_error", "deadline", True),
        (DeadlineExceeded("no", by_client=True), 504, "server_error", "deadline", True),
        (TooLarge("no"), 413, "invalid_request_error", "too_large", None),
        (UnknownMediaType("no"), 415, "invalid_request_error", "unknown_media_type", None),
        (TooManyRequests("no"), 429, "rate_limit_error", "rate_limit_exceeded", True),
        (ServiceBusy("no"), 429, "rate_limit_error", "busy", True),
        (ProductError(7, "no"), 400, "invalid_request_error", "product", None),
        (HookFailed("a secret"), 500, "server_error", "hook_failed", False),
        (WrongType("a secret"), 500, "server_error", "wrong_type", False),
        (KillsWorkers("a secret"), 500, "server_error", "kills_workers", False),
        (OpTimeout("a secret"), 504, "server_error", "op_timeout", True),
        (WorkerDied("a secret"), 503, "server_error", "worker_died", True),
        (ServiceClosed("no"), 503, "server_error", "closed", True),
        (HttpError(409, "no", "taken"), 409, "invalid_request_error", "taken", True),
        (HttpError(502, "no"), 502, "server_error", "bad_gateway", True),
    ],
)
def test_an_error_has_a_status_a_kind_and_a_code(
    error: RequestError, status: int, kind: str, code: str, may_retry: bool | None
) -> None:
    """``may_retry`` is None where clients do not retry by the status."""
    reply = error_reply(error, 7)
    found = json.loads(reply.body)["error"]
    assert (reply.status, found["type"], found["code"]) == (status, kind, code)
    assert "secret" not in found["message"]
    fields = dict(reply.headers)
    assert fields.get(b"x-should-retry") == (b"false" if may_retry is False else None)
    assert (b"retry-after" in fields) == (status in (429, 503))


def test_the_first_fault_is_the_parameter() -> None:
    found = json.loads(error_reply(INVALID).body)["error"]
    assert (found["param"], found["message"]) == ("a.0", "a.0: no")


@pytest.mark.parametrize("status", [400, 405, 408, 414, 415, 429, 431, 500, 503, 504])
def test_a_refusal_has_the_same_form(status: int) -> None:
    reply = refusal(status, "no")
    found = json.loads(reply.body)["error"]
    assert reply.status == status
    assert found.keys() == {"message", "type", "param", "code"}
    assert found["message"] == "no"
    assert (b"retry-after" in dict(reply.headers)) == (status in (429, 503))
