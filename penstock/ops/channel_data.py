"""ChannelData: one request's value or error, as user code gets it at the end of the graph.

Only ``ResponseOp.pack_response_package`` and ``Op.check_jumping`` get one; inside the graph,
values are Outcomes. Names are the original's.
Source: ``docs/compatibility.md`` (values between ops).
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from penstock.errors import ProductError
from penstock.protocols.status import CustomExceptionCode, err_no_of
from penstock.request import Feed, Outcome


class ChannelDataType(Enum):
    """What a ChannelData holds."""

    DICT = 0
    CHANNEL_NPDATA = 1
    ERROR = 2


class ChannelData:
    """One request's value, or its error.

    Attributes:
        datatype: the number of DICT, CHANNEL_NPDATA or ERROR.
        id: the data id.
        log_id: the caller's trace id.
        error_code: 0, or the framework's number; PRODUCT_ERROR's for a product error.
        error_info: text.
        prod_error_code: the product's own number, or None.
        prod_error_info: text.
        typed: whether the request had tensors, so that the reply has them too; set for
            ``pack_response_package`` only.
    """

    def __init__(self, outcome: Outcome, data_id: int, log_id: int, *, typed: bool = False) -> None:
        self.id = data_id
        self.log_id = log_id
        self.typed = typed
        self.error_code: int = CustomExceptionCode.OK.value
        self.error_info = ""
        self.prod_error_code: int | None = None
        self.prod_error_info = ""
        self.npdata: Feed | None = None
        self.dictdata: Feed | None = None
        error = outcome.error
        if isinstance(error, ProductError):
            self.error_code = CustomExceptionCode.PRODUCT_ERROR.value
            self.prod_error_code = error.number
            self.prod_error_info = str(error)
        elif error is not None:
            self.error_code = err_no_of(error)
            self.error_info = str(error)
        elif is_npdata(outcome.value or {}):
            self.npdata = outcome.value
        else:
            self.dictdata = outcome.value

    @property
    def datatype(self) -> int:
        """The number of its ChannelDataType."""
        if self.error_code:
            return ChannelDataType.ERROR.value
        kind = ChannelDataType.DICT if self.npdata is None else ChannelDataType.CHANNEL_NPDATA
        return kind.value

    def parse(self) -> Feed:
        """The value dict; an empty one for an error."""
        return self.npdata if self.npdata is not None else self.dictdata or {}

    def get_all_data(self) -> str:
        """All fields as one line of text, for logs."""
        return (
            f"type[{ChannelDataType(self.datatype).name}], error_code[{self.error_code}], "
            f"data_id[{self.id}], log_id[{self.log_id}], names{sorted(self.parse())}"
        )


def is_npdata(value: Feed) -> bool:
    """Whether every value is an array, or a list that starts with a text."""
    return all(
        isinstance(item, np.ndarray)
        or (isinstance(item, list) and bool(item) and isinstance(item[0], str))
        for item in value.values()
    )
