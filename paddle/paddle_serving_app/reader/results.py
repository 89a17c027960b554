"""Converts the outputs of detectors and segmentation networks to plain values and drawn images."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader.arrays import numeric_array
from paddle_serving_app.reader.libraries import opencv, pillow
from paddle_serving_app.reader.transforms import Transform

DRAWN = 0.5  # boxes with a lower score are not drawn
COLUMNS = 6  # columns of a detector's output: class, score, left, top, right, bottom


class Detection(TypedDict):
    """One box in the format of the COCO data set: ``bbox`` is left, top, width and height."""

    category_id: int
    bbox: list[float]
    score: float


Measure = Callable[[Sequence[float]], list[float]]
"""Converts left, top, right and bottom to left, top, width and height."""


def boxes_of(
    user: str, answer: Mapping[str, Any], labels: Sequence[str], measure: Measure
) -> list[Detection]:
    """Return the boxes of the last output with six columns. Errors name the reader ``user``."""
    boxes: list[Detection] = []
    for label, score, *corners in _rows(user, answer):
        if not 0 <= int(label) < len(labels):
            raise ValueError(f"{user}: class {int(label)} has no label; there are {len(labels)}")
        boxes.append({"category_id": int(label), "bbox": measure(corners), "score": score})
    return boxes


def left_top_width_height(corners: Sequence[float]) -> list[float]:
    """Convert corners in pixels; both corners are inside the box."""
    left, top, right, bottom = corners
    return [left, top, right - left + 1, bottom - top + 1]


def write_boxes(folder: str | os.PathLike[str], boxes: Sequence[Detection]) -> None:
    """Write ``bbox.json`` to a folder, which is created if needed."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "bbox.json").write_text(json.dumps(boxes, indent=4), encoding="utf-8")


def write_image(
    folder: str | os.PathLike[str],
    image: Path,
    boxes: Iterable[Detection],
    labels: Sequence[str],
    resize_shape: Sequence[float] | None = None,
) -> None:
    """Write an image with its boxes to a folder, which is created if needed."""
    with pillow("an image with boxes").open(image) as opened:
        drawn = draw_boxes(opened.convert("RGB"), boxes, labels, resize_shape)
    Path(folder).mkdir(parents=True, exist_ok=True)
    drawn.save(Path(folder) / image.name, quality=95)


class RCNNPostprocess(Transform):
    """Converts a detector's output to a list of boxes, in pixels of the network's input.

    Args:
        label_file: text file with one class name per line.
        output_dir: folder for ``bbox.json`` and drawn images, which calls with ``visualize`` write.
        resize_shape: width and height of the network's input, if the image on which boxes are
            drawn has another size.
    """

    def __init__(
        self,
        label_file: str | os.PathLike[str],
        output_dir: str | os.PathLike[str],
        resize_shape: Sequence[float] | None = None,
    ) -> None:
        self.label_file = label_file
        self.output_dir = output_dir
        self.resize_shape = resize_shape
        with open(label_file, encoding="utf-8") as lines:
            self.label_list = [line.strip() for line in lines]

    def __call__(
        self, image_with_bbox: Mapping[str, Any], visualize: bool = True
    ) -> list[Detection]:
        """Return the boxes of all images in one list.

        Args:
            image_with_bbox: the network's outputs. One output is ``[boxes, 6]``, with rows of
                class, score, left, top, right and bottom; ``[1, 1]`` means no boxes. Its name with
                ``.lod`` may have the offsets of the images.
            visualize: also draw the boxes on the image whose path is under the key ``image``, and
                write it and ``bbox.json`` to ``output_dir``. Otherwise nothing is written.

        Raises:
            TypeError: the output is not a numeric array.
            ValueError: no output has six columns, a class has no label, or the key ``image`` is
                missing.
        """
        user = type(self).__name__
        boxes = boxes_of(user, image_with_bbox, self.label_list, self._measure(image_with_bbox))
        if visualize:
            if "image" not in image_with_bbox:
                raise ValueError(
                    f"{user} draws on the image whose path is under 'image', got"
                    f" {sorted(image_with_bbox)}; visualize=False gives the boxes alone"
                )
            image = Path(image_with_bbox["image"])
            write_image(self.output_dir, image, boxes, self.label_list, self.resize_shape)
            write_boxes(self.output_dir, boxes)
        return boxes

    def _measure(self, answer: Mapping[str, Any]) -> Measure:
        return left_top_width_height


class BlazeFacePostprocess(RCNNPostprocess):
    """Converts a face detector's output to boxes in pixels; its corners are fractions of the sides.

    The outputs must include ``im_shape``: height and width of the image.
    """

    def _measure(self, answer: Mapping[str, Any]) -> Measure:
        if "im_shape" not in answer:
            raise ValueError("BlazeFacePostprocess takes the image's height and width, 'im_shape'")
        shape = numeric_array("BlazeFacePostprocess", answer["im_shape"])
        height, width = (int(side) for side in shape.reshape(-1)[:2])

        def of_sides(corners: Sequence[float]) -> list[float]:
            left, top, right, bottom = (max(min(corner, 1.0), 0.0) for corner in corners)
            return [left * width, top * height, (right - left) * width, (bottom - top) * height]

        return of_sides


