"""What networks answer about pictures, as plain values and as pictures to look at."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader.arrays import numbers
from paddle_serving_app.reader.libraries import opencv, pillow
from paddle_serving_app.reader.transforms import Transform

DRAWN = 0.5  # boxes with a lower score are not drawn
COLUMNS = 6  # of a detector's output: class, score, left, top, right, bottom


class Detection(TypedDict):
    """One box, in the form of the COCO data set: ``bbox`` is left, top, width and height."""

    category_id: int
    bbox: list[float]
    score: float


Measure = Callable[[Sequence[float]], list[float]]
"""Left, top, right and bottom to left, top, width and height."""


def boxes_of(
    user: str, answer: Mapping[str, Any], labels: Sequence[str], measure: Measure
) -> list[Detection]:
    """The boxes of the last output that has their form; errors name the reader ``user``."""
    boxes: list[Detection] = []
    for label, score, *corners in _rows(user, answer):
        if not 0 <= int(label) < len(labels):
            raise ValueError(f"{user}: class {int(label)} has no label; there are {len(labels)}")
        boxes.append({"category_id": int(label), "bbox": measure(corners), "score": score})
    return boxes


def left_top_width_height(corners: Sequence[float]) -> list[float]:
    """Of corners that are pixels, both within the box."""
    left, top, right, bottom = corners
    return [left, top, right - left + 1, bottom - top + 1]


def write_boxes(folder: str | os.PathLike[str], boxes: Sequence[Detection]) -> None:
    """Write ``bbox.json`` into a folder, which is made if there is none."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "bbox.json").write_text(json.dumps(boxes, indent=4), encoding="utf-8")


def write_picture(
    folder: str | os.PathLike[str],
    image: Path,
    boxes: Iterable[Detection],
    labels: Sequence[str],
    resize_shape: Sequence[float] | None = None,
) -> None:
    """Write a picture with boxes into a folder, which is made if there is none."""
    with pillow("a picture with boxes").open(image) as opened:
        drawn = draw_boxes(opened.convert("RGB"), boxes, labels, resize_shape)
    Path(folder).mkdir(parents=True, exist_ok=True)
    drawn.save(Path(folder) / image.name, quality=95)


class RCNNPostprocess(Transform):
    """A detector's output as a list of boxes, in pixels of what the network was given.

    Args:
        label_file: a text file with the name of a class on each line.
        output_dir: where pictures and ``bbox.json`` are written, by calls that ask for them.
        resize_shape: width and height of what the network was given, if boxes are to be drawn on a
            picture of another size.
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
        """The boxes of all pictures, one after another.

        Args:
            image_with_bbox: what the network answered: ``[boxes, 6]`` under a name of its own, of
                which each row is class, score, left, top, right and bottom. Under the same name
                with ``.lod`` may be where each picture's boxes begin. ``[1, 1]`` means no boxes.
            visualize: also draw them on the picture whose path is under ``image``, and write it and
                ``bbox.json`` into ``output_dir``. Only this writes anything.

        Raises:
            TypeError: the output is not an array of numbers.
            ValueError: there is no such output, it names a class without a label, or nothing is
                under ``image``.
        """
        user = type(self).__name__
        boxes = boxes_of(user, image_with_bbox, self.label_list, self._measure(image_with_bbox))
        if visualize:
            if "image" not in image_with_bbox:
                raise ValueError(
                    f"{user} draws on the picture whose path is under 'image', got"
                    f" {sorted(image_with_bbox)}; visualize=False gives the boxes alone"
                )
            image = Path(image_with_bbox["image"])
            write_picture(self.output_dir, image, boxes, self.label_list, self.resize_shape)
            write_boxes(self.output_dir, boxes)
        return boxes

    def _measure(self, answer: Mapping[str, Any]) -> Measure:
        return left_top_width_height


class BlazeFacePostprocess(RCNNPostprocess):
    """A face detector's output, whose corners are parts of the sides, as a list of boxes in pixels.

    The answer also has ``im_shape``: height and width of the picture.
    """

    def _measure(self, answer: Mapping[str, Any]) -> Measure:
        if "im_shape" not in answer:
            raise ValueError(
                "BlazeFacePostprocess takes the picture's height and width, 'im_shape'"
            )
        shape = numbers("BlazeFacePostprocess", answer["im_shape"])
        height, width = (int(side) for side in shape.reshape(-1)[:2])

        def of_sides(corners: Sequence[float]) -> list[float]:
            left, top, right, bottom = (max(min(corner, 1.0), 0.0) for corner in corners)
            return [left * width, top * height, (right - left) * width, (bottom - top) * height]

        return of_sides


class SegPostprocess(Transform):
    """A segmentation's output, as a coloured picture, which is also written.

    Args:
        class_num: how many classes the network tells apart.
    """

    def __init__(self, class_num: int) -> None:
        opencv("SegPostprocess")
        self.class_num = class_num

    def __call__(self, image_with_result: Mapping[str, Any]) -> NDArray[np.uint8]:
        """The coloured picture ``[height, width, 3]``, of the size of the one that was segmented.

        Args:
            image_with_result: under ``filename`` the path of that picture; under a name of its own
                the class of each pixel, ``[height, width]`` with any axes of length 1, or 512 x 512
                in any shape. Beside ``picture.jpg`` this writes ``picture_jpg_mask.png``, the
                classes, and ``picture_jpg_result.png``, the colours.

        Raises:
            TypeError: the output is not an array of numbers.
            ValueError: a name is missing, the shape is another one, a class is ``class_num`` or
                above, or the file is no picture.
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
            raise ValueError(f"SegPostprocess: OpenCV reads no picture from {path}")
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
        array = np.squeeze(numbers("SegPostprocess", value))
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
        array = numbers(user, answer[name])
        if array.shape == (1, 1):
            return []
        if array.ndim == 2 and array.shape[1] == COLUMNS:
            # Outputs without offsets, and with empty ones, are those of a single picture.
            lod = answer.get(f"{name}.lod")
            count = len(array) if lod is None or not len(lod) else int(lod[-1])
            rows: list[list[float]] = array[:count].tolist()
            return rows
    raise ValueError(f"{user} takes an output of {COLUMNS} columns, got {sorted(answer)}")


def generate_colormap(num_classes: int) -> list[list[int]]:
    """A colour ``[a, b, c]`` for each class, from 0 to 255, far apart for neighbours.

    Each group of three bits of the class gives a bit to each channel, the lowest group the highest
    bit, as in the palette of the PASCAL VOC data set.
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
    """Draw boxes with their labels and scores on a picture of Pillow, and return it."""
    from PIL import ImageDraw  # there, since the picture is

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
