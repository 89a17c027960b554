"""Boxes: four corners in pixels, ``[4, 2]`` as x and y, clockwise from the top left."""

from __future__ import annotations

from collections.abc import Iterable

import cv2
import numpy as np
import pyclipper
from numpy.typing import NDArray

SAME_ROW = 10  # boxes whose tops differ by less than this many pixels stand on one row
UPRIGHT = 1.5  # a crop this many times higher than wide holds text running downwards

Box = NDArray[np.float32]


def clockwise(corners: NDArray[np.float32]) -> Box:
    """Four corners in any order, put clockwise from the top left.

    The two leftmost are the left side: right for text that runs mostly sideways.
    """
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    top_left, bottom_left = by_x[:2][np.argsort(by_x[:2, 1], kind="stable")]
    top_right, bottom_right = by_x[2:][np.argsort(by_x[2:, 1], kind="stable")]
    return np.array([top_left, top_right, bottom_right, bottom_left], dtype=np.float32)


def enclosing_box(points: NDArray[np.int32]) -> tuple[Box, float]:
    """The smallest rotated rectangle around points ``[n, 1, 2]``, and its short side."""
    rectangle = cv2.minAreaRect(points)
    return clockwise(cv2.boxPoints(rectangle)), min(rectangle[1])


def grown(box: Box, ratio: float) -> NDArray[np.int32]:
    """The outline ``[n, 1, 2]`` of a box pushed outwards by ``ratio`` x area / perimeter.

    The detector is trained to mark the core of a line, shrunk by that rule; this undoes it.
    Empty when nothing is left. Source: Liao et al., "Real-time Scene Text Detection with
    Differentiable Binarization", section 3.5.
    """
    x, y = box.astype(np.float64).T
    next_x, next_y = np.roll(x, -1), np.roll(y, -1)
    area = abs(np.sum(x * next_y - next_x * y)) / 2
    perimeter = np.sum(np.hypot(next_x - x, next_y - y))
    offset = pyclipper.PyclipperOffset()
    # The clipper calculates in whole pixels and cuts off fractions.
    whole = box.astype(np.int64).tolist()
    offset.AddPath(whole, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    outlines = offset.Execute(ratio * area / perimeter)
    points = [point for outline in outlines for point in outline]
    return np.array(points, dtype=np.int32).reshape(-1, 1, 2)


def reading_order(boxes: Iterable[Box]) -> list[Box]:
    """Rows from top to bottom, and within a row from left to right."""
    ordered: list[Box] = []
    for box in sorted(boxes, key=lambda box: (box[0, 1], box[0, 0])):
        place = len(ordered)
        while place and _left_on_same_row(box, ordered[place - 1]):
            place -= 1
        ordered.insert(place, box)
    return ordered


def _left_on_same_row(box: Box, other: Box) -> bool:
    return bool(abs(box[0, 1] - other[0, 1]) < SAME_ROW and box[0, 0] < other[0, 0])


def side_lengths(box: Box) -> tuple[float, float, float, float]:
    """Lengths in pixels of the top, right, bottom and left side."""
    top, right, bottom, left = (float(np.linalg.norm(box[i] - box[(i + 1) % 4])) for i in range(4))
    return top, right, bottom, left


def cut_out(picture: NDArray[np.uint8], box: Box) -> NDArray[np.uint8]:
    """The pixels under a box, straightened; text that runs downwards is laid on its side.

    Args:
        picture: ``[height, width, 3]``, not changed.
        box: sides of at least one pixel.
    """
    top, right, bottom, left = side_lengths(box)
    width, height = int(max(top, bottom)), int(max(right, left))
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], dtype=np.float32)
    crop = cv2.warpPerspective(
        picture,
        cv2.getPerspectiveTransform(box, target),
        (width, height),
        flags=cv2.INTER_CUBIC,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return np.ascontiguousarray(np.rot90(crop)) if height >= UPRIGHT * width else crop