class SegPostprocess(Transform):
    """Converts the output of a segmentation network to a coloured image, and writes it.

    Args:
        class_num: number of classes.
    """

    def __init__(self, class_num: int) -> None:
        opencv("SegPostprocess")
        self.class_num = class_num

    def __call__(self, image_with_result: Mapping[str, Any]) -> NDArray[np.uint8]:
        """Return the coloured image ``[height, width, 3]``, of the size of the segmented image.

        Beside a file ``image.jpg`` this writes ``image_jpg_mask.png``, the classes, and
        ``image_jpg_result.png``, the colours.

        Args:
            image_with_result: ``filename``, the path of the segmented image, and one output: the
                class of each pixel, ``[height, width]`` with any axes of length 1, or 512 x 512
                values in any shape.

        Raises:
            TypeError: the output is not a numeric array.
            ValueError: a key is missing, the shape does not fit, a class is ``class_num`` or
                above, or the file is not an image.
        """
        cv2 = opencv("SegPostprocess")
        outputs = [key for key in image_with_result if "filename" not in key and ".lod" not in key]
        if "filename" not in image_with_result or not outputs:
            raise ValueError(
                "SegPostprocess takes 'filename' and the classes of its pixels,"
                f" got {sorted(image_with_result)}"
            )
        path = Path(image_with_result["filename"])
        original = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        if original is None:
            raise ValueError(f"SegPostprocess: OpenCV reads no image from {path}")
        mask = self._mask(image_with_result[outputs[-1]])
        height, width = original.shape[:2]
        colours = np.array(generate_colormap(self.class_num), dtype=np.uint8)
        result: NDArray[np.uint8] = cv2.resize(
            colours[mask], (width, height), interpolation=cv2.INTER_CUBIC
        )
        stem = path.with_name(f"{path.stem}_{path.suffix[1:]}")
        cv2.imwrite(f"{stem}_mask.png", mask)
        cv2.imwrite(f"{stem}_result.png", result)
        return result

    def _mask(self, value: object) -> NDArray[np.uint8]:
        array = np.squeeze(numeric_array("SegPostprocess", value))
        if array.ndim != 2:
            if array.size != 512 * 512:
                raise ValueError(
                    f"SegPostprocess takes one class for each pixel, got shape {array.shape}"
                )
            array = array.reshape(512, 512)
        if array.size and not 0 <= array.min() <= array.max() < self.class_num:
            raise ValueError(
                f"SegPostprocess({self.class_num}) got classes from {array.min()} to {array.max()}"
            )
        return array.astype(np.uint8)


def _rows(user: str, answer: Mapping[str, Any]) -> list[list[float]]:
    for name in reversed(list(answer)):
        if name == "image" or ".lod" in name or "im_shape" in name:
            continue
        array = numeric_array(user, answer[name])
        if array.shape == (1, 1):
            return []
        if array.ndim == 2 and array.shape[1] == COLUMNS:
            # Without offsets, or with empty ones, all rows belong to one image.
            lod = answer.get(f"{name}.lod")
            count = len(array) if lod is None or not len(lod) else int(lod[-1])
            rows: list[list[float]] = array[:count].tolist()
            return rows
    raise ValueError(f"{user} takes an output of {COLUMNS} columns, got {sorted(answer)}")


def generate_colormap(num_classes: int) -> list[list[int]]:
    """Return a colour ``[a, b, c]`` for each class, from 0 to 255: the palette of PASCAL VOC.

    Each group of three bits of the class sets one bit in each channel; the lowest group sets the
    highest bits.
    """
    colours = []
    for label in range(num_classes):
        colour = [0, 0, 0]
        for group in range(8):
            for channel in range(3):
                colour[channel] |= (label >> 3 * group + channel & 1) << 7 - group
        colours.append(colour)
    return colours


def draw_boxes(
    image: Any,
    boxes: Iterable[Detection],
    labels: Sequence[str],
    resize_shape: Sequence[float] | None = None,
) -> Any:
    """Draw boxes with their labels and scores on a Pillow image, and return it."""
    from PIL import ImageDraw  # installed, since the image comes from Pillow

    draw = ImageDraw.Draw(image)
    x_scale, y_scale = 1.0, 1.0
    if resize_shape is not None:
        x_scale, y_scale = image.size[0] / resize_shape[0], image.size[1] / resize_shape[1]
    colours = generate_colormap(len(labels))
    for box in boxes:
        if box["score"] < DRAWN:
            continue
        left, top, width, height = box["bbox"]
        right, bottom = (left + width) * x_scale, (top + height) * y_scale
        left, top = left * x_scale, top * y_scale
        red, green, blue = colours[box["category_id"]]
        around = [(left, top), (left, bottom), (right, bottom), (right, top), (left, top)]
        draw.line(around, width=2, fill=(red, green, blue))
        text = f"{labels[box['category_id']]} {box['score']:.2f}"
        _, _, text_width, text_height = draw.textbbox((0, 0), text)
        corner = (left + 1, top - text_height)
        draw.rectangle([corner, (left + 1 + text_width, top)], fill=(red, green, blue))
        draw.text(corner, text, fill=(255, 255, 255))
    return image
