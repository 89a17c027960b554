"""Puts the PP-OCR models where ``config.yml`` looks for them: ``models/{det,cls,rec}``.

The models come with the package ``rapidocr-onnxruntime``; none of its code is used. The
recogniser's dictionary, which is kept inside its model file, is written beside it as text.

Run as ``python models.py``; the service also does it when it starts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import onnx

MODELS = Path(__file__).parent / "models"
PACKAGE = "rapidocr_onnxruntime"
SOURCES = {
    "det": "ch_PP-OCRv4_det_infer.onnx",
    "cls": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "rec": "ch_PP-OCRv4_rec_infer.onnx",
}
DICTIONARY = "characters.txt"


def install_models(folder: Path = MODELS) -> None:
    """Copy what is missing; several services may start at once.

    Raises:
        FileNotFoundError: when the package with the models is not installed.
    """
    for name, source in SOURCES.items():
        model = folder / name / "model.onnx"
        if not model.exists():
            _write(model, lambda path, source=source: shutil.copyfile(packaged(source), path))
    dictionary = folder / "rec" / DICTIONARY
    if not dictionary.exists():
        _write(
            dictionary, lambda path: path.write_text(_letters(packaged(SOURCES["rec"])), "utf-8")
        )


def packaged(name: str) -> Path:
    """A model file inside the installed package, which is not imported for it."""
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "models" / name
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"the models come with the package rapidocr-onnxruntime 1.4.4, in which {name} was not "
        "found; install it with: pip install --no-deps rapidocr-onnxruntime==1.4.4"
    )


def read_characters(folder: Path = MODELS) -> str:
    """The recogniser's dictionary: one letter per class, from class 1 on; the last is the space."""
    return "".join((folder / "rec" / DICTIONARY).read_text("utf-8").split("\n")) + " "


def _letters(model: Path) -> str:
    metadata = onnx.load(str(model), load_external_data=False).metadata_props
    return next(entry.value for entry in metadata if entry.key == "character")


def _write(path: Path, fill: Callable[[Path], object]) -> None:
    """Let ``fill`` make the file; it appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(f".{os.getpid()}.part")
    fill(half)
    half.replace(path)


if __name__ == "__main__":
    install_models()
    print(f"the models are in {MODELS}")
