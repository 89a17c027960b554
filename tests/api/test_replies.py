"""The size of large replies."""

from __future__ import annotations

import numpy as np

from penstock import Op, RequestOp, ResponseOp
from penstock.ops.ends import Ends
from penstock.protocols import paddle, paddle_message
from penstock.request import Outcome

LARGE = Outcome({"y": np.arange(5000.0)})


def response_op() -> ResponseOp:
    return ResponseOp(input_ops=[Op("work", input_ops=[RequestOp()])])


def test_the_size_of_a_reply_is_estimated_before_it_is_written() -> None:
    response = response_op()
    ends = Ends(RequestOp(), response)
    for array in (np.arange(5000.0) - 7, np.arange(5000, dtype=np.int8), np.arange(5000) > 7):
        value = {"y": array}
        size = len(paddle_message.encode(paddle.pack(value, typed=False, keep_text=True)))
        assert size / 2 < ends.reply_size(value, False) < 4 * size
        assert ends.reply_size(value, True) > ends.reply_size(value, False)
    response.set_pack_format(isTensor=True)
    assert ends.reply_size(LARGE.value or {}, False) == 40_000


def test_large_arrays_and_long_texts_count_as_slow_to_write() -> None:
    assert paddle.takes_long(LARGE.value)
    assert paddle.takes_long({"y": "x" * 300_000})
    assert not paddle.takes_long({"y": np.arange(50.0), "z": "x" * 1000})
