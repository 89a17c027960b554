"""Errors that an op declares: product errors, and CustomException.

Source: ``docs/compatibility.md`` (product errors, CustomException).
"""

from __future__ import annotations

import logging
from enum import Enum
from numbers import Integral
from typing import Any

from penstock.errors import INT32, DeclaredError, HookFailed, ProductError, RequestError
from penstock.protocols.status import CustomExceptionCode

_log = logging.getLogger(__name__)

RESERVED = range(3000, 10001)
"""Numbers of the framework's errors; a product error may not use them, nor 0."""
RECOMMENDED = range(50, 1000)

_MOST_ADVISED = 16
_advised: set[int] = set()


class ProductErrCode(Enum):
    """Derive from it to name business errors: ``class Errors(ProductErrCode): NO_CAT = 51``."""


class CustomException(Exception):
    """Raised in a hook to end the sample with a framework error number.

    Args:
        code: a member of ``CustomExceptionCode``, or its number; not OK.
        message: shown to the caller only with ``isSendToUser``; else it goes to the log.
        isSendToUser: False answers 10000 with a generic text.

    Raises:
        ValueError: ``code`` is no error of the framework; return a product's own number from the
            hook instead.
    """

    def __init__(
        self,
        code: CustomExceptionCode | int,
        message: str,
        isSendToUser: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = CustomExceptionCode(code)
        if self.code is CustomExceptionCode.OK:
            raise ValueError("CustomExceptionCode.OK is no error")
        self.message = str(message)
        self.send_to_user = isSendToUser


def product_error(number: Any, text: Any) -> RequestError:
    """The error for a ``prod_errcode`` that a hook returned.

    Args:
        number: an int, an Enum member with an int value, or one whose value is a 1-tuple of int
            (what a trailing comma in the enum makes of it).
        text: becomes the reply's ``err_msg``.

    Returns:
        a ProductError; or HookFailed if the number is invalid or reserved.
    """
    value = number.value if isinstance(number, Enum) else number
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, Integral):
        return HookFailed(f"a product error number must be an int, got {type(number).__name__}")
    value = int(value)
    if value == 0 or value in RESERVED or value not in INT32:
        return HookFailed(
            f"product error number {value} cannot be used: give an int32 but 0 and 3000 to 10000"
        )
    if value not in RECOMMENDED:
        _advise(value)
    return ProductError(value, "" if text is None else str(text))


def _advise(number: int) -> None:
    """Log once for each of the first few numbers that it is unusual."""
    if number not in _advised and len(_advised) < _MOST_ADVISED:
        _advised.add(number)
        _log.warning("product error number %s: numbers from 50 to 999 are recommended", number)


def declared_error(error: CustomException, text: str) -> RequestError:
    """The error for a CustomException raised in a hook; ``text`` is for its caller."""
    if not error.send_to_user:
        return HookFailed("the op failed; the server's log has the details")
    return DeclaredError(error.code.value, text)
