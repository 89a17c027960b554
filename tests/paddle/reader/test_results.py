"""Results of networks, as values and as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from paddle_serving_app.reader import BlazeFacePostprocess, RCNNPostprocess, SegPostprocess
from paddle_serving_app.reader.image_reader import generate_colormap

# Class, score, left, top, right, bottom; all exact in float32.
ROWS = [[1, 0.75, 10, 20, 29, 59], [0, 0.25, -2, 0, 3.5, 4], [1, 0.5, 5, 5, 5, 5]]
BOXES = [
    {"category_id": 1, "bbox": [10, 20, 20, 40], "score": 0.75},
    {"category_id": 0, "bbox": [-2, 0, 6.5, 5], "score": 0.25},
    {"category_id": 1, "bbox": [5, 5, 1, 1], "score": 0.5},
]


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.txt"
    path.write_text("cat\n dog \n", encoding="utf-8")
    return path


def answer(rows: Any, **more: Any) -> dict[str, Any]:
    return {"nms.tmp_0": np.array(rows, dtype=np.float32), **more}


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 3),
        ({"nms.tmp_0.lod": [0, 1, 3]}, 3),
        ({"nms.tmp_0.lod": np.array([0, 2], dtype=np.int32)}, 2),
        ({"nms.tmp_0.lod": [0]}, 0),
        ({"nms.tmp_0.lod": []}, 3),  # as returned by Paddle 3
        ({"boxes": np.array([3], dtype=np.int32), "im_shape": np.zeros((1, 6))}, 3),
    ],
)
def test_boxes_have_left_top_width_and_height(
    labels: Path, tmp_path: Path, more: dict[str, Any], count: int
) -> None:
    postprocess = RCNNPostprocess(str(labels), str(tmp_path / "output"))
    boxes = postprocess(answer(ROWS, **more), visualize=False)
    assert boxes == BOXES[:count]
    # Plain Python, so that the text of an answer does not depend on numpy's version.
    first = "{'category_id': 1, 'bbox': [10.0, 20.0, 20.0, 40.0], 'score': 0.75}"
    assert [str(box) for box in boxes[:1]] == [first][:count]
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("rows", [[[-1]], np.zeros((0, 6))])
def test_an_answer_without_boxes_gives_an_empty_list(labels: Path, rows: Any) -> None:
    postprocess = RCNNPostprocess(labels, "output")
    assert postprocess(answer(rows, **{"nms.tmp_0.lod": [0, 1]}), visualize=False) == []


def test_boxes_are_drawn_and_written_with_visualize(labels: Path, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    cv2.imwrite(str(picture), np.zeros((120, 100, 3), dtype=np.uint8))
    # The network's input has half the width.
    postprocess = RCNNPostprocess(labels, tmp_path / "out" / "put", resize_shape=[50, 120])
    assert postprocess(answer(ROWS, image=str(picture))) == BOXES
    assert json.loads((tmp_path / "out/put/bbox.json").read_text()) == BOXES
    drawn = cv2.imread(str(tmp_path / "out/put/a.png"))
    assert drawn is not None
    # The frame of the first box in the colour of its class, 128, 0, 0, red first; nothing inside.
    assert drawn[40, 20].tolist() == [0, 0, 128]
    assert drawn[40, 60].tolist() == [0, 0, 128]
    assert drawn[60, 40].tolist() == [0, 0, 128]
    assert not drawn[25:55, 25:55].any()
    # The second box scores below one half, and is not drawn.
    assert not drawn[1:4, :8].any()


def test_coordinates_of_faces_are_relative_to_the_image(labels: Path) -> None:
    postprocess = BlazeFacePostprocess(labels, "output")
    rows = [[0, 0.5, 0.25, 0.5, 0.75, 1.5], [0, 0.5, -1, 0, 0.5, 0.5]]
    boxes = postprocess(answer(rows, im_shape=np.array([100.0, 200.0])), visualize=False)
    assert [box["bbox"] for box in boxes] == [[50, 50, 100, 50], [0, 0, 100, 50]]


def test_a_mask_is_coloured_and_written_beside_the_image(tmp_path: Path) -> None:
    picture = tmp_path / "p.jpg"
    cv2.imwrite(str(picture), np.zeros((6, 8, 3), dtype=np.uint8))
    mask = np.repeat(np.repeat([[[0, 1], [2, 3]]], 3, axis=1), 4, axis=2)[..., np.newaxis]
    result = SegPostprocess(4)({"filename": str(picture), "mask": mask, "mask.lod": [0, 1]})
    assert result.shape == (6, 8, 3)
    colours = [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0]]
    assert generate_colormap(4) == colours
    # Corners, which interpolation does not change.
    assert [result[y, x].tolist() for y in (0, -1) for x in (0, -1)] == colours
    assert np.array_equal(cv2.imread(str(tmp_path / "p_jpg_result.png")), result)
    written = cv2.imread(str(tmp_path / "p_jpg_mask.png"), cv2.IMREAD_UNCHANGED)
    assert np.array_equal(written, mask[0, :, :, 0])


def test_a_flat_mask_is_reshaped_to_512_by_512(tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    cv2.imwrite(str(picture), np.zeros((512, 512, 3), dtype=np.uint8))
    flat = np.arange(512 * 512) % 21
    result = SegPostprocess(21)({"mask": flat, "filename": picture})
    colours = np.array(generate_colormap(21))
    assert np.array_equal(result, colours[flat.reshape(512, 512)])


def test_colours_differ_for_all_classes() -> None:
    # Bits 0 to 2 of a class are the highest bits of the channels, bits 3 to 5 the next.
    colours = generate_colormap(256)
    assert len({tuple(colour) for colour in colours}) == 256
    assert colours[0b001_010_100] == [0b00100000, 0b01000000, 0b10000000]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (answer([[2, 1, 0, 0, 1, 1]]), "RCNNPostprocess: class 2 has no label; there are 2"),
        (answer([[-1, 1, 0, 0, 1, 1]]), "class -1 has no label"),
        (answer([[1, 2, 3]]), r"takes an output of 6 columns, got \['nms.tmp_0'\]"),
        ({}, "takes an output of 6 columns"),
    ],
)
def test_answers_that_are_not_boxes_are_refused(
    labels: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RCNNPostprocess(labels, "output")(given, visualize=False)


def test_drawing_without_an_image_is_refused(labels: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'image'.*visualize=False"):
        RCNNPostprocess(labels, tmp_path / "output")(answer(ROWS))
    with pytest.raises(ValueError, match=r"BlazeFacePostprocess takes .*'im_shape'"):
        BlazeFacePostprocess(labels, "output")(answer(ROWS), visualize=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mask": np.zeros((2, 2))}, "SegPostprocess takes 'filename'"),
        ({"filename": "p.png", "filename.lod": []}, "SegPostprocess takes 'filename' and"),
        ({"filename": "none.png", "mask": np.zeros((2, 2))}, "reads no image from .*none.png"),
        ({"filename": "p.png", "mask": np.full((2, 2), 4)}, r"SegPostprocess\(4\) got .* 4 to 4"),
        ({"filename": "p.png", "mask": np.full((2, 2), -1)}, r"SegPostprocess\(4\) got"),
        ({"filename": "p.png", "mask": np.zeros((2, 2, 2))}, r"got shape \(2, 2, 2\)"),
    ],
)
def test_invalid_masks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    cv2.imwrite("p.png", np.zeros((6, 8, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match=message):
        SegPostprocess(4)(given)
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"]
