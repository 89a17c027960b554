"""Boxes of a text detector, and their crops."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from paddle_serving_app.reader import (
    DBPostProcess,
    FilterBoxes,
    GetRotateCropImage,
    SortedBoxes,
)

PARAMETERS = {"thresh": 0.3, "box_thresh": 0.6, "max_candidates": 1000, "unclip_ratio": 1.5}
COORDINATES = st.integers(-20, 220)
QUADS = st.lists(st.lists(st.tuples(COORDINATES, COORDINATES), min_size=4, max_size=4), max_size=9)


def one_map(*regions: tuple[slice, slice, float]) -> NDArray[np.float32]:
    probability = np.zeros((1, 1, 64, 96), dtype=np.float32)
    for rows, columns, value in regions:
        probability[0, 0, rows, columns] = value
    return probability


REGION = (slice(10, 20), slice(20, 40), 0.9)


def test_a_box_is_expanded_by_its_area_over_its_perimeter() -> None:
    """By hand, of a region from pixel (20, 10) to (39, 19).

    Its rectangle is 19 x 9, its area 171, its perimeter 56; 1.5 x 171 / 56 is 4.58. So left is
    15.42, top 5.42, right 43.58 and bottom 23.58, of which the clipper makes whole pixels. The
    picture is twice as high and four times as wide as the map.
    """
    boxes = DBPostProcess(PARAMETERS)(one_map(REGION), [(0.5, 0.25)])
    assert len(boxes) == 1
    assert isinstance(boxes[0], np.ndarray)
    assert boxes[0].dtype == np.int16
    assert boxes[0].tolist() == [[[60, 10], [176, 10], [176, 48], [60, 48]]]


def test_an_expanded_box_is_clipped_to_the_map() -> None:
    # Of a region from (0, 0) to (39, 9): 1.5 x 39 x 9 / 96 is 5.48, so 44.48 and 14.48.
    boxes = DBPostProcess(PARAMETERS)(one_map((slice(0, 10), slice(0, 40), 1)), [(1, 1)])
    assert np.asarray(boxes[0]).tolist() == [[[0, 0], [44, 0], [44, 14], [0, 14]]]


@pytest.mark.parametrize(
    "region",
    [
        None,
        (slice(10, 20), slice(20, 40), 0.3),  # not above thresh
        (slice(10, 20), slice(20, 40), 0.5),  # above thresh, but not above box_thresh
        (slice(10, 13), slice(20, 40), 1.0),  # 2 pixels high, from centre to centre
        (slice(10, 11), slice(20, 21), 1.0),
    ],
)
def test_regions_of_low_probability_or_size_are_no_boxes(region: Any) -> None:
    assert DBPostProcess(PARAMETERS)(one_map(*[region] if region else []), [(1, 1)]) == [[]]


def test_at_most_max_candidates_regions_are_used() -> None:
    two = one_map(REGION, (slice(40, 50), slice(20, 40), 0.9))
    for candidates, found in ((2, 2), (1, 1), (0, 0)):
        boxes = DBPostProcess({**PARAMETERS, "max_candidates": candidates})(two, [(1, 1)])
        assert len(boxes[0]) == found


def test_maps_of_several_images_have_one_ratio_each() -> None:
    maps = np.concatenate([one_map(), one_map(REGION)])
    empty, found = DBPostProcess(PARAMETERS)(maps, [(1, 1), (1, 0.5)])
    assert len(empty) == 0
    assert np.asarray(found).tolist() == [[[30, 5], [88, 5], [88, 24], [30, 24]]]


@pytest.mark.parametrize("angle", range(-80, 90, 20))
def test_a_tilted_line_gives_a_tilted_box(angle: int) -> None:
    probability = np.zeros((1, 1, 200, 200), dtype=np.float32)
    line = cv2.boxPoints(((100.0, 100.0), (90.0, 20.0), float(angle)))
    cv2.fillPoly(probability[0, 0], [np.round(line).astype(np.int32)], 1.0)
    (box,) = DBPostProcess(PARAMETERS)(probability, [(1, 1)])[0]
    # 1.5 x 90 x 20 / 220 is 12.3 on each side; corners are rounded three times on the way.
    sides = sorted(np.linalg.norm(box[corner] - box[corner - 1]) for corner in range(4))
    assert sides == pytest.approx([44.6, 44.6, 114.6, 114.6], abs=5)
    assert box.mean(axis=0).tolist() == pytest.approx([100, 100], abs=1)


@given(QUADS)
def test_filtered_boxes_are_large_within_the_image_and_clockwise(quads: list[Any]) -> None:
    boxes = np.array(quads, dtype=np.int16).reshape(-1, 4, 2)
    before = boxes.copy()
    kept = FilterBoxes(10, 5)(boxes, (150, 180, 3))
    assert np.array_equal(boxes, before)
    assert kept.dtype == np.float32
    assert kept.shape[1:] == (4, 2)
    for box in kept:
        assert box.min() >= 0
        assert box[:, 0].max() <= 179
        assert box[:, 1].max() <= 149
        assert np.linalg.norm(box[0] - box[1]) >= 11
        assert np.linalg.norm(box[0] - box[3]) >= 6
        # Top left above bottom left, top right above bottom right.
        assert box[0, 1] <= box[3, 1]
        assert box[1, 1] <= box[2, 1]


def test_corners_are_ordered_and_clipped_to_the_image() -> None:
    box = [[90, 40], [-3, -2], [90.7, -2], [-3, 40]]
    kept = FilterBoxes(10, 10)(np.array([box]), [40, 100])
    assert kept.tolist() == [[[0, 0], [90, 0], [90, 39], [0, 39]]]
    assert FilterBoxes(90, 10)(np.array([box]), [40, 100]).shape == (0, 4, 2)
    assert FilterBoxes(10, 39)(np.array([box]), [40, 100]).shape == (0, 4, 2)
    assert FilterBoxes(89, 38)(np.array([box]), [40, 100]).shape == (1, 4, 2)
    assert FilterBoxes(10, 10)([], [40, 100]).shape == (0, 4, 2)


def at(x: int, y: int) -> NDArray[np.float32]:
    return np.array([[x, y], [x + 5, y], [x + 5, y + 5], [x, y + 5]], dtype=np.float32)


def test_boxes_are_sorted_by_rows_of_ten_pixels() -> None:
    boxes = [at(50, 100), at(60, 9), at(10, 18), at(70, 0), at(5, 109), at(40, 110)]
    corners = [box[0].tolist() for box in SortedBoxes()(np.stack(boxes))]
    assert corners == [[60, 9], [70, 0], [10, 18], [5, 109], [50, 100], [40, 110]]
    # Each box is swapped once: the original's order, although 10 is left of 20.
    lefts = [int(box[0, 0]) for box in SortedBoxes()([at(30, 0), at(20, 1), at(10, 2)])]
    assert lefts == [20, 10, 30]


@given(QUADS)
def test_sorted_boxes_are_the_same_boxes(quads: list[Any]) -> None:
    boxes = np.array(quads, dtype=np.int16).reshape(-1, 4, 2)
    ordered = SortedBoxes()(boxes)
    assert sorted(box.tolist() for box in ordered) == sorted(boxes.tolist())


PICTURE = np.random.default_rng(1).integers(0, 256, (60, 80, 3), dtype=np.uint8)


def test_the_crop_of_an_upright_box_is_unchanged() -> None:
    box = np.array([[10, 20], [40, 20], [40, 35], [10, 35]], dtype=np.int16)
    box.flags.writeable = False
    crop = GetRotateCropImage()(PICTURE, box)
    assert np.array_equal(crop, PICTURE[20:35, 10:40])


def test_a_tall_crop_is_rotated() -> None:
    box = np.array([[10, 10], [30, 10], [30, 40], [10, 40]], dtype=np.float32)
    # 30 / 20 is 1.5. Turned against the clock: the right column becomes the top row.
    assert np.array_equal(GetRotateCropImage()(PICTURE, box), np.rot90(PICTURE[10:40, 10:30]))
    box[2:, 1] = 39
    assert np.array_equal(GetRotateCropImage()(PICTURE, box), PICTURE[10:39, 10:30])


def test_a_box_with_another_first_corner_is_rotated() -> None:
    # The first corner becomes the top left one, whichever it was in the picture.
    box = np.array([[40, 35], [10, 35], [10, 20], [40, 20]], dtype=np.float32)
    crop = GetRotateCropImage()(PICTURE, box)
    assert crop.shape == (15, 30, 3)
    # Turned by half a circle; corners stand on corners of pixels, not on centres, hence one off.
    assert np.array_equal(crop[1:, 1:], PICTURE[21:35, 11:40][::-1, ::-1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: DBPostProcess({"thresh": 1}), ValueError, "takes the parameter 'box_thresh'"),
        (
            lambda: DBPostProcess(PARAMETERS)(np.zeros((8, 8)), []),
            ValueError,
            r"DBPostProcess takes an array of 4 axes, got shape \(8, 8\)",
        ),
        (lambda: DBPostProcess(PARAMETERS)(one_map(), []), ValueError, "got 1 maps and 0 ratios"),
        (lambda: DBPostProcess(PARAMETERS)(None, []), TypeError, "DBPostProcess takes an array"),
        (
            lambda: FilterBoxes(1, 1)(np.zeros((1, 3, 2)), (9, 9)),
            ValueError,
            r"FilterBoxes takes boxes of shape \(4, 2\), got \(3, 2\)",
        ),
        (lambda: SortedBoxes()([np.zeros((4, 3))]), ValueError, "SortedBoxes takes boxes"),
        (
            lambda: GetRotateCropImage()(PICTURE, np.full((4, 2), 5)),
            ValueError,
            "GetRotateCropImage: the box .* has no pixels",
        ),
        (
            lambda: GetRotateCropImage()(PICTURE, at(500, 5)),
            ValueError,
            "GetRotateCropImage: the box .* has no pixels",
        ),
        (
            lambda: GetRotateCropImage()(PICTURE, at(-50, 5)),
            ValueError,
            "GetRotateCropImage: the box .* has no pixels",
        ),
        (lambda: GetRotateCropImage()(PICTURE, np.zeros(4)), ValueError, "GetRotateCropImage"),
    ],
)
def test_errors_name_the_step_and_the_invalid_argument(
    call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
