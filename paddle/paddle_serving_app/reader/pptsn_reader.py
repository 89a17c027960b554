"""A video file to what networks for actions take, by steps over a dict.

The dict begins as ``{"filename": path}``. ``VideoDecoder`` adds all frames, ``Sampler`` chooses
some as ``imgs``, and the others change ``imgs``. Until ``Image2Array`` these are a list of uint8
arrays ``[height, width, 3]``, red first; pictures of Pillow are taken too. No step changes the dict
or the arrays that it is given.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader.arrays import numbers
from paddle_serving_app.reader.functional import scaled
from paddle_serving_app.reader.libraries import opencv, pillow
from paddle_serving_app.reader.transforms import Transform, check_deviations

Results = Mapping[str, Any]
DENSE_FRAMES = 64  # how many frames a dense sample spans
DENSE_CLIPS = 10  # how many of them a valid one has


class VideoDecoder(Transform):
    """Adds ``frames``, ``frames_len``, ``format`` and ``backend``.

    Args:
        backend: only ``cv2``.
        mode: no effect, as all that follow.
        sampling_rate: see ``mode``.
        num_seg: see ``mode``.
        num_clips: see ``mode``.
        target_fps: see ``mode``.

    Raises:
        ValueError: another backend, or OpenCV reads no frame from the file.
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
        """The dict with all frames, ``[height, width, 3]`` uint8, red first."""
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
    """Chooses frames, as ``imgs``.

    The frames are those of ``VideoDecoder``; or, with ``format`` ``frame``, files of the folder
    ``frame_dir``, of which ``suffix.format(number)`` is the name of one, numbered from 1 to
    ``frames_len``.

    Args:
        num_seg: into how many segments of one length the frames are cut.
        seg_len: how many frames in a row are taken of each.
        frame_interval: the distance of frames in a row, instead of 1; places are chosen within each
            segment, then.
        valid_mode: take the middle of each segment, not a random place.
        select_left: places by the exact length of a segment rather than its whole part; one frame
            of each.
        dense_sample: ``num_seg`` frames within 64, from a random place or from ten that are spread.
        linspace_sample: ``num_seg`` frames from the first to the last, or from ``start_idx`` to
            ``end_idx`` of the dict.
        use_pil: no effect.

    Raises:
        ValueError: another format, or no frames.
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
        """The dict with ``imgs``."""
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
        """Places of frames from 0; some may be above the last, of a video that is repeated."""
        if self.frame_interval is not None:
            return self._clips(count, self.frame_interval)
        if self.linspace_sample:
            first, last = results.get("start_idx", 0), results.get("end_idx", count - 1)
            return np.clip(np.linspace(first, last, self.num_seg), 0, count - 1)
        if self.select_left:
            return self._one_of_each(count)
        if self.dense_sample:
            # A frame later in a video than in a folder, as in the original.
            shift = int(results["format"] == "video")
            return [place + shift for place in self._dense(count)]
        return self._runs(count)

    def _clips(self, count: int, interval: int) -> NDArray[Any]:
        length = self.seg_len * interval
        free = count - length + 1  # places where a clip can begin
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
                # Of a segment, the original takes the middle of all its frames, not of its places.
                start += (length - 1) // 2 if self.valid_mode else random.randint(0, last)  # noqa: S311
            places.extend(range(start, start + self.seg_len))
        return places


class Scale(Transform):
    """Scales each picture, so that its short side has a length.

    Args:
        short_size: that length, in pixels.
        fixed_ratio: the long side is 4/3 of it, whatever it was.
        keep_ratio: the long side follows in proportion; without either, it is as long as the short.
        do_round: with ``keep_ratio``, round sides to the nearest instead of down. Without
            ``do_round`` both sides are scaled by the other, so that the short one becomes shorter
            than ``short_size``, as in the original.
        backend: ``cv2``, bilinear; or ``pillow``, also bilinear but over all pixels that a new one
            covers.

    Raises:
        ValueError: another backend, or both ratios.
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
        """The dict with ``imgs`` of another size, of the same dtype."""
        return {**results, "imgs": [self._scaled(img) for img in results["imgs"]]}

    def _scaled(self, img: Any) -> NDArray[np.uint8]:
        array = _picture("Scale", img)
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
    """Cuts four corners and the centre out of each picture, and mirrors them.

    ``imgs`` becomes ten times as long: one corner of all pictures, then the same mirrored. The
    order is top left, top right, bottom left, bottom right, centre.

    Args:
        target_size: the side of a crop, in pixels.

    Raises:
        ValueError: the pictures are smaller.
    """

    def __init__(self, target_size: int) -> None:
        self.target_size = target_size

    def __call__(self, results: Results) -> dict[str, Any]:
        """The dict with ten times as many ``imgs``, which are views."""
        imgs = [_picture("TenCrop", img) for img in results["imgs"]]
        side = self.target_size
        # Places for all by the first, in quarters of what is free, rounded down.
        height, width = imgs[0].shape[:2]
        y, x = (height - side) // 4, (width - side) // 4
        if min(y, x) < 0:
            raise ValueError(f"TenCrop({side}) got pictures of shape {imgs[0].shape}")
        corners = [(0, 0), (4 * x, 0), (0, 4 * y), (4 * x, 4 * y), (2 * x, 2 * y)]
        crops = []
        for left, top in corners:
            cut = [img[top : top + side, left : left + side] for img in imgs]
            crops += cut + [img[:, ::-1] for img in cut]
        return {**results, "imgs": crops}


