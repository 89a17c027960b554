"""Videos to the inputs of action recognition networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paddle_serving_app.reader import (
    Image2Array,
    Normalization,
    Sampler,
    Scale,
    TenCrop,
    VideoDecoder,
)


def numbered(count: int) -> dict[str, Any]:
    """A video whose frames are their indices."""
    return {"format": "video", "backend": "cv2", "frames": range(count), "frames_len": count}


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "v.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
    for index in range(30):
        writer.write(np.full((48, 64, 3), (8 * index, 0, 255 - 8 * index), dtype=np.uint8))
    writer.release()
    return path


def test_a_video_is_converted_to_the_networks_input(video: Path) -> None:
    """The chain of the original's example, at a smaller size."""
    results: dict[str, Any] = {"filename": str(video)}
    for step in (
        VideoDecoder(),
        Sampler(5, 1, valid_mode=True, select_left=True),
        Scale(32, fixed_ratio=True, do_round=True, backend="cv2"),
        TenCrop(28),
        Image2Array(),
        Normalization([0.5, 0.5, 0.5], [0.5, 0.25, 0.5]),
    ):
        results = step(results)
    imgs = results["imgs"]
    assert imgs.shape == (50, 3, 28, 28)
    assert imgs.dtype == np.float32
    # The middles of five segments of 6 frames; ten crops, each of all five. Red, then green, blue.
    places = np.tile([3, 9, 15, 21, 27], 10)
    assert imgs[:, 0].mean(axis=(1, 2)) == pytest.approx((255 - 8 * places) / 127.5 - 1, abs=0.05)
    assert imgs[:, 1].mean(axis=(1, 2)) == pytest.approx([-2] * 50, abs=0.05)
    assert imgs[:, 2].mean(axis=(1, 2)) == pytest.approx(8 * places / 127.5 - 1, abs=0.05)


def test_an_invalid_video_is_refused(tmp_path: Path) -> None:
    for name in ("none.mp4", "text.mp4"):
        (tmp_path / "text.mp4").write_text("no video")
        with pytest.raises(ValueError, match=rf"VideoDecoder: .* no frame from .*{name}"):
            VideoDecoder()({"filename": tmp_path / name})
    with pytest.raises(ValueError, match="VideoDecoder takes the backend 'cv2', got 'decord'"):
        VideoDecoder(backend="decord")


@pytest.mark.parametrize(
    ("arguments", "count", "expected"),
    [
        # Segments of 7.5 frames, their middles rounded down; of 7 frames, their third.
        ({"num_seg": 4, "seg_len": 1, "select_left": True}, 30, [3, 11, 18, 26]),
        ({"num_seg": 4, "seg_len": 1}, 30, [3, 10, 17, 24]),
        ({"num_seg": 2, "seg_len": 3}, 10, [2, 3, 4, 7, 8, 9]),
        # Fewer frames than required: from their beginnings, and repeated.
        ({"num_seg": 2, "seg_len": 3}, 4, [0, 1, 2, 2, 3, 0]),
        ({"num_seg": 3, "seg_len": 1}, 2, [0, 1, 0]),
        ({"num_seg": 3, "seg_len": 1, "select_left": True}, 3, [0, 0, 0]),
        # 30 - 6 + 1 places for clips of every second frame: middles of 4 parts of 6.25.
        (
            {"num_seg": 4, "seg_len": 3, "frame_interval": 2},
            30,
            [3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25],
        ),
        ({"num_seg": 2, "seg_len": 3, "frame_interval": 2}, 5, [0, 2, 4, 0, 2, 4]),
        ({"num_seg": 4, "seg_len": 1, "linspace_sample": True}, 31, [0, 10, 20, 30]),
        # Ten clips of 32 frames apart within 64; the first begins at the second frame.
        (
            {"num_seg": 2, "seg_len": 1, "dense_sample": True},
            73,
            [index for start in range(10) for index in (start + 1, start + 33)],
        ),
    ],
)
def test_frames_sampled_for_validation(
    arguments: dict[str, Any], count: int, expected: list[int]
) -> None:
    results = Sampler(valid_mode=True, **arguments)(numbered(count))
    assert [int(index) for index in results["imgs"]] == expected


def test_frames_are_sampled_from_a_span_of_the_video() -> None:
    video = {**numbered(100), "start_idx": 20, "end_idx": 40}
    assert Sampler(3, 1, linspace_sample=True)(video)["imgs"] == [20, 30, 40]


@given(
    st.integers(1, 200),
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from(["", "select_left", "dense_sample", "linspace_sample", "frame_interval"]),
)
def test_randomly_sampled_indices_are_those_of_frames(
    count: int, num_seg: int, seg_len: int, mode: str
) -> None:
    arguments: dict[str, Any] = {mode: 3 if mode == "frame_interval" else True} if mode else {}
    imgs = Sampler(num_seg, seg_len, **arguments)(numbered(count))["imgs"]
    assert len(imgs) == num_seg * (seg_len if mode in ("", "frame_interval") else 1)
    assert all(0 <= index < count for index in imgs)


@pytest.mark.parametrize("mode", [{}, {"select_left": True}, {"frame_interval": 1}])
def test_one_random_frame_is_sampled_in_each_segment(mode: dict[str, Any]) -> None:
    seen = {tuple(Sampler(3, 1, **mode)(numbered(12))["imgs"]) for _ in range(400)}
    for segment in range(3):
        assert {places[segment] for places in seen} == set(range(4 * segment, 4 * segment + 4))


