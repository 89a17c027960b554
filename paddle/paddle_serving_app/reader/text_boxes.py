"""Converts a text detector's map to boxes, and boxes to straightened images of lines.

A box is ``[4, 2]``: x and y of four corners, in pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader.arrays import image_array, numeric_array
from paddle_serving_app.reader.libraries import opencv, pyclipper
from paddle_serving_app.reader.transforms import Transform

SMALLEST_SIDE = 3  # minimum side of a region in the map, in pixels; 2 more after it has grown
SAME_ROW = 10  # boxes whose tops differ by fewer pixels are in one row
UPRIGHT = 1.5  # a crop with at least this height / width is rotated


class DBPostProcess(Transform):
    """Converts the map of a detector with differentiable binarization to boxes.

    Args:
        params: ``thresh``, the probability above which a pixel is text; ``box_thresh``, the
            minimum mean probability of a box; ``max_candidates``, the maximum number of regions;
            ``unclip_ratio``, times area over perimeter, the distance by which a region grows.
            Other keys have no effect.

    Raises:
        TypeError: the map is not a numeric array.
        ValueError: a parameter is missing, the map is not four-dimensional, or the numbers of maps
            and ratios differ.
    """

    def __init__(self, params: Mapping[str, float]) -> None:
        opencv("DBPostProcess")
        pyclipper("DBPostProcess")
        try:
            self.thresh = params["thresh"]
            self.box_thresh = params["box_thresh"]
            self.max_candidates = int(params["max_candidates"])
            self.unclip_ratio = params["unclip_ratio"]
        except KeyError as error:
            raise ValueError(f"DBPostProcess takes the parameter {error}") from error

    def __call__(
        self, pred: NDArray[Any], ratio_list: Sequence[Sequence[float]]
    ) -> list[NDArray[np.int16] | list[Any]]:
        """Return the boxes of each image.

        Args:
            pred: ``[images, 1, height, width]``, each pixel's probability of being text.
            ratio_list: for each image, height and width of the map divided by those of the image.

        Returns:
            For each image ``[boxes, 4, 2]`` in pixels of the image, corners clockwise from the top
            left, boxes in the order in which OpenCV finds the regions; ``[]`` without boxes.
        """
        maps = numeric_array("DBPostProcess", pred, 4)[:, 0]
        if len(ratio_list) != len(maps):
            raise ValueError(f"DBPostProcess got {len(maps)} maps and {len(ratio_list)} ratios")
        return [
            self._boxes(probability, ratio_h, ratio_w)
            for probability, (ratio_h, ratio_w) in zip(maps, ratio_list, strict=True)
        ]

    def _boxes(
        self, probability: NDArray[Any], ratio_h: float, ratio_w: float
    ) -> NDArray[np.int16] | list[Any]:
        cv2 = opencv("DBPostProcess")
        text = (probability > self.thresh).astype(np.uint8) * 255
        contours = cv2.findContours(text, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[-2]
        boxes = []
        for contour in contours[: self.max_candidates]:
            region, short_side = _enclosing_box(contour)
            if (
                short_side < SMALLEST_SIDE
                or not _mean_inside(probability, region) > self.box_thresh
            ):
                continue
            outline = self._grown(region)
            if not len(outline):
                continue
            box, short_side = _enclosing_box(outline)
            if short_side < SMALLEST_SIDE + 2:
                continue
            # Computed in float32 as in the original: it decides how halves are rounded.
            size = np.array(probability.shape[::-1], dtype=np.float32)
            whole = np.clip(np.round(box / size * size), 0, size).astype(np.int16)
            boxes.append((whole / (ratio_w, ratio_h)).astype(np.int16))
        return np.stack(boxes) if boxes else []

    def _grown(self, box: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return the outline ``[points, 1, 2]`` of an enlarged box.

        Networks of this kind are trained to mark a shrunk core of each line.
        Source: Liao et al., "Real-time Scene Text Detection with Differentiable Binarization".
        """
        x, y = box.astype(np.float64).T
        next_x, next_y = np.roll(x, -1), np.roll(y, -1)
        area = abs(np.sum(x * next_y - next_x * y)) / 2
        perimeter = np.sum(np.hypot(next_x - x, next_y - y))
        clipper = pyclipper("DBPostProcess")
        offset = clipper.PyclipperOffset()
        # Pyclipper computes in integers and drops fractions.
        offset.AddPath(box.astype(np.int64).tolist(), clipper.JT_ROUND, clipper.ET_CLOSEDPOLYGON)
        outlines = offset.Execute(area * self.unclip_ratio / perimeter)
        points = [point for outline in outlines for point in outline]
        return np.array(points, dtype=np.int32).reshape(-1, 1, 2)


