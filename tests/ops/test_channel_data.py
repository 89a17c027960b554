from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock import ChannelData, ChannelDataType
from penstock.errors import OpTimeout, ProductError
from penstock.ops.channel_data import is_npdata
from penstock.request import Outcome


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, True),
        ({"x": np.ones(1)}, True),
        ({"x": ["a", "b"]}, True),
        ({"x": np.ones(1), "y": "text"}, False),
        ({"x": []}, False),
        ({"x": [1]}, False),
        ({"x": 1}, False),
    ],
)
def test_arrays_and_lists_of_texts_are_npdata(value: dict[str, Any], expected: bool) -> None:
    assert is_npdata(value) is expected
    data = ChannelData(Outcome(value), 1, 2)
    kind = ChannelDataType.CHANNEL_NPDATA if expected else ChannelDataType.DICT
    assert data.datatype == kind.value
    assert data.parse() is value


def test_a_framework_error_has_a_number_and_a_text() -> None:
    data = ChannelData(Outcome(None, OpTimeout("slow")), 1, 2)
    assert (data.error_code, data.error_info, data.prod_error_code) == (6000, "slow", None)
    assert (data.datatype, data.parse(), data.prod_error_info) == (2, {}, "")


def test_a_product_error_keeps_its_own_number_separately() -> None:
    data = ChannelData(Outcome(None, ProductError(51, "no cat")), 1, 2)
    assert (data.error_code, data.error_info) == (50, "")
    assert (data.prod_error_code, data.prod_error_info) == (51, "no cat")


def test_the_log_line_has_names_and_no_values() -> None:
    line = ChannelData(Outcome({"b": "secret", "a": "secret"}), 3, 4).get_all_data()
    assert line == "type[DICT], error_code[0], data_id[3], log_id[4], names['a', 'b']"
