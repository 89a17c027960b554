"""Transforms of one image: small arrays computed by hand, and properties of all others."""

from __future__ import annotations

import base64
from itertools import permutations
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from paddle_serving_app.reader import (
    BGR2RGB,
    RGB2BGR,
    Base64ToImage,
    CenterCrop,
    Div,
    File2Image,
    ImageReader,
    Normalize,
    PadStride,
    Resize,
    ResizeByFactor,
    Sequential,
    Transpose,
    URL2Image,
    functional,
)
from paddle_serving_app.reader.image_reader import String2Image

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SIDES = st.integers(1, 200)


def noise(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(height * 1000 + width).integers(
        0, 256, (height, width, 3), dtype=np.uint8
    )


def png(picture: NDArray[np.uint8]) -> bytes:
    return cv2.imencode(".png", picture)[1].tobytes()


# Bilinear, by hand: pixels stand at their centres, so the four new ones of [0, 100] stand at -0.25,
# 0.25, 0.75 and 1.25 of it, and the two of [0, 100, 50, 150] halfway between two old ones.
@pytest.mark.parametrize(
    ("row", "width", "expected"),
    [([0, 100], 4, [0, 25, 75, 100]), ([0, 100, 50, 150], 2, [50, 100])],
)
def test_resizing_interpolates_between_centres_of_pixels(
    row: list[int], width: int, expected: list[int]
) -> None:
    for dtype in (np.uint8, np.float32):
        picture = np.array([row, row], dtype=dtype)[:, :, np.newaxis]
        resized = Resize((width, 2))(picture)
        assert resized.dtype == dtype
        assert resized[:, :, 0].tolist() == [expected, expected]


def test_interpolation_0_is_bilinear_as_in_the_original_and_others_are_used() -> None:
    picture = np.array([[0, 100], [0, 100]], dtype=np.uint8)
    assert Resize((4, 2), interpolation=cv2.INTER_NEAREST)(picture)[0].tolist() == [0, 25, 75, 100]
    # The mean of all pixels that a new one covers.
    assert Resize((1, 1), interpolation=cv2.INTER_AREA)(picture).tolist() == [[50]]


@given(SIDES, SIDES, st.integers(1, 300), st.integers(1, 300))
def test_a_number_is_the_short_side_within_the_limit_of_the_long_one(
    height: int, width: int, size: int, limit: int
) -> None:
    shape = Resize(size, limit)
    if round(min(height, width) / max(height, width) * limit) == 0:
        return  # refused, below
    new_height, new_width, _ = shape(noise(height, width)).shape
    longest = max(new_height, new_width)
    assert min(new_height, new_width) == size or longest == limit
    assert longest <= max(limit, 1)
    # In proportion, but for the rounding of each side to a whole pixel.
    assert abs(new_height * width - new_width * height) <= (height + width) / 2


@given(SIDES, SIDES, SIDES, SIDES)
def test_a_pair_is_width_and_height(height: int, width: int, new_h: int, new_w: int) -> None:
    assert Resize((new_w, new_h))(noise(height, width)).shape == (new_h, new_w, 3)
    limited = Resize([new_w, new_h], 40)(noise(height, width))
    assert limited.shape == (min(new_h, 40), min(new_w, 40), 3)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(32, 200))
def test_resizing_by_a_factor_gives_multiples_within_the_original_size(
    height: int, width: int, limit: int
) -> None:
    ratio = min(1, limit / max(height, width))
    if int(height * ratio) == 0 or int(width * ratio) == 0:
        return  # refused, below
    shape = ResizeByFactor(32, limit)(noise(height, width)).shape
    for new, old in zip(shape[:2], (height, width), strict=True):
        assert new % 32 == 0
        assert new == 32 or old * ratio - 64 < new <= old * ratio


@pytest.mark.parametrize(
    ("side", "expected"), [(31, 32), (32, 32), (63, 32), (64, 64), (65, 32), (96, 96), (127, 64)]
)
def test_a_side_that_is_no_multiple_is_reduced_by_one_more_factor(side: int, expected: int) -> None:
    assert ResizeByFactor()(noise(side, 64)).shape == (expected, 64, 3)
    assert ResizeByFactor()(noise(64, side)).shape == (64, expected, 3)


def test_the_height_is_a_multiple_of_32_with_another_factor() -> None:
    assert ResizeByFactor(16)(noise(100, 100)).shape == (64, 80, 3)


@given(SIDES, SIDES, st.integers(1, 200))
def test_a_crop_is_the_centre(height: int, width: int, size: int) -> None:
    picture = noise(height, width)
    if size > min(height, width):
        with pytest.raises(ValueError, match=rf"CenterCrop\({size}\) .* got shape \({height}, "):
            CenterCrop(size)(picture)
        return
    crop = CenterCrop(size)(picture)
    assert crop.shape == (size, size, 3)
    # The margins on both sides are equal, or differ by one pixel.
    top, left = (height - size) // 2, (width - size) // 2
    assert np.array_equal(picture[top:][:size][:, left:][:, :size], crop)


