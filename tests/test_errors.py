"""Errors keep their class, number and text through pickling, replies and ``with_text``."""

import pickle

import pytest

from penstock import errors
from penstock.protocols.status import STATUS, GrpcCode, err_no_of, error_for, status_of


def all_request_errors() -> list[type[errors.RequestError]]:
    found: list[type[errors.RequestError]] = []
    frontier: list[type[errors.RequestError]] = [errors.RequestError]
    while frontier:
        cls = frontier.pop()
        found.append(cls)
        frontier.extend(cls.__subclasses__())
    return [cls for cls in found if cls.__module__ == errors.__name__]


def error_of(cls: type[errors.RequestError]) -> errors.RequestError:
    if issubclass(cls, errors.InvalidInput):
        return cls([{"loc": ["body"], "msg": "words", "type": "wrong"}])
    if issubclass(cls, errors.HttpError):
        return cls(409, "words")
    return cls(77, "words") if issubclass(cls, errors.NumberedError) else cls("words")


@pytest.mark.parametrize("cls", all_request_errors(), ids=lambda cls: cls.__name__)
def test_with_text_keeps_the_class_and_number(cls: type[errors.RequestError]) -> None:
    error = error_of(cls)
    copy = error.with_text("other words")
    assert type(copy) is cls
    assert (str(error), str(copy)) == ("words", "other words")
    assert getattr(copy, "number", None) == getattr(error, "number", None)


@pytest.mark.parametrize("cls", all_request_errors(), ids=lambda cls: cls.__name__)
def test_a_pickled_error_keeps_class_text_and_number(cls: type[errors.RequestError]) -> None:
    error = error_of(cls)
    unpickled = pickle.loads(pickle.dumps(error))
    assert (type(unpickled), str(unpickled), err_no_of(unpickled)) == (
        cls,
        "words",
        err_no_of(error),
    )


@pytest.mark.parametrize("cls", [errors.ProductError, errors.DeclaredError])
def test_a_numbered_error_requires_a_nonzero_int32(cls: type[errors.NumberedError]) -> None:
    for number in (1, -1, 2**31 - 1, -(2**31)):
        assert cls(number, "words").number == number
    for number in (0, 2**31, -(2**31) - 1, 10**30):
        with pytest.raises(ValueError, match="an int32 other than 0"):
            cls(number, "words")
    with pytest.raises(TypeError):
        cls("51", "words")  # type: ignore[arg-type]


def test_with_text_drops_by_client_from_an_exceeded_deadline() -> None:
    assert not errors.DeadlineExceeded("late", by_client=True).with_text("wrapped").by_client


@pytest.mark.parametrize("cls", all_request_errors(), ids=lambda cls: cls.__name__)
def test_every_error_has_a_number_and_a_status(cls: type[errors.RequestError]) -> None:
    error = error_of(cls)
    assert isinstance(err_no_of(error), int)
    assert 400 <= status_of(error).http < 600
    assert status_of(error).grpc != 0


def test_every_error_has_a_code_of_its_own_for_logs_and_metrics() -> None:
    codes = [cls.code for cls in all_request_errors()]
    assert len(set(codes)) == len(codes)


def test_the_client_raises_the_class_of_the_servers_error() -> None:
    for cls, row in STATUS.items():
        if row.transport or cls in (errors.DeclaredError, errors.ProductError):
            continue
        received = error_for(row.err_no.value, "words")
        assert err_no_of(received) == row.err_no.value
        assert isinstance(received, errors.RequestError)
    product = error_for(51, "no cat")
    assert isinstance(product, errors.ProductError)
    assert product.number == 51


@pytest.mark.parametrize("cls", all_request_errors(), ids=lambda cls: cls.__name__)
def test_only_errors_after_which_a_retry_may_succeed_invite_one(
    cls: type[errors.RequestError],
) -> None:
    row = status_of(error_of(cls))
    assert row.retryable == (row.http in (429, 503, 504))
    if row.grpc is GrpcCode.UNAVAILABLE:
        assert row.retryable


def test_a_failure_of_a_model_library_invites_no_retry() -> None:
    failed = status_of(errors.InferenceFailed("indices out of range"))
    assert (failed.err_no.value, failed.http, failed.grpc) == (9000, 500, GrpcCode.INTERNAL)
    for cls in (errors.WorkerDied, errors.NoProcess, errors.Unreachable):
        row = status_of(cls("gone"))
        assert (row.err_no.value, row.http, row.grpc) == (9000, 503, GrpcCode.UNAVAILABLE)
    assert type(error_for(9000, "words")) is errors.InferenceFailed


def test_an_http_error_has_its_status_and_a_near_one_in_other_protocols() -> None:
    wanted = {
        400: (5000, GrpcCode.INVALID_ARGUMENT, False),
        401: (50, GrpcCode.UNAUTHENTICATED, False),
        404: (50, GrpcCode.NOT_FOUND, False),
        409: (50, GrpcCode.ABORTED, False),
        418: (50, GrpcCode.FAILED_PRECONDITION, False),
        429: (3004, GrpcCode.RESOURCE_EXHAUSTED, True),
        500: (10000, GrpcCode.INTERNAL, False),
        503: (10000, GrpcCode.UNAVAILABLE, True),
        599: (10000, GrpcCode.INTERNAL, False),
    }
    for status, (number, grpc, retryable) in wanted.items():
        error = errors.HttpError(status)
        row = status_of(error)
        assert (row.http, err_no_of(error), row.grpc) == (status, number, grpc)
        assert row.retryable == retryable
    assert (errors.HttpError(404).kind, str(errors.HttpError(404))) == ("not_found", "not found")
    for status in (200, 399, 600):
        with pytest.raises(ValueError, match="400 to 599"):
            errors.HttpError(status)
