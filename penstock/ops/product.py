"""Errors that an op declares itself: business numbers, and CustomException.

Source: ``docs/compatibility.md`` (product errors, CustomException).
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from penstock.errors import DeclaredError, HookFailed, ProductError, RequestError
from penstock.protocols.status import CustomExceptionCode

RESERVED = range(3000, 10001)
"""Numbers of the framework's own errors; a product may not use them, nor 0."""
RECOMMENDED = range(50, 1000)


class ProductErrCode(Enum):
    """Derive from it to name business errors: ``class Errors(ProductErrCode): NO_CAT = 51``."""


class CustomException(Exception):
    """Raised in a hook to end the sample with a framework error number.

    Args:
        code: a member of ``CustomExceptionCode``.
        message: shown to the caller only with ``isSendToUser``; else it goes to the log.
        isSendToUser: False answers 10000 with a generic text.
    """

    def __init__(
        self,
        code: CustomExceptionCode,
        message: str,
        isSendToUser: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.send_to_user = isSendToUser


def product_error(number: Any, text: Any) -> RequestError:
    """The error for a ``prod_errcode`` that a hook returned.

    Args:
        number: an int, an Enum member with an int value, or one whose value is a 1-tuple of int
            (what a trailing comma in the enum makes of it).
        text: becomes the reply's ``err_msg``.

    Returns:
        a ProductError; or HookFailed when the number is none, or is reserved.
    """
    value = number.value if isinstance(number, Enum) else number
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int):
        return HookFailed(f"a product error number must be an int, got {number!r}")
    if value == 0 or value in RESERVED or not -(2**31) <= value < 2**31:
        return HookFailed(
            f"product error number {value} cannot be used: give an int32 but 0 and 3000 to 10000"
        )
    return ProductError(value, "" if text is None else str(text))


def declared_error(error: CustomException, text: str) -> RequestError:
    """The error for a CustomException raised in a hook; ``text`` is what its caller may read."""
    if not error.send_to_user:
        return HookFailed("the op failed; the server's log has the details")
    code = error.code
    return DeclaredError(code.value if isinstance(code, Enum) else int(code), text)
