"""Finding lines: a picture becomes the detector's input, its probability map becomes boxes.

Working sizes, thresholds and the order of the steps are those the PP-OCR models are used with;
other values give other boxes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from geometry import Box, clockwise, enclosing_box, grown, reading_order, side_lengths
from numpy.typing import NDArray
from strips import PIXEL_VALUES

STRIDE = 32  # the detector halves its input five times
LONGEST_SIDE = 2000  # larger pictures are scaled down to it
SHORTEST_SIDE = 30  # smaller pictures are scaled up to it
WIDEST_ASPECT = 8  # a wider picture is padded above and below
DETECTOR_SHORT_SIDE = 736  # the detector sees at least this many pixels across
DETECTOR_PIXELS = 4_500_000  # ours: about 1.5 GB of memory; tall slivers would be enlarged further

INK = 0.3  # a pixel of the map above this belongs to a line
SURE = 0.5  # a box whose mean probability is below this is dropped
GROW = 1.6
MOST_CONTOURS = 1000
SMALLEST_CORE = 3
SMALLEST_GROWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingPicture:
    """A picture at the size the models work on, and the way back.

    Attributes:
        pixels: ``[height, width, 3]`` uint8, blue first.
        scale: original pixels per working pixel, in x and y.
        top: black rows that were added above.
        original: width and height of the picture as it came.
    """

    pixels: NDArray[np.uint8]
    scale: tuple[float, float]
    top: int
    original: tuple[int, int]


def working_picture(picture: NDArray[np.uint8]) -> WorkingPicture:
    """Scale the picture into the working range and pad it when it is flat."""
    height, width = picture.shape[:2]
    pixels = picture
    if max(height, width) > LONGEST_SIDE:
        pixels = _scaled(picture, LONGEST_SIDE / max(height, width))
    elif min(height, width) < SHORTEST_SIDE:
        pixels = _scaled(picture, SHORTEST_SIDE / min(height, width))
    top = _rows_to_add(*pixels.shape[:2])
    scale = (width / pixels.shape[1], height / pixels.shape[0])
    if top:
        pixels = cv2.copyMakeBorder(pixels, top, top, 0, 0, cv2.BORDER_CONSTANT, value=(0, 0, 0))
    return WorkingPicture(pixels=pixels, scale=scale, top=top, original=(width, height))


def detector_input(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The working picture as ``[1, 3, height, width]`` from -1 to 1, sides multiples of 32."""
    height, width = pixels.shape[:2]
    ratio = max(1.0, DETECTOR_SHORT_SIDE / min(height, width))
    ratio = min(ratio, math.sqrt(DETECTOR_PIXELS / (height * width)))
    values = PIXEL_VALUES[_scaled(pixels, ratio)]
    return np.ascontiguousarray(values.transpose(2, 0, 1)[np.newaxis])


def boxes_from_map(probability: NDArray[np.float32], width: int, height: int) -> list[Box]:
    """The lines in a probability map, in reading order.

    Args:
        probability: ``[map height, map width]``, how likely each pixel belongs to a line.
        width: of the working picture, in whose pixels the boxes are given.
        height: likewise.
    """
    # Two pixels of dilation join the letters of thin fonts.
    ink = cv2.dilate((probability > INK).astype(np.uint8), np.ones((2, 2), np.uint8))
    contours, _ = cv2.findContours(ink, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    boxes = []
    for contour in contours[:MOST_CONTOURS]:
        core, short_side = enclosing_box(contour)
        if short_side < SMALLEST_CORE or _mean_inside(probability, core) < SURE:
            continue
        outline = grown(core, GROW)
        if not len(outline):
            continue
        box, short_side = enclosing_box(outline)
        if short_side < SMALLEST_GROWN:
            continue
        box = _in_picture(box, probability.shape, width, height)
        top, _, _, left = side_lengths(box)
        # Clipping at the picture's edge can leave next to nothing.
        if int(top) > SMALLEST_CORE and int(left) > SMALLEST_CORE:
            boxes.append(box)
    return reading_order(boxes)


def in_original(boxes: list[Box], working: WorkingPicture) -> list[Box]:
    """Boxes of the working picture in pixels of the picture as it came."""
    shift = np.array([0, working.top], dtype=np.float32)
    scale = np.array(working.scale, dtype=np.float32)
    edge = np.array(working.original, dtype=np.float32)
    return [np.clip((box - shift) * scale, 0, edge) for box in boxes]


def _scaled(pixels: NDArray[np.uint8], ratio: float) -> NDArray[np.uint8]:
    height, width = (round(int(side * ratio) / STRIDE) * STRIDE for side in pixels.shape[:2])
    return cv2.resize(pixels, (width, height))


def _rows_to_add(height: int, width: int) -> int:
    """Rows of padding on each side, so that the detector does not see a sliver of text alone."""
    if height > SHORTEST_SIDE and width <= WIDEST_ASPECT * height:
        return 0
    return abs(2 * max(width // WIDEST_ASPECT, SHORTEST_SIDE) - height) // 2


def _mean_inside(probability: NDArray[np.float32], box: Box) -> float:
    """Mean of the map inside a box, at whole pixels, within the box's upright frame."""
    last = np.array(probability.shape[::-1]) - 1
    low = np.clip(np.floor(box.min(axis=0)).astype(np.int32), 0, last)
    high = np.clip(np.ceil(box.max(axis=0)).astype(np.int32), 0, last)
    frame = probability[low[1] : high[1] + 1, low[0] : high[0] + 1]
    mask = np.zeros(frame.shape, dtype=np.uint8)
    cv2.fillPoly(mask, [(box - low).astype(np.int32)], 1)
    return cv2.mean(frame, mask)[0]


def _in_picture(box: Box, map_shape: tuple[int, ...], width: int, height: int) -> Box:
    """A box of the map in whole pixels of the picture, cut off at its edges."""
    map_size = np.array(map_shape[::-1], dtype=np.float32)
    size = np.array([width, height], dtype=np.float32)
    whole = np.round(box / map_size * size)
    return clockwise(np.clip(whole, 0, size - 1).astype(np.float32))
