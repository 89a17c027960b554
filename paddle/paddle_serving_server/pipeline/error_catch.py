"""Errors that ops raise on purpose."""

from typing import Any

from penstock import CustomException, CustomExceptionCode, ProductErrCode
from penstock_paddle import refuse_name

__all__ = ["CustomException", "CustomExceptionCode", "ProductErrCode"]

_MISSING = dict.fromkeys(
    ("ErrorCatch", "ParamChecker", "ParamVerify"),
    "raise CustomException in a hook, and check arguments with Python's own means",
)


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _MISSING)