class FilterBoxes(Transform):
    """Sorts the corners of boxes, clips boxes to the image, and drops small boxes.

    Args:
        width: boxes of this width or less are dropped, in pixels.
        height: boxes of this height or less are dropped, in pixels.
    """

    def __init__(self, width: float, height: float) -> None:
        self.filter_width = width
        self.filter_height = height

    def __call__(
        self, dt_boxes: NDArray[Any] | Sequence[NDArray[Any]], image_shape: Sequence[int]
    ) -> NDArray[np.float32]:
        """Return the remaining boxes.

        Args:
            dt_boxes: ``[boxes, 4, 2]``, corners in any order.
            image_shape: height and width of the image; further items are ignored.

        Returns:
            ``[boxes, 4, 2]``, whole numbers, corners clockwise from the top left.
        """
        height, width = image_shape[:2]
        kept = []
        for corners in dt_boxes:
            box = _clockwise(_box("FilterBoxes", corners))
            box = np.trunc(np.clip(box, 0, (width - 1, height - 1))).astype(np.float32)
            top, left = (int(np.linalg.norm(box[0] - box[corner])) for corner in (1, 3))
            if top > self.filter_width and left > self.filter_height:
                kept.append(box)
        return np.array(kept, dtype=np.float32).reshape(-1, 4, 2)


class SortedBoxes(Transform):
    """Sorts boxes in reading order: rows from top to bottom, each from left to right.

    As in the original, each box is swapped with its neighbour at most once: a row of more than two
    boxes whose tops differ may stay out of order.
    """

    def __call__(self, dt_boxes: NDArray[Any] | Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Sort ``[boxes, 4, 2]`` by each box's first corner; return a list of ``[4, 2]``."""
        boxes = sorted(
            (_box("SortedBoxes", box) for box in dt_boxes), key=lambda box: (box[0, 1], box[0, 0])
        )
        for i in range(len(boxes) - 1):
            one, other = boxes[i], boxes[i + 1]
            # As floats: differences of unsigned integers would wrap around.
            if abs(float(other[0, 1]) - float(one[0, 1])) < SAME_ROW and other[0, 0] < one[0, 0]:
                boxes[i], boxes[i + 1] = other, one
        return boxes


class GetRotateCropImage(Transform):
    """Crops and straightens the pixels of a box; a crop much higher than wide is rotated.

    Raises:
        TypeError: an argument is not a numeric array.
        ValueError: a shape does not fit, or the box has no pixels.
    """

    def __init__(self) -> None:
        opencv("GetRotateCropImage")

    def __call__(self, img: NDArray[Any], points: NDArray[Any]) -> NDArray[Any]:
        """Return the crop, with the image's dtype.

        Args:
            img: ``[height, width, channels]``.
            points: ``[4, 2]``, corners clockwise from the top left; not changed.
        """
        cv2 = opencv("GetRotateCropImage")
        array = image_array("GetRotateCropImage", img)
        box = _box("GetRotateCropImage", points).astype(np.float32)
        left, top = (max(int(low), 0) for low in box.min(axis=0))
        right, bottom = (max(int(high), 0) for high in box.max(axis=0))
        width, height = (int(np.linalg.norm(box[0] - box[corner])) for corner in (1, 3))
        around = array[top:bottom, left:right]
        if not around.size or width < 1 or height < 1:
            raise ValueError(
                f"GetRotateCropImage: the box {box.tolist()} has no pixels of an image"
                f" of shape {array.shape}"
            )
        target = np.array([[0, 0], [width, 0], [width, height], [0, height]], dtype=np.float32)
        shifted = box - np.array([left, top], dtype=np.float32)
        matrix = cv2.getPerspectiveTransform(shifted, target)
        try:
            crop = cv2.warpPerspective(
                around, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE
            )
        except cv2.error as error:
            raise ValueError(
                f"GetRotateCropImage: OpenCV does not warp {array.dtype} of shape {array.shape}"
            ) from error
        return np.rot90(crop) if height / width >= UPRIGHT else crop


def _box(user: str, corners: object) -> NDArray[Any]:
    box = numeric_array(user, corners, 2)
    if box.shape != (4, 2):
        raise ValueError(f"{user} takes boxes of shape (4, 2), got {box.shape}")
    return box


def _clockwise(corners: NDArray[Any]) -> NDArray[np.float32]:
    """Sort corners clockwise from the top left; the two leftmost corners are the left side."""
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    top_left, bottom_left = by_x[:2][np.argsort(by_x[:2, 1], kind="stable")]
    top_right, bottom_right = by_x[2:][np.argsort(by_x[2:, 1], kind="stable")]
    return np.array([top_left, top_right, bottom_right, bottom_left], dtype=np.float32)


def _enclosing_box(points: NDArray[np.int32]) -> tuple[NDArray[np.float32], float]:
    """Return the smallest rotated rectangle around points ``[n, 1, 2]``, and its short side."""
    cv2 = opencv("DBPostProcess")
    rectangle = cv2.minAreaRect(points)
    return _clockwise(cv2.boxPoints(rectangle)), min(rectangle[1])


def _mean_inside(probability: NDArray[Any], box: NDArray[np.float32]) -> float:
    """Return the mean of the map inside a box, at whole pixels."""
    cv2 = opencv("DBPostProcess")
    last = np.array(probability.shape[::-1]) - 1
    low = np.clip(np.floor(box.min(axis=0)).astype(np.int32), 0, last)
    high = np.clip(np.ceil(box.max(axis=0)).astype(np.int32), 0, last)
    around = np.ascontiguousarray(probability[low[1] : high[1] + 1, low[0] : high[0] + 1])
    mask = np.zeros(around.shape, dtype=np.uint8)
    cv2.fillPoly(mask, [(box - low).astype(np.int32)], 1)
    mean: float = cv2.mean(around, mask)[0]
    return mean