class Image2Array(Transform):
    """Stacks the pictures to one float32 array.

    Args:
        transpose: move the channels; otherwise they stay last.
        data_format: ``tchw``, behind the pictures, or ``cthw``, before them.

    Raises:
        ValueError: another format, or pictures of unlike shapes.
    """

    def __init__(self, transpose: bool = True, data_format: str = "tchw") -> None:
        if data_format not in ("tchw", "cthw"):
            raise ValueError(f"Image2Array takes 'tchw' or 'cthw', got {data_format!r}")
        self.transpose = transpose
        self.data_format = data_format

    def __call__(self, results: Results) -> dict[str, Any]:
        """The dict with ``imgs`` as an array of four axes, from 0 to 255."""
        imgs = [_picture("Image2Array", img) for img in results["imgs"]]
        if len({img.shape for img in imgs}) != 1:
            raise ValueError(f"Image2Array got pictures of shapes {[img.shape for img in imgs]}")
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
        std: likewise, none of them 0.
        tensor_shape: what mean and std are brought to, to match the axes of ``imgs``.
        inplace: ``(imgs - mean) / std`` instead, of pictures whose channels are last. (The name is
            the original's; nothing is changed in place.)

    Raises:
        TypeError: mean or std is not a list or tuple, or ``imgs`` are not numbers.
        ValueError: means and deviations of unlike numbers, or a deviation of 0.
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
        """The dict with ``imgs`` normalized, of the same shape."""
        imgs = numbers("Normalization", results["imgs"]).astype(np.float32)
        if self.inplace:
            # In double precision, with a rounding after each step.
            imgs -= self.mean.astype(np.float64)
            imgs *= 1 / self.std.astype(np.float64)
        else:
            imgs /= np.float32(255)
            imgs -= self.mean
            imgs /= self.std
        return {**results, "imgs": imgs}


def _picture(user: str, img: object) -> NDArray[Any]:
    array = numbers(user, img, 3)
    if not array.size:
        raise ValueError(f"{user} takes pictures, got shape {array.shape}, which has no pixels")
    return array


def _read(path: Path) -> NDArray[np.uint8]:
    with pillow("Sampler").open(path) as image:
        return np.asarray(image.convert("RGB"))
