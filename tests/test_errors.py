"""Errors keep their class, number and words wherever they travel."""

import pickle

import pytest

from penstock import errors
from penstock.protocols.status import STATUS, err_no_of, error_for, status_of


def all_request_errors() -> list[type[errors.RequestError]]:
    found: list[type[errors.RequestError]] = []
    frontier: list[type[errors.RequestError]] = [errors.RequestError]
    while frontier:
        cls = frontier.pop()
        found.append(cls)
        frontier.extend(cls.__subclasses__())
    return [cls for cls in found if cls.__module__ == errors.__name__]


def made(cls: type[errors.RequestError]) -> errors.RequestError:
    if issubclass(cls, errors.InvalidInput):
        return cls([{"loc": ["body"], "msg": "words", "type": "wrong"}])
    return cls(77, "words") if issubclass(cls, errors.NumberedError) else cls("words")


@pytest.mark.parametrize("cls", all_request_errors(), ids=lambda cls: cls.__name__)
def test_other_words_keep_the_error(cls: type[errors.RequestError]) -> None:
    error = made(cls)
    twin = error.with_text("other words")
    assert type(twin) is cls
    assert (str(error), str(twin)) == ("words", "other words")
    assert getattr(twin, "number", None) == getattr(error, "number", None)


@pytest.mark.parametrize("cls", all_request_errors(), ids=lambda cls: cls.__name__)
def test_errors_survive_pickling(cls: type[errors.RequestError]) -> None:
    error = made(cls)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), err_no_of(again)) == (cls, "words", err_no_of(error))


@pytest.mark.parametrize("cls", [errors.ProductError, errors.DeclaredError])
def test_an_error_has_a_number_that_a_reply_can_hold(cls: type[errors.NumberedError]) -> None:
    for number in (1, -1, 2**31 - 1, -(2**31)):
        assert cls(number, "words").number == number
    for number in (0, 2**31, -(2**31) - 1, 10**30):
        with pytest.raises(ValueError, match="an int32 other than 0"):
            cls(number, "words")
    with pytest.raises(TypeError):
        cls("51", "words")  # type: ignore[arg-type]


def test_another_callers_deadline_is_not_our_callers() -> None:
    assert not errors.DeadlineExceeded("late", by_client=True).with_text("wrapped").by_client


@pytest.mark.parametrize("cls", all_request_errors(), ids=lambda cls: cls.__name__)
def test_every_error_has_a_number_and_a_status(cls: type[errors.RequestError]) -> None:
    error = made(cls)
    assert isinstance(err_no_of(error), int)
    assert 400 <= status_of(error).http < 600
    assert status_of(error).grpc != 0


def test_codes_are_unique_so_that_logs_and_metrics_can_tell_them_apart() -> None:
    codes = [cls.code for cls in all_request_errors()]
    assert len(set(codes)) == len(codes)


def test_the_client_gets_the_class_the_server_meant() -> None:
    for cls, row in STATUS.items():
        if row.transport or cls in (errors.DeclaredError, errors.ProductError):
            continue
        got = error_for(row.err_no.value, "words")
        assert err_no_of(got) == row.err_no.value
        assert isinstance(got, errors.RequestError)
    product = error_for(51, "no cat")
    assert isinstance(product, errors.ProductError)
    assert product.number == 51