def test_frames_are_read_from_files(tmp_path: Path) -> None:
    for number in range(1, 5):
        picture = np.full((4, 6, 3), (number, 0, 255), dtype=np.uint8)
        cv2.imwrite(str(tmp_path / f"{number:02}.png"), picture)
    given = {"format": "frame", "frame_dir": tmp_path, "suffix": "{:02}.png", "frames_len": 4}
    imgs = Sampler(2, 1, valid_mode=True)(given)["imgs"]
    assert [img[0, 0].tolist() for img in imgs] == [[255, 0, 1], [255, 0, 3]]
    with pytest.raises(ValueError, match="Sampler takes the format 'video' or 'frame', got 'MRI'"):
        Sampler(2, 1)({**given, "format": "MRI"})
    with pytest.raises(ValueError, match="Sampler got a video without frames"):
        Sampler(2, 1)(numbered(0))


# Columns of 0, 100, 0 and 100. OpenCV takes the mean of the two pixels beside a new one's centre.
# Pillow weighs all pixels within two of the centre by their nearness: 0.75, 0.75 and 0.25 of the
# first three, so 75 / 1.75, and the other way round 100 / 1.75.
@pytest.mark.parametrize(("backend", "row"), [("cv2", [50, 50]), ("pillow", [43, 57])])
def test_opencv_and_pillow_downscale_differently(backend: str, row: list[int]) -> None:
    picture = np.zeros((4, 4, 3), dtype=np.uint8)
    picture[:, 1::2] = 100
    scale = Scale(2, fixed_ratio=False, backend=backend)
    for img in (picture, Image.fromarray(picture)):
        (scaled,) = scale({"imgs": [img]})["imgs"]
        assert scaled[..., 0].tolist() == [row, row]


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({}, (30, 40)),  # 4/3 of 30
        ({"fixed_ratio": False}, (30, 30)),
        ({"fixed_ratio": False, "keep_ratio": True, "do_round": True}, (30, 38)),
        # 100 x 30 / 80 and 80 x 30 / 100: each by the other.
        ({"fixed_ratio": False, "keep_ratio": True}, (24, 37)),
    ],
)
def test_frames_are_scaled_to_the_configured_size(
    arguments: dict[str, Any], shape: tuple[int, int]
) -> None:
    wide, high = np.zeros((80, 100, 3), np.uint8), np.zeros((100, 80, 3), np.uint8)
    for backend in ("cv2", "pillow"):
        imgs = Scale(30, backend=backend, **arguments)({"imgs": [wide, high]})["imgs"]
        assert [img.shape[:2] for img in imgs] == [shape, shape[::-1]]


def test_ten_crops_are_corners_and_centre_and_their_mirror_images() -> None:
    picture = np.arange(7 * 11, dtype=np.uint8).reshape(7, 11, 1)
    imgs = TenCrop(3)({"imgs": [picture, picture + 100]})["imgs"]
    assert len(imgs) == 20
    # (11 - 3) // 4 is 2 and (7 - 3) // 4 is 1: corners at 0 and 8, and at 0 and 4, the centre half.
    corners = [(0, 0), (8, 0), (0, 4), (8, 4), (4, 2)]
    firsts = np.reshape([img[0, 0, 0] for img in imgs], (5, 4))
    for crops, (x, y) in zip(firsts, corners, strict=True):
        first, other, mirrored, _ = crops.tolist()
        assert (first, other, mirrored) == (11 * y + x, 11 * y + x + 100, 11 * y + x + 2)
    with pytest.raises(ValueError, match=r"TenCrop\(8\) got images of shape \(7, 11, 1\)"):
        TenCrop(8)({"imgs": [picture]})


def test_images_become_an_array() -> None:
    imgs = [np.full((4, 5, 3), value, dtype=np.uint8) for value in (7, 8)]
    for arguments, shape in (
        ((), (2, 3, 4, 5)),
        ((True, "cthw"), (3, 2, 4, 5)),
        ((False,), (2, 4, 5, 3)),
    ):
        array = Image2Array(*arguments)({"imgs": imgs})["imgs"]
        assert (array.dtype, array.shape) == (np.float32, shape)
        assert array.sum() == 15 * 60
    with pytest.raises(ValueError, match="Image2Array takes 'tchw' or 'cthw', got 'nchw'"):
        Image2Array(data_format="nchw")
    with pytest.raises(ValueError, match="Image2Array got images of shapes"):
        Image2Array()({"imgs": [imgs[0], imgs[1][1:]]})


def test_normalization_does_not_change_its_input() -> None:
    array = np.full((1, 3, 2, 2), 51, dtype=np.float32)
    array.flags.writeable = False
    given = {"imgs": array, "more": 1}
    result = Normalization([0, 0.1, 0.2], [1, 1, 0.5])(given)
    assert given["imgs"] is array
    assert result["more"] == 1
    assert result["imgs"][0, :, 0, 0].tolist() == pytest.approx([0.2, 0.1, 0], abs=1e-7)
    last = Normalization([1, 21, 51], [50, 10, 1], inplace=True)({"imgs": [array[0].T]})
    assert last["imgs"][0, 0, 0].tolist() == [1, 3, 0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Scale(9, True, True), ValueError, "Scale takes fixed_ratio or keep_ratio"),
        (lambda: Scale(9, backend="x"), ValueError, "Scale takes the backend .* got 'x'"),
        (lambda: Scale(9)({"imgs": [None]}), TypeError, "Scale takes an array of numbers"),
        (lambda: TenCrop(1)({"imgs": [np.zeros((0, 3, 3))]}), ValueError, "TenCrop .* no pixels"),
        (lambda: Normalization(0.5, [1]), TypeError, "Normalization takes mean as a list"),
        (lambda: Normalization([1], [0]), ValueError, "Normalization got a deviation of 0"),
        (lambda: Normalization([1] * 3, [1] * 3)({"imgs": "a"}), TypeError, "Normalization takes"),
    ],
)
def test_errors_name_the_step(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
