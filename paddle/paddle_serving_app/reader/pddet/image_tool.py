"""Converts an image to a detector's inputs, and its output to boxes, as ``infer_cfg.yml`` says.

Images are ``[height, width, 3]`` in RGB order. No step changes its arguments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ruamel.yaml import YAML

from paddle_serving_app.reader import functional
from paddle_serving_app.reader.arrays import image_array, numeric_array
from paddle_serving_app.reader.libraries import opencv, pillow
from paddle_serving_app.reader.results import (
    Detection as Box,
)
from paddle_serving_app.reader.results import (
    boxes_of,
    left_top_width_height,
    write_boxes,
    write_image,
)
from paddle_serving_app.reader.transforms import PadStride, Transform, check_deviations, decoded

LINEAR = 1  # bilinear interpolation in OpenCV


class Resize(Transform):
    """Resizes an image.

    Args:
        target_size: length of the short side; of both sides if ``max_size`` is 0.
        max_size: maximum length of the long side.
        interp: interpolation flag of OpenCV, or of Pillow.
        use_cv2: resize with OpenCV; otherwise with Pillow, which requires ``max_size`` 0.
        image_shape: unless ``None``, pad both sides to ``max_size``, as float32.

    Raises:
        ValueError: ``max_size`` is given without ``use_cv2``.
    """

    def __init__(
        self,
        target_size: int,
        max_size: int = 0,
        interp: int = LINEAR,
        use_cv2: bool = True,
        image_shape: Sequence[int] | None = None,
    ) -> None:
        (opencv if use_cv2 else pillow)("Resize")
        if max_size and not use_cv2:
            raise ValueError("Resize takes max_size only with use_cv2")
        self.target_size = target_size
        self.max_size = max_size
        self.interp = interp
        self.use_cv2 = use_cv2
        self.image_shape = image_shape

    def __call__(self, im: NDArray[Any]) -> tuple[NDArray[Any], float]:
        """Return the resized image, and the scale factor of its width."""
        array = image_array("Resize", im)
        height, width = array.shape[:2]
        y_scale, x_scale = self.target_size / height, self.target_size / width
        if self.max_size:
            scale = self.target_size / min(height, width)
            if np.round(scale * max(height, width)) > self.max_size:
                scale = self.max_size / max(height, width)
            y_scale = x_scale = scale
        if not self.use_cv2:
            image = pillow("Resize").fromarray(array.astype(np.uint8))
            size = (self.target_size, self.target_size)
            return np.asarray(image.resize(size, self.interp)), x_scale
        resized = functional.scaled_by("Resize", array, x_scale, y_scale, self.interp)
        if self.max_size and self.image_shape is not None:
            padded = np.zeros((self.max_size, self.max_size, resized.shape[2]), dtype=np.float32)
            padded[: resized.shape[0], : resized.shape[1]] = resized
            resized = padded
        return resized, x_scale


class Normalize(Transform):
    """``(im / 255 - mean) / std`` for each channel, in float32.

    Args:
        mean: one number for each channel.
        std: standard deviations, one for each channel, not 0.
        is_scale: divide by 255 first.
        is_channel_first: the channels are on the first axis instead of the last.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        is_scale: bool = True,
        is_channel_first: bool = False,
    ) -> None:
        check_deviations("Normalize", mean, std)
        self.mean = mean
        self.std = std
        self.is_scale = is_scale
        self.is_channel_first = is_channel_first

    def __call__(self, im: NDArray[Any]) -> NDArray[np.float32]:
        """Convert an image of any dtype to float32."""
        array = numeric_array("Normalize", im, 3).astype(np.float32)
        if self.is_scale:
            array = array / np.float32(255)
        return functional.normalize(array, self.mean, self.std, self.is_channel_first)


class Permute(Transform):
    """Moves the channels to the first axis, and reverses them.

    Args:
        to_bgr: reverse the channels; requires channels on the first axis.
        channel_first: move the channels to the first axis.
    """

    def __init__(self, to_bgr: bool = False, channel_first: bool = True) -> None:
        self.to_bgr = to_bgr
        self.channel_first = channel_first

    def __call__(self, im: NDArray[Any]) -> NDArray[Any]:
        """Convert an array of three axes; its dtype stays."""
        array = numeric_array("Permute", im, 3)
        if self.channel_first:
            array = array.transpose(2, 0, 1)
        return array[::-1].copy() if self.to_bgr else array.copy()


STEPS = {"Resize": Resize, "Normalize": Normalize, "Permute": Permute, "PadStride": PadStride}