def test_a_random_crop_is_part_of_the_image() -> None:
    picture = np.arange(7 * 9, dtype=np.uint8).reshape(7, 9, 1)
    corners = {int(functional.crop(picture, 3, False)[0, 0, 0]) for _ in range(300)}
    assert corners == {9 * top + left for top in range(5) for left in range(7)}


@given(st.sampled_from(list(permutations(range(3)))))
def test_transposing_back_gives_the_array(order: tuple[int, int, int]) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    back = [order.index(axis) for axis in range(3)]
    assert np.array_equal(Transpose(back)(Transpose(order)(array)), array)


def test_channels_are_reversed() -> None:
    picture = np.array([[[1, 2, 3], [4, 5, 6]]], dtype=np.uint8)
    for reverse in (RGB2BGR(), BGR2RGB()):
        assert reverse(picture).tolist() == [[[3, 2, 1], [6, 5, 4]]]


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_normalizing_follows_the_formula_within_rounding(seed: int, channel_first: bool) -> None:
    rng = np.random.default_rng(seed)
    picture = rng.uniform(-1, 300, (3, 4, 3)).astype(np.float32)
    mean, std = rng.uniform(-2, 200, 3).tolist(), rng.uniform(0.1, 100, 3).tolist()
    shape = (3, 1, 1) if channel_first else (1, 1, 3)
    exact = (picture.astype(np.float64) - np.reshape(mean, shape)) / np.reshape(std, shape)
    result = Normalize(mean, std, channel_first)(picture)
    assert result.dtype == np.float32
    # One rounding after the subtraction, one after the division; the first counts for more where
    # picture and mean are close.
    spacing = 300 * 2.0**-23 / min(std)
    assert np.abs(result - exact).max() <= spacing


def test_the_chain_of_a_classifier_agrees_with_values_computed_by_hand() -> None:
    """The chain of the original's classification examples, on a picture of one colour."""
    chain = Sequential(
        [
            Resize(256),
            CenterCrop(224),
            RGB2BGR(),
            Transpose((2, 0, 1)),
            Div(255),
            Normalize(MEAN, STD, True),
        ]
    )
    picture = np.full((300, 400, 3), (51, 102, 204), dtype=np.uint8)
    result = chain(picture)
    assert result.shape == (3, 224, 224)
    assert result.dtype == np.float32
    # 204, 102 and 51 are 0.8, 0.4 and 0.2 of 255.
    by_hand = [(0.8 - 0.485) / 0.229, (0.4 - 0.456) / 0.224, (0.2 - 0.406) / 0.225]
    assert result[:, 0, 0].tolist() == pytest.approx(by_hand, abs=1e-6)
    assert np.ptp(result, axis=(1, 2)).tolist() == [0, 0, 0]
    read = ImageReader().process_image(png(picture))
    assert read is not None
    # The bytes are blue first too, so the two chains agree.
    assert np.array_equal(read, result)


def test_div_gives_single_precision_for_any_dtype() -> None:
    for dtype in (np.uint8, np.int64, np.float64):
        result = Div(255.0)(np.array([[0, 51, 255]], dtype=dtype))
        assert result.dtype == np.float32
        assert result.tolist() == [[0, float(np.float32(0.2)), 1]]


@given(SIDES, SIDES, st.integers(0, 64))
def test_padding_keeps_the_image_and_adds_zeros(height: int, width: int, stride: int) -> None:
    array = noise(height, width).transpose(2, 0, 1) | 1
    padded = PadStride(stride)(array)
    assert np.array_equal(padded[:, :height, :width], array)
    assert np.count_nonzero(padded) == array.size
    if stride:
        assert padded.dtype == np.float32
        for new, old in zip(padded.shape[1:], (height, width), strict=True):
            assert new % stride == 0
            assert old <= new < old + stride


def test_files_bytes_and_base64_are_decoded_to_the_same_image(tmp_path: Path) -> None:
    picture = noise(5, 7)
    data = png(picture)
    (tmp_path / "a.png").write_bytes(data)
    text = base64.b64encode(data)
    for read in (
        File2Image()(tmp_path / "a.png"),
        File2Image()(str(tmp_path / "a.png")),
        String2Image()(data),
        Base64ToImage()(text),
        Base64ToImage()(text.decode()),
    ):
        assert np.array_equal(read, picture)
    whole = ImageReader(image_shape=[3, 0, 0], image_mean=[0] * 3, image_std=[1] * 3)
    read = whole.process_image(data)
    assert read is not None
    assert np.array_equal(read, picture[:, :, ::-1].transpose(2, 0, 1) / np.float32(255))
    assert ImageReader().process_image(b"no picture") is None
    assert ImageReader().process_image(b"") is None


