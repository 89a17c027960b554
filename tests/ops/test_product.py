from __future__ import annotations

import logging
from enum import Enum
from typing import Any

import pytest

from penstock import CustomException, CustomExceptionCode
from penstock.errors import DeclaredError, HookFailed, ProductError
from penstock.ops import product
from penstock.ops.product import declared_error, product_error


class Errors(Enum):
    NO_CAT = 51
    WITH_COMMA = (52,)
    TEXT = "53"


@pytest.fixture(autouse=True)
def forget_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "_advised", set())


@pytest.mark.parametrize(
    ("number", "sent"), [(51, 51), (Errors.NO_CAT, 51), (Errors.WITH_COMMA, 52), ((54,), 54)]
)
def test_each_accepted_form_of_a_number(number: Any, sent: int) -> None:
    error = product_error(number, "no cat")
    assert isinstance(error, ProductError)
    assert (error.number, str(error)) == (sent, "no cat")


@pytest.mark.parametrize("number", [0, 3000, 10000, 2**31, -(2**31) - 1, True, Errors.TEXT, None])
def test_other_numbers_are_a_failed_hook(number: Any) -> None:
    assert isinstance(product_error(number, "x"), HookFailed)


@pytest.mark.parametrize("number", [2999, 10001, 2**31 - 1, -(2**31), -1, 1])
def test_numbers_around_the_reserved_ones_are_sent(number: int) -> None:
    error = product_error(number, None)
    assert isinstance(error, ProductError)
    assert (error.number, str(error)) == (number, "")


def test_a_number_outside_the_recommended_range_is_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        for number in (50, 999, 100001, 100001, 49):
            product_error(number, "the text")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "product error number 100001",
        "product error number 49",
    ]
    assert "the text" not in caplog.text


def test_a_product_with_many_numbers_warns_a_bounded_number_of_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        for number in range(20_000, 20_100):
            product_error(number, "")
    assert len(caplog.records) == 16


def test_a_custom_exception_has_one_of_the_framework_s_numbers() -> None:
    error = CustomException(CustomExceptionCode.TIMEOUT, "slow", True)
    assert (error.code, error.message, error.send_to_user) == (
        CustomExceptionCode.TIMEOUT,
        "slow",
        True,
    )
    assert CustomException(6000, "slow").code is CustomExceptionCode.TIMEOUT
    assert CustomException(CustomExceptionCode.TIMEOUT, "slow").send_to_user is False


@pytest.mark.parametrize("code", [51, "TIMEOUT", None, 0, CustomExceptionCode.OK])
def test_a_custom_exception_with_another_number_is_a_value_error(code: Any) -> None:
    with pytest.raises(ValueError, match="CustomExceptionCode"):
        CustomException(code, "x")


def test_only_an_exception_for_the_user_is_replied_with_number_and_text() -> None:
    shown = declared_error(CustomException(CustomExceptionCode.TIMEOUT, "x", True), "the text")
    assert isinstance(shown, DeclaredError)
    assert (shown.number, str(shown)) == (6000, "the text")
    hidden = declared_error(CustomException(CustomExceptionCode.TIMEOUT, "x"), "the text")
    assert isinstance(hidden, HookFailed)
    assert "the text" not in str(hidden)
