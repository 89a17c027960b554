"""Detectors with an exported configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from paddle_serving_app.reader.pddet import Detection, Resize
from paddle_serving_app.reader.pddet.image_tool import Normalize, Permute

CONFIG = """
arch: {arch}
with_background: {background}
label_list: [{labels}]
Preprocess:
- {{type: Resize, target_size: 90, max_size: 120, interp: 1}}
- {{type: Normalize, mean: [0.5, 0.5, 0.5], std: [0.5, 0.25, 0.5], is_scale: true}}
- {{type: Permute, to_bgr: false, channel_first: true}}
- {{type: PadStride, stride: 32}}
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), np.full((60, 100, 3), (0, 51, 255), dtype=np.uint8))
    return path


def detection(
    folder: Path, arch: str, background: str = "false", labels: str = "cat, dog"
) -> Detection:
    path = folder / "infer_cfg.yml"
    path.write_text(CONFIG.format(arch=arch, background=background, labels=labels))
    return Detection(path, folder / "output")


# The short side would be 90 at a factor of 1.5, where the long one is 150: so 120, by 1.2. Padded
# to multiples of 32, the network is given 96 x 128.
@pytest.mark.parametrize(
    ("arch", "more"),
    [
        ("YOLO", {"size": (np.int32, [60, 100])}),
        ("SSD", {}),
        ("RetinaNet", {"info": (np.float32, [96, 128, np.float32(1.2)])}),
        (
            "CascadeRCNN",
            {
                "info": (np.float32, [96, 128, np.float32(1.2)]),
                "shape": (np.float32, [60, 100, 1]),
            },
        ),
    ],
)
def test_the_inputs_depend_on_the_architecture(
    tmp_path: Path, image: Path, arch: str, more: dict[str, Any]
) -> None:
    feed = detection(tmp_path, arch).preprocess(["image", *more], str(image))
    picture = feed.pop("image")
    assert (picture.dtype, picture.shape) == (np.float32, (3, 96, 128))
    # Red first: 255, 51 and 0 are 1, 0.2 and 0 before the mean is taken off.
    assert picture[:, 0, 0].tolist() == pytest.approx([1, -1.2, -1], abs=1e-6)
    assert picture[:, 71, 119].tolist() == pytest.approx([1, -1.2, -1], abs=1e-6)
    assert not picture[:, 72:].any()
    assert {name: (value.dtype, value.tolist()) for name, value in feed.items()} == more
    with pytest.raises(ValueError, match=r"Detection makes \d inputs .* \['a', 'b', 'c', 'd'\]"):
        detection(tmp_path, arch).preprocess(list("abcd"), image)


@pytest.mark.parametrize(
    ("background", "labels", "label"),
    [
        ("false", "cat, dog", 1),
        ("true", "cat, dog", 2),
        ("true", "background, cat, dog", 2),
        ("false", "background, cat, dog", 1),
    ],
)
def test_boxes_are_written_unless_disabled(
    tmp_path: Path, image: Path, background: str, labels: str, label: int
) -> None:
    tool = detection(tmp_path, "RCNN", background, labels)
    tool.preprocess(["image", "info", "shape"], image)
    rows = np.array([[label, 0.75, 10, 20, 29, 59]], dtype=np.float32)
    expected = [{"category_id": label, "bbox": [10, 20, 20, 40], "score": 0.75}]
    answer = {"boxes": rows, "boxes.lod": [0, 1], "more": np.zeros(3)}
    tool.if_visualize = tool.if_dump_result = False
    assert tool.postprocess(answer, ["boxes"]) == expected
    assert not (tmp_path / "output").exists()
    tool.if_dump_result = True
    tool.postprocess(answer, ["boxes"])
    assert [path.name for path in (tmp_path / "output").iterdir()] == ["bbox.json"]
    assert json.loads((tmp_path / "output/bbox.json").read_text()) == expected
    tool.if_visualize = True
    tool.postprocess(answer, ["boxes"])
    drawn = cv2.imread(str(tmp_path / "output/a.png"))
    assert drawn is not None
    # The frame is in the colour of the class: 1 is 128, 0, 0, and 2 is 0, 128, 0, red first.
    assert drawn[40, 10].tolist() == [[0, 0, 128], [0, 128, 0]][label - 1]
    with pytest.raises(ValueError, match=rf"Detection: class {9 * label} has no label"):
        tool.postprocess({"boxes": rows * 9}, ["boxes"])


def test_images_are_resized_to_the_configured_size() -> None:
    picture = np.zeros((60, 100, 3), dtype=np.uint8)
    for use_cv2 in (True, False):
        resized, scale = Resize(50, use_cv2=use_cv2)(picture)
        assert (resized.shape, scale) == ((50, 50, 3), 0.5)
    resized, scale = Resize(30, 1000)(picture + 1)
    assert (resized.shape, scale) == ((30, 50, 3), 0.5)
    padded, _ = Resize(30, 60, image_shape=[3, 60, 60])(picture + 1)
    assert (padded.shape, padded.dtype) == ((60, 60, 3), np.float32)
    assert padded.sum() == 30 * 50 * 3
    assert padded[:30, :50].all()


def test_steps_do_not_change_their_input() -> None:
    picture = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    picture.flags.writeable = False
    first = Permute()(picture)
    assert np.array_equal(first, picture.transpose(2, 0, 1))
    assert np.array_equal(Permute(to_bgr=True)(picture), first[::-1])
    assert np.array_equal(Permute(to_bgr=True, channel_first=False)(first), first[::-1])
    mean, std = [1, 2, 3], [2, 2, 2]
    plain = Normalize(mean, std, is_scale=False)(picture)
    assert plain[0, 1].tolist() == [1, 1, 1]
    other = Normalize(mean, std, is_scale=False, is_channel_first=True)(first)
    assert np.array_equal(other, plain.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Detection takes the keys arch, .* in .*c.yml"),
        ("arch: RCNN", "Detection takes the keys"),
        (CONFIG.format(arch="DETR", background="no", labels="a"), "got the arch 'DETR'"),
        (
            CONFIG.format(arch="SSD", background="no", labels="a").replace("Permute", "eval"),
            "Detection takes the steps Resize, .*, got 'eval'",
        ),
    ],
)
def test_invalid_configurations_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.yml").write_text(text)
    with pytest.raises(ValueError, match=message):
        Detection(tmp_path / "c.yml", tmp_path)
    with pytest.raises(ValueError, match="Resize takes max_size only with use_cv2"):
        Resize(1, 1, use_cv2=False)