def test_images_are_not_fetched_from_urls() -> None:
    with pytest.raises(NotImplementedError, match="URL2Image does not fetch"):
        URL2Image()("http://127.0.0.1:9/a.png")


PICTURE = noise(40, 50)


@pytest.mark.parametrize(
    ("transform", "value"),
    [
        (Resize(20), PICTURE),
        (Resize((40, 50)), PICTURE),
        (ResizeByFactor(), PICTURE),
        (CenterCrop(8), PICTURE),
        (Transpose((2, 0, 1)), PICTURE),
        (RGB2BGR(), PICTURE),
        (Div(255), PICTURE.astype(np.float32)),
        (Normalize(MEAN, STD), PICTURE.astype(np.float32)),
        (PadStride(32), PICTURE.astype(np.float32)),
    ],
    ids=repr,
)
def test_transforms_do_not_change_their_input(transform: Any, value: Any) -> None:
    given = value.copy()
    given.flags.writeable = False
    transform(given)
    assert np.array_equal(given, value)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Resize(8)(None), TypeError, "Resize takes an array of numbers, got NoneType"),
        (
            lambda: Resize(8)(np.zeros((2, 2), object)),
            TypeError,
            "Resize takes an array of numbers",
        ),
        (lambda: Resize(8)(np.zeros(3)), ValueError, r"Resize takes an array of 2 or 3 axes"),
        (lambda: Resize(8)(np.zeros((0, 3, 3))), ValueError, "has no pixels"),
        (lambda: Resize(8)(np.zeros((2, 2, 3), bool)), ValueError, "OpenCV does not resize bool"),
        (lambda: Resize(8, 4)(noise(1, 100)), ValueError, "Resize would make an image of 4 x 0"),
        (lambda: Resize((1, 2, 3)), ValueError, r"Resize takes a number or a pair .* \(1, 2, 3\)"),
        (lambda: ResizeByFactor(32, 99)(noise(1, 999)), ValueError, "ResizeByFactor would make"),
        (lambda: CenterCrop((3, 3)), ValueError, r"CenterCrop takes a number .* got \(3, 3\)"),
        (lambda: Transpose((0, 1))(PICTURE), ValueError, r"Transpose\(\(0, 1\)\) does not fit"),
        (lambda: Transpose((0, 1, 1))(PICTURE), ValueError, "Transpose"),
        (lambda: RGB2BGR()(np.zeros((3, 3))), ValueError, "RGB2BGR takes an array of 3 axes"),
        (lambda: BGR2RGB()("a"), TypeError, "BGR2RGB takes an array of numbers, got str"),
        (lambda: Div(0), ValueError, "Div cannot divide by zero"),
        (lambda: Div(2)(None), TypeError, "Div takes an array"),
        (lambda: Normalize(MEAN, [1, 0, 1]), ValueError, "Normalize got a deviation of 0"),
        (lambda: Normalize(MEAN, [1, 1]), ValueError, "Normalize got 3 means and 2 deviations"),
        (
            lambda: Normalize(MEAN, STD)(PICTURE.transpose(2, 0, 1)),
            ValueError,
            r"Normalize takes 3 channels on the last axis, got shape \(3, 40, 50\)",
        ),
        (lambda: Normalize(MEAN, STD, True)(PICTURE), ValueError, "on the first axis"),
        (lambda: PadStride(-1), ValueError, "PadStride takes a stride of 0 or more, got -1"),
        (lambda: PadStride(2)(np.zeros((2, 2))), ValueError, "PadStride takes an array of 3 axes"),
        (lambda: String2Image()(b"\xff\xd8"), ValueError, "String2Image: OpenCV reads no image"),
        (lambda: String2Image()("text"), TypeError, "String2Image takes bytes, got str"),
        (lambda: Base64ToImage()("a"), ValueError, "Base64ToImage got what is not base64"),
        (lambda: Base64ToImage()("é"), ValueError, "Base64ToImage got what is not base64"),
        (lambda: Base64ToImage()(""), ValueError, "from these 0 bytes"),
        (lambda: Base64ToImage()(7), TypeError, "Base64ToImage takes text or bytes, got int"),
        (lambda: File2Image()("/there/is/none.png"), FileNotFoundError, "none.png"),
    ],
)
def test_errors_name_the_transform_and_the_invalid_argument(
    call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_the_repr_of_a_transform_has_its_arguments() -> None:
    assert repr(Sequential([Div(2), CenterCrop(3)])) == (
        "Sequential(transforms=[Div(value=2), CenterCrop(size=3)])"
    )
