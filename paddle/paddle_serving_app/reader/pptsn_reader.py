"""Converts a video file to the input of networks for action recognition, by transforms of a dict.

The dict begins as ``{"filename": path}``. ``VideoDecoder`` adds all frames, ``Sampler`` selects
some as ``imgs``, and the other transforms change ``imgs``. Until ``Image2Array``, ``imgs`` is a
list of uint8 arrays ``[height, width, 3]`` in RGB order, or of Pillow images. No transform changes
its arguments.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader.arrays import numeric_array
from paddle_serving_app.reader.functional import scaled
from paddle_serving_app.reader.libraries import opencv, pillow
from paddle_serving_app.reader.transforms import Transform, check_deviations

Results = Mapping[str, Any]
DENSE_FRAMES = 64  # frames that a dense sample spans
DENSE_CLIPS = 10  # clips of a dense sample in valid_mode


class VideoDecoder(Transform):
    """Adds ``frames``, ``frames_len``, ``format`` and ``backend``.

    Args:
        backend: must be ``cv2``.
        mode: no effect.
        sampling_rate: no effect.
        num_seg: no effect.
        num_clips: no effect.
        target_fps: no effect.

    Raises:
        ValueError: ``backend`` is not ``cv2``, or OpenCV reads no frame from the file.
    """

    def __init__(
        self,
        backend: str = "cv2",
        mode: str = "train",
        sampling_rate: int = 32,
        num_seg: int = 8,
        num_clips: int = 1,
        target_fps: int = 30,
    ) -> None:
        opencv("VideoDecoder")
        if backend != "cv2":
            raise ValueError(f"VideoDecoder takes the backend 'cv2', got {backend!r}")
        self.backend = backend

    def __call__(self, results: Results) -> dict[str, Any]:
        """Return the dict with all frames, uint8 ``[height, width, 3]`` in RGB order."""
        cv2 = opencv("VideoDecoder")
        filename = str(results["filename"])
        capture = cv2.VideoCapture(filename)
        try:
            reads = (capture.read() for _ in range(int(capture.get(cv2.CAP_PROP_FRAME_COUNT))))
            frames = [frame[:, :, ::-1] for good, frame in reads if good]
        finally:
            capture.release()
        if not frames:
            raise ValueError(f"VideoDecoder: OpenCV reads no frame from {filename}")
        return {
            **results,
            "format": "video",
            "backend": self.backend,
            "frames": frames,
            "frames_len": len(frames),
        }


class Sampler(Transform):
    """Selects frames, as ``imgs``.

    The frames are those of ``VideoDecoder``; or, if ``format`` is ``frame``, the files
    ``suffix.format(number)`` in the folder ``frame_dir``, numbered from 1 to ``frames_len``.

    Args:
        num_seg: number of segments of equal length into which the frames are divided.
        seg_len: number of consecutive frames taken from each segment.
        frame_interval: distance between the frames taken from a segment, instead of 1; positions
            are then chosen within each segment.
        valid_mode: take the middle of each segment, not a random position.
        select_left: compute positions from the exact length of a segment, not from its integer
            part; take one frame from each.
        dense_sample: take ``num_seg`` frames within 64, from one random start, or from ten evenly
            spaced ones with ``valid_mode``.
        linspace_sample: take ``num_seg`` evenly spaced frames, from first to last, or from
            ``start_idx`` to ``end_idx`` of the dict.
        use_pil: no effect.

    Raises:
        ValueError: the format is unknown, or there are no frames.
    """

    def __init__(
        self,
        num_seg: int,
        seg_len: int,
        frame_interval: int | None = None,
        valid_mode: bool = False,
        select_left: bool = False,
        dense_sample: bool = False,
        linspace_sample: bool = False,
        use_pil: bool = True,
    ) -> None:
        self.num_seg = num_seg
        self.seg_len = seg_len
        self.frame_interval = frame_interval
        self.valid_mode = valid_mode
        self.select_left = select_left
        self.dense_sample = dense_sample
        self.linspace_sample = linspace_sample

    def __call__(self, results: Results) -> dict[str, Any]:
        """Return the dict with ``imgs``."""
        count = int(results["frames_len"])
        if count < 1:
            raise ValueError("Sampler got a video without frames")
        places = [int(place) for place in self._places(count, results)]
        if results["format"] == "video":
            imgs = [results["frames"][place % count] for place in places]
        elif results["format"] == "frame":
            folder, name = Path(results["frame_dir"]), results["suffix"]
            imgs = [_read(folder / name.format(place + 1)) for place in places]
        else:
            raise ValueError(
                f"Sampler takes the format 'video' or 'frame', got {results['format']!r}"
            )
        return {**results, "imgs": imgs}

    def _places(self, count: int, results: Results) -> Sequence[float] | NDArray[Any]:
        """Return indices of frames. In a video, indices past the last frame wrap around."""
        if self.frame_interval is not None:
            return self._clips(count, self.frame_interval)
        if self.linspace_sample:
            first, last = results.get("start_idx", 0), results.get("end_idx", count - 1)
            return np.clip(np.linspace(first, last, self.num_seg), 0, count - 1)
        if self.select_left:
            return self._one_of_each(count)
        if self.dense_sample:
            # In videos, the original's positions are one frame later than in folders.
            shift = int(results["format"] == "video")
            return [place + shift for place in self._dense(count)]
        return self._runs(count)

    def _clips(self, count: int, interval: int) -> NDArray[Any]:
        length = self.seg_len * interval
        free = count - length + 1  # number of possible starts of a clip
        segments = np.arange(self.num_seg)
        starts: NDArray[Any]
        if self.valid_mode:
            step = free / self.num_seg
            starts = (segments * step + step / 2).astype(np.int64) if free > 0 else 0 * segments
        elif free // self.num_seg > 0:
            step = free // self.num_seg
            starts = segments * step + np.random.randint(step, size=self.num_seg)
        elif count > max(self.num_seg, length):
            starts = np.sort(np.random.randint(free, size=self.num_seg))
        else:
            starts = np.around(segments * max(free, 0) / self.num_seg)
        clips: NDArray[Any] = starts[:, np.newaxis] + np.arange(self.seg_len) * interval
        return clips.reshape(-1) % count

    def _one_of_each(self, count: int) -> NDArray[Any]:
        segments = np.arange(self.num_seg)
        if self.valid_mode:
            step = count / self.num_seg
            return step / 2 + step * segments if count > self.num_seg else 0 * segments
        if count // self.num_seg > 0:
            step = count // self.num_seg
            return segments * step + np.random.randint(step, size=self.num_seg)
        return 0 * segments

    def _dense(self, count: int) -> list[int]:
        stride = DENSE_FRAMES // self.num_seg
        free = max(1, 1 + count - DENSE_FRAMES)
        if self.valid_mode:
            starts = np.linspace(0, free - 1, num=DENSE_CLIPS, dtype=int).tolist()
        else:
            starts = [0 if free == 1 else int(np.random.randint(0, free - 1))]
        return [(i * stride + start) % count for start in starts for i in range(self.num_seg)]

    def _runs(self, count: int) -> list[int]:
        length = count // self.num_seg
        places: list[int] = []
        for segment in range(self.num_seg):
            start = segment * max(length, 1)
            if length >= self.seg_len:
                last = length - self.seg_len
                # The original takes the middle of a segment's frames, not of its possible starts.
                start += (length - 1) // 2 if self.valid_mode else random.randint(0, last)  # noqa: S311
            places.extend(range(start, start + self.seg_len))
        return places


class Scale(Transform):
    """Resizes each image to a length of its short side.

    Args:
        short_size: length of the short side, in pixels.
        fixed_ratio: make the long side 4/3 of the short side.
        keep_ratio: keep the aspect ratio. With neither option, the result is a square.
        do_round: with ``keep_ratio``, round sides to the nearest instead of down. Without
            ``do_round`` both sides are scaled by the other, so that the short one becomes shorter
            than ``short_size``, as in the original.
        backend: ``cv2``, bilinear; or ``pillow``, bilinear with antialiasing.

    Raises:
        ValueError: the backend is unknown, or both ``fixed_ratio`` and ``keep_ratio`` are true.
    """

    def __init__(
        self,
        short_size: int,
        fixed_ratio: bool = True,
        keep_ratio: bool | None = None,
        do_round: bool = False,
        backend: str = "pillow",
    ) -> None:
        if fixed_ratio and keep_ratio:
            raise ValueError("Scale takes fixed_ratio or keep_ratio, not both")
        if backend not in ("pillow", "cv2"):
            raise ValueError(f"Scale takes the backend 'pillow' or 'cv2', got {backend!r}")
        (pillow if backend == "pillow" else opencv)("Scale")
        self.short_size = short_size
        self.fixed_ratio = fixed_ratio
        self.keep_ratio = keep_ratio
        self.do_round = do_round
        self.backend = backend

    def __call__(self, results: Results) -> dict[str, Any]:
        """Return the dict with resized ``imgs``, of the same dtype."""
        return {**results, "imgs": [self._scaled(img) for img in results["imgs"]]}

    def _scaled(self, img: Any) -> NDArray[np.uint8]:
        array = _image_array("Scale", img)
        height, width = array.shape[:2]
        new_width, new_height = self._size(width, height)
        if self.backend == "cv2":
            return scaled("Scale", array, new_width, new_height)
        image = pillow("Scale")
        resized = image.fromarray(array).resize((new_width, new_height), image.Resampling.BILINEAR)
        return np.asarray(resized)

    def _size(self, width: int, height: int) -> tuple[int, int]:
        short = self.short_size
        if self.keep_ratio and not self.fixed_ratio:
            if self.do_round:
                scale = short / min(width, height)
                return int(width * scale + 0.5), int(height * scale + 0.5)
            return int(width * short / height), int(height * short / width)
        long = int(short * 4.0 / 3.0) if self.fixed_ratio else short
        return (short, long) if width <= height else (long, short)


class TenCrop(Transform):
    """Crops four corners and the centre of each image, and mirrors the crops.

    ``imgs`` becomes ten times as long: one crop of all images, then the same crop mirrored. The
    order is top left, top right, bottom left, bottom right, centre.

    Args:
        target_size: the side of a crop, in pixels.

    Raises:
        ValueError: the images are smaller than ``target_size``.
    """

    def __init__(self, target_size: int) -> None:
        self.target_size = target_size

    def __call__(self, results: Results) -> dict[str, Any]:
        """Return the dict with ten times as many ``imgs``, which are views."""
        imgs = [_image_array("TenCrop", img) for img in results["imgs"]]
        side = self.target_size
        # Offsets of all images are those of the first: quarters of the free length, rounded down.
        height, width = imgs[0].shape[:2]
        y, x = (height - side) // 4, (width - side) // 4
        if min(y, x) < 0:
            raise ValueError(f"TenCrop({side}) got images of shape {imgs[0].shape}")
        corners = [(0, 0), (4 * x, 0), (0, 4 * y), (4 * x, 4 * y), (2 * x, 2 * y)]
        crops = []
        for left, top in corners:
            cut = [img[top : top + side, left : left + side] for img in imgs]
            crops += cut + [img[:, ::-1] for img in cut]
        return {**results, "imgs": crops}


class Image2Array(Transform):
    """Stacks the images to one float32 array.

    Args:
        transpose: order the axes by ``data_format``; otherwise channels stay last.
        data_format: ``tchw`` or ``cthw``; t is the axis of images.

    Raises:
        ValueError: the format is unknown, or the images differ in shape.
    """

    def __init__(self, transpose: bool = True, data_format: str = "tchw") -> None:
        if data_format not in ("tchw", "cthw"):
            raise ValueError(f"Image2Array takes 'tchw' or 'cthw', got {data_format!r}")
        self.transpose = transpose
        self.data_format = data_format

    def __call__(self, results: Results) -> dict[str, Any]:
        """Return the dict with ``imgs`` as an array of four axes, from 0 to 255."""
        imgs = [_image_array("Image2Array", img) for img in results["imgs"]]
        if len({img.shape for img in imgs}) != 1:
            raise ValueError(f"Image2Array got images of shapes {[img.shape for img in imgs]}")
        array = np.stack(imgs).astype(np.float32)
        if self.transpose:
            array = (
                array.transpose(0, 3, 1, 2)
                if self.data_format == "tchw"
                else array.transpose(3, 0, 1, 2)
            )
        return {**results, "imgs": array}


class Normalization(Transform):
    """``(imgs / 255 - mean) / std`` for each channel, in float32.

    Args:
        mean: one number for each channel.
        std: standard deviations, one for each channel, not 0.
        tensor_shape: shape to which mean and std are reshaped, to broadcast over ``imgs``.
        inplace: compute ``(imgs - mean) / std``, for images whose channels are last. (The name is
            the original's; nothing is changed in place.)

    Raises:
        TypeError: mean or std is not a list or tuple, or ``imgs`` is not numeric.
        ValueError: mean and std differ in length, or a standard deviation is 0.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        tensor_shape: Sequence[int] = (3, 1, 1),
        inplace: bool = False,
    ) -> None:
        for name, values in (("mean", mean), ("std", std)):
            if not isinstance(values, Sequence):
                raise TypeError(
                    f"Normalization takes {name} as a list or tuple, got {type(values).__name__}"
                )
        check_deviations("Normalization", mean, std)
        self.inplace = inplace
        shape = (-1,) if inplace else tuple(tensor_shape)
        self.mean = np.array(mean, dtype=np.float32).reshape(shape)
        self.std = np.array(std, dtype=np.float32).reshape(shape)

    def __call__(self, results: Results) -> dict[str, Any]:
        """Return the dict with ``imgs`` normalized, of the same shape."""
        imgs = numeric_array("Normalization", results["imgs"]).astype(np.float32)
        if self.inplace:
            # As in the original: float64 values, rounded to float32 after each operation.
            imgs -= self.mean.astype(np.float64)
            imgs *= 1 / self.std.astype(np.float64)
        else:
            imgs /= np.float32(255)
            imgs -= self.mean
            imgs /= self.std
        return {**results, "imgs": imgs}


def _image_array(user: str, img: object) -> NDArray[Any]:
    array = numeric_array(user, img, 3)
    if not array.size:
        raise ValueError(f"{user} takes images, got shape {array.shape}, which has no pixels")
    return array


def _read(path: Path) -> NDArray[np.uint8]:
    with pillow("Sampler").open(path) as image:
        return np.asarray(image.convert("RGB"))
