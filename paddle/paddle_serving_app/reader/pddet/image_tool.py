"""A picture to what a detector takes, and its answer to boxes, as ``infer_cfg.yml`` says.

Pictures are ``[height, width, 3]``, red first. No step changes the array that it is given.
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
from paddle_serving_app.reader.arrays import numbers, picture
from paddle_serving_app.reader.libraries import opencv, pillow
from paddle_serving_app.reader.results import (
    Detection as Box,
)
from paddle_serving_app.reader.results import (
    boxes_of,
    left_top_width_height,
    write_boxes,
    write_picture,
)
from paddle_serving_app.reader.transforms import PadStride, Transform, check_deviations, decoded

LINEAR = 1  # OpenCV's number for bilinear interpolation


class Resize(Transform):
    """Scales a picture.

    Args:
        target_size: the short side; both sides, if there is no ``max_size``.
        max_size: the longest that the other side may become; 0 for none.
        interp: interpolation, a number of OpenCV's, or of Pillow's without ``use_cv2``.
        use_cv2: by OpenCV; otherwise by Pillow, which goes without ``max_size`` only.
        image_shape: anything but ``None`` pads to ``max_size`` on both sides, in float32.

    Raises:
        ValueError: Pillow and ``max_size``.
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
        """The picture, and the factor of its width."""
        array = picture("Resize", im)
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
        std: likewise, none of them 0.
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
        """A picture of any dtype, to float32."""
        array = numbers("Normalize", im, 3).astype(np.float32)
        if self.is_scale:
            array = array / np.float32(255)
        return functional.normalize(array, self.mean, self.std, self.is_channel_first)


class Permute(Transform):
    """Puts the channels first, and blue first.

    Args:
        to_bgr: reverse the channels, which must be on the first axis then.
        channel_first: move them there.
    """

    def __init__(self, to_bgr: bool = False, channel_first: bool = True) -> None:
        self.to_bgr = to_bgr
        self.channel_first = channel_first

    def __call__(self, im: NDArray[Any]) -> NDArray[Any]:
        """An array of three axes and any dtype, to the same dtype."""
        array = numbers("Permute", im, 3)
        if self.channel_first:
            array = array.transpose(2, 0, 1)
        return array[::-1].copy() if self.to_bgr else array.copy()


STEPS = {"Resize": Resize, "Normalize": Normalize, "Permute": Permute, "PadStride": PadStride}


class Detection:
    """Before and after a detector.

    Args:
        config_path: the configuration, of which ``arch``, ``Preprocess``, ``with_background`` and
            ``label_list`` are read.
        output_dir: where ``postprocess`` writes. It does not where the attributes ``if_visualize``
            (the picture with its boxes) and ``if_dump_result`` (``bbox.json``) are false.

    Raises:
        OSError: the configuration cannot be read.
        ValueError: a key is missing, or an architecture or a step has another name.
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
        """The inputs of one picture, without the axis of the batch.

        Args:
            feed_var_names: names of the inputs, of which the picture is the first. Then follow, for
                YOLO, its height and width; for RetinaNet and R-CNN, height and width that the
                network is given and the factor; for R-CNN also its own height and width and 1.
            image_file: path of the picture.

        Raises:
            OSError: the picture cannot be read.
            ValueError: it is none, or the names are not as many.
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
        """The boxes of the picture that ``preprocess`` was given last.

        Args:
            fetch_map: what the network answered, as ``RCNNPostprocess`` takes it.
            fetch_var_names: the first is the name of the output.

        Raises:
            ValueError: there is no such output, or it names a class without a label.
        """
        name = fetch_var_names[0]
        answer = {key: fetch_map[key] for key in (name, f"{name}.lod") if key in fetch_map}
        boxes = boxes_of("Detection", answer, self._labels, left_top_width_height)
        if self.if_visualize:
            write_picture(self.output_dir, Path(self.infer_img), boxes, self._labels)
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
