"""Transforms of detectors, which also return the image's size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_serving_app.reader import (
    DetectionBGR2RGB,
    DetectionFile2Image,
    DetectionNormalize,
    DetectionPadStride,
    DetectionResize,
    DetectionSequential,
    DetectionTranspose,
)

SIDES = st.integers(1, 300)


def test_a_detectors_chain_of_transforms(tmp_path: Path) -> None:
    # 60 rows of 100 blue-first pixels of one colour, so that resizing does not mix any.
    cv2.imwrite(str(tmp_path / "a.png"), np.full((60, 100, 3), (0, 51, 255), dtype=np.uint8))
    preprocess = DetectionSequential(
        [
            DetectionFile2Image(),
            DetectionResize((90, 120), True, interpolation=2),
            DetectionNormalize([0.5, 0.5, 0.5], [0.5, 0.25, 0.5], True),
            DetectionTranspose((2, 0, 1)),
            DetectionPadStride(32),
        ]
    )
    im, info = preprocess(tmp_path / "a.png")
    # The short side would be 90 at a factor of 1.5, where the long one is 150: so 120, by 1.2.
    assert info is not None
    assert {name: (value.dtype, value.tolist()) for name, value in info.items()} == {
        "im_shape": (np.float32, [72, 120]),
        "scale_factor": (np.float32, [np.float32(1.2)] * 2),
    }
    assert im.shape == (3, 96, 128)
    assert im.dtype == np.float32
    # Red first: 255, 51 and 0 are 1, 0.2 and 0 before the mean is taken off.
    assert im[:, :72, :120].max(axis=(1, 2)).tolist() == pytest.approx([1, -1.2, -1], abs=1e-6)
    assert im[:, :72, :120].min(axis=(1, 2)).tolist() == pytest.approx([1, -1.2, -1], abs=1e-6)
    assert not im[:, 72:].any()
    assert not im[:, :, 120:].any()


@given(SIDES, SIDES, SIDES, SIDES)
def test_without_keep_ratio_the_size_is_height_and_width(
    h: int, w: int, new_h: int, new_w: int
) -> None:
    im, info = DetectionResize((new_h, new_w), False)(np.zeros((h, w, 3), np.uint8), {"a": 1})
    assert im.shape == (new_h, new_w, 3)
    assert info is not None
    assert info["a"] == 1
    assert info["im_shape"].tolist() == [new_h, new_w]
    assert info["scale_factor"].tolist() == [np.float32(new_h / h), np.float32(new_w / w)]


@given(SIDES, SIDES, st.integers(100, 200), st.integers(200, 400))
def test_with_keep_ratio_one_side_has_the_given_size(h: int, w: int, short: int, long: int) -> None:
    if min(h, w) * long < max(h, w):
        return  # the result would have less than a pixel
    im, _ = DetectionResize([short, long])(np.zeros((h, w, 3), np.uint8))
    assert min(im.shape[:2]) == short or max(im.shape[:2]) == long
    assert max(im.shape[:2]) <= long


def test_transforms_change_neither_the_image_nor_the_dict() -> None:
    image = np.full((4, 6, 3), 7, dtype=np.float32)
    image.flags.writeable = False
    info = {"im_shape": None}
    steps: list[Any] = [
        DetectionBGR2RGB(),
        DetectionNormalize([1, 2, 3], [1, 1, 1], is_scale=False),
        DetectionResize(12),
        DetectionTranspose((2, 0, 1)),
        DetectionPadStride(5),
        DetectionPadStride(),
    ]
    for step in steps:
        result, result_info = step(image, info)
        assert isinstance(result, np.ndarray)
        assert result_info is not None
        assert step(image)[1] is None
    assert info == {"im_shape": None}
    assert DetectionNormalize([1, 2, 3], [1, 1, 1], is_scale=False)(image)[0][0, 0].tolist() == [
        6,
        5,
        4,
    ]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: DetectionResize((0, 4)), ValueError, r"DetectionResize takes .* got \(0, 4\)"),
        (lambda: DetectionResize((1, 2, 3)), ValueError, "DetectionResize takes one or two sides"),
        (lambda: DetectionResize(4)(None), TypeError, "DetectionResize takes an array of numbers"),
        (lambda: DetectionResize(1)(np.zeros((2, 5), bool)), ValueError, "does not resize bool"),
        (lambda: DetectionResize(1)(np.zeros((0, 5, 3))), ValueError, "no pixels"),
        (lambda: DetectionNormalize([1], [0]), ValueError, "DetectionNormalize got a deviation"),
        (
            lambda: DetectionNormalize([1], [1])(np.zeros((3, 3, 2))),
            ValueError,
            "DetectionNormalize takes 1 channels",
        ),
        (lambda: DetectionBGR2RGB()(np.zeros(3)), ValueError, "DetectionBGR2RGB takes an array"),
        (lambda: DetectionPadStride(2)(np.zeros(3)), ValueError, "DetectionPadStride takes"),
    ],
)
def test_errors_name_the_transform(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