class Detection:
    """Pre- and postprocessing of a detector.

    Args:
        config_path: the configuration file; its keys ``arch``, ``Preprocess``, ``with_background``
            and ``label_list`` are used.
        output_dir: folder to which ``postprocess`` writes the image with its boxes, if the
            attribute ``if_visualize`` is true, and ``bbox.json``, if ``if_dump_result`` is true.

    Raises:
        OSError: the configuration cannot be read.
        ValueError: a key is missing, or an architecture or step is unknown.
    """

    def __init__(
        self, config_path: str | os.PathLike[str], output_dir: str | os.PathLike[str]
    ) -> None:
        self.config_path = config_path
        self.output_dir = output_dir
        self.if_visualize = True
        self.if_dump_result = True
        self.infer_img: str | os.PathLike[str] = ""
        config = YAML(typ="safe", pure=True).load(Path(config_path))
        keys = ("arch", "Preprocess", "with_background", "label_list")
        if not isinstance(config, dict) or not set(keys) <= config.keys():
            raise ValueError(f"Detection takes the keys {', '.join(keys)} in {config_path}")
        self._architecture = _architecture(config["arch"])
        self._steps = [_step(dict(step)) for step in config["Preprocess"]]
        labels = list(config["label_list"])
        if config["with_background"] != (labels[:1] == ["background"]):
            labels = ["background", *labels] if config["with_background"] else labels[1:]
        self._labels = labels

    def preprocess(
        self, feed_var_names: Sequence[str], image_file: str | os.PathLike[str]
    ) -> dict[str, NDArray[Any]]:
        """Return the inputs for one image, without a batch axis.

        Args:
            feed_var_names: names of the inputs. The first is the image. YOLO adds the original
                size. RetinaNet and R-CNN add the input size with the scale factor. R-CNN also adds
                the original size with a factor of 1. A size is height and width.
            image_file: path of the image.

        Raises:
            OSError: the image cannot be read.
            ValueError: the file is not an image, or the number of names does not fit.
        """
        self.infer_img = image_file
        blue_first = decoded("Detection", Path(image_file).read_bytes())
        im: NDArray[Any] = np.ascontiguousarray(blue_first[:, :, ::-1])
        own = im.shape[:2]
        scale = 1.0
        for step in self._steps:
            if isinstance(step, Resize):
                im, scale = step(im)
            else:
                im = step(im)
        inputs = [im, *self._more(im.shape[1:], own, scale)]
        if len(inputs) != len(feed_var_names):
            raise ValueError(
                f"Detection makes {len(inputs)} inputs for {self._architecture},"
                f" got the names {list(feed_var_names)}"
            )
        return dict(zip(feed_var_names, inputs, strict=True))

    def postprocess(
        self, fetch_map: Mapping[str, Any], fetch_var_names: Sequence[str]
    ) -> list[Box]:
        """Return the boxes of the image for which ``preprocess`` was called last.

        Args:
            fetch_map: the network's outputs, as for ``RCNNPostprocess``.
            fetch_var_names: the first is the name of the output with boxes.

        Raises:
            ValueError: the output is missing, or a class has no label.
        """
        name = fetch_var_names[0]
        answer = {key: fetch_map[key] for key in (name, f"{name}.lod") if key in fetch_map}
        boxes = boxes_of("Detection", answer, self._labels, left_top_width_height)
        if self.if_visualize:
            write_image(self.output_dir, Path(self.infer_img), boxes, self._labels)
        if self.if_dump_result:
            write_boxes(self.output_dir, boxes)
        return boxes

    def _more(
        self, given: tuple[int, ...], own: tuple[int, ...], scale: float
    ) -> list[NDArray[Any]]:
        of_network = np.array([*given, scale], dtype=np.float32)
        if self._architecture == "YOLO":
            return [np.array(own, dtype=np.int32)]
        if self._architecture == "RetinaNet":
            return [of_network]
        if self._architecture == "RCNN":
            return [of_network, np.array([*own, 1.0], dtype=np.float32)]
        return []


def _architecture(name: str) -> str:
    for known in ("YOLO", "SSD", "RetinaNet", "RCNN"):
        if known in name:
            return known
    raise ValueError(f"Detection takes YOLO, SSD, RetinaNet and RCNN, got the arch {name!r}")


def _step(arguments: dict[str, Any]) -> Resize | Normalize | Permute | PadStride:
    name = arguments.pop("type")
    if name not in STEPS:
        raise ValueError(f"Detection takes the steps {', '.join(STEPS)}, got {name!r}")
    step: Resize | Normalize | Permute | PadStride = STEPS[name](**arguments)
    return step
