"""The names of the readers, and the packages that importing and creating them needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from paddle_serving_app import reader

# The names of ``from paddle_serving_app.reader import *`` in version 0.9.0 of the original.
CLASSES = {
    "BGR2RGB",
    "Base64ToImage",
    "BlazeFacePostprocess",
    "CenterCrop",
    "ChineseBertReader",
    "DBPostProcess",
    "DetectionBGR2RGB",
    "DetectionFile2Image",
    "DetectionNormalize",
    "DetectionPadStride",
    "DetectionResize",
    "DetectionSequential",
    "DetectionTranspose",
    "Div",
    "File2Image",
    "FilterBoxes",
    "GetRotateCropImage",
    "Image2Array",
    "ImageReader",
    "LACReader",
    "Normalization",
    "Normalize",
    "OCRReader",
    "PadStride",
    "RCNNPostprocess",
    "RGB2BGR",
    "Resize",
    "ResizeByFactor",
    "Sampler",
    "Scale",
    "SegPostprocess",
    "SentaReader",
    "Sequential",
    "SortedBoxes",
    "TenCrop",
    "Transpose",
    "URL2Image",
    "VideoDecoder",
}
MODULES = {
    "batching": ["pad_batch_data"],
    "bert_base_reader": ["BertBaseReader"],
    "chinese_bert_reader": ["ChineseBertReader"],
    "functional": ["crop", "normalize", "resize", "transpose"],
    "image_reader": ["DBPostProcess", "DetectionResize", "RCNNPostprocess", "String2Image"],
    "imdb_reader": ["IMDBDataset"],
    "lac_reader": ["LACReader"],
    "ocr_reader": ["OCRReader"],
    "pddet": ["Detection", "Resize"],
    "pptsn_reader": ["VideoDecoder"],
    "senta_reader": ["SentaReader"],
    "tokenization": ["FullTokenizer", "convert_to_unicode", "load_vocab"],
}


def test_import_star_has_the_originals_names_and_imdb() -> None:
    names: dict[str, object] = {}
    exec("from paddle_serving_app.reader import *", names)
    assert {*CLASSES, "IMDBDataset"} == names.keys() - {"__builtins__"}


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_the_originals_names(name: str) -> None:
    module = import_module(f"paddle_serving_app.reader.{name}")
    for attribute in MODULES[name]:
        assert getattr(module, attribute)


def test_importing_the_readers_needs_numpy_only() -> None:
    code = (
        "import sys; from paddle_serving_app.reader import *;"
        "print(sorted({'cv2', 'PIL', 'pyclipper', 'shapely', 'paddle', 'sentencepiece', 'six'}"
        " & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("module", "package", "make"),
    [
        ("cv2", "opencv-python-headless", lambda: reader.Resize(1)),
        ("cv2", "opencv-python-headless", lambda: reader.ResizeByFactor()),
        ("cv2", "opencv-python-headless", lambda: reader.File2Image()),
        ("cv2", "opencv-python-headless", lambda: reader.Base64ToImage()),
        ("cv2", "opencv-python-headless", lambda: reader.ImageReader()),
        ("cv2", "opencv-python-headless", lambda: reader.DetectionFile2Image()),
        ("cv2", "opencv-python-headless", lambda: reader.DetectionResize(1)),
        ("cv2", "opencv-python-headless", lambda: reader.DBPostProcess({})),
        ("cv2", "opencv-python-headless", lambda: reader.GetRotateCropImage()),
        ("cv2", "opencv-python-headless", lambda: reader.OCRReader(char_type="en")),
        ("cv2", "opencv-python-headless", lambda: reader.SegPostprocess(1)),
        ("cv2", "opencv-python-headless", lambda: reader.VideoDecoder()),
        ("cv2", "opencv-python-headless", lambda: reader.Scale(1, backend="cv2")),
        ("PIL.Image", "pillow", lambda: reader.Scale(1)),
        ("pyclipper", "pyclipper", lambda: reader.DBPostProcess({})),
    ],
)
def test_the_error_for_a_missing_library_names_its_package(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str, make: Callable[[], object]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"install {package}, or penstock-paddle\[readers\]"):
        make()


def test_readers_without_libraries_can_be_created_without_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("cv2", "PIL", "PIL.Image", "pyclipper"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "labels").write_text("a\n")
    reader.Sequential([reader.CenterCrop(1), reader.Div(255), reader.Transpose((2, 0, 1))])
    reader.FilterBoxes(1, 1)
    reader.RCNNPostprocess(tmp_path / "labels", tmp_path)
    reader.IMDBDataset()
    reader.Sampler(1, 1)
