from __future__ import annotations

import pytest

from penstock.protocols.grpc import GrpcError, check_request
from penstock.protocols.heads import HTTP_2, RequestHead
from penstock.protocols.status import GrpcCode

FIELDS = {b"content-type": b"application/grpc", b"te": b"trailers"}


def head(method: str = "POST", path: bytes = b"/a.B/C", **fields: bytes | None) -> RequestHead:
    named = {name.replace("_", "-").encode(): value for name, value in fields.items()}
    headers = tuple((k, v) for k, v in (FIELDS | named).items() if v is not None)
    return RequestHead(method, path, headers, version=HTTP_2, authority=b"x", content_length=None)


def refusal(request: RequestHead) -> GrpcError:
    with pytest.raises(GrpcError) as caught:
        check_request(request)
    return caught.value


def test_a_call_without_timeout_and_encoding_is_accepted() -> None:
    assert check_request(head()) == (None, None)


def test_timeout_and_encoding_of_a_call_are_read() -> None:
    timeout, encoding = check_request(head(grpc_timeout=b"100m", grpc_encoding=b"gzip"))
    assert timeout == pytest.approx(0.1)
    assert encoding == b"gzip"


@pytest.mark.parametrize(
    "kind",
    [b"application/grpc+proto", b"application/grpc;charset=utf-8", b"Application/GRPC ; a=b"],
)
def test_all_grpc_content_types_are_accepted(kind: bytes) -> None:
    check_request(head(content_type=kind))


@pytest.mark.parametrize(
    "kind",
    [None, b"", b"application/json", b"application/grpc-web", b"application/grpc+json"],
)
def test_other_content_types_are_refused(kind: bytes | None) -> None:
    assert refusal(head(content_type=kind)).http == 415


def test_other_http_methods_are_refused() -> None:
    error = refusal(head(method="GET"))
    assert (error.http, error.headers) == (405, ((b"allow", b"POST"),))


@pytest.mark.parametrize("te", [None, b"gzip"])
def test_a_call_through_a_proxy_that_drops_trailers_is_refused(te: bytes | None) -> None:
    assert refusal(head(te=te)).code is GrpcCode.INTERNAL


def test_the_refusal_of_an_unknown_encoding_lists_the_known_ones() -> None:
    error = refusal(head(grpc_encoding=b"snappy"))
    assert error.code is GrpcCode.UNIMPLEMENTED
    assert "identity,gzip" in error.text
    assert error.headers == ((b"grpc-accept-encoding", b"identity,gzip"),)


def test_a_malformed_timeout_is_refused() -> None:
    assert refusal(head(grpc_timeout=b"soon")).code is GrpcCode.INVALID_ARGUMENT
