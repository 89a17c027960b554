"""Writes the networks in every form whose library is installed: python -m tests.models FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.models import is_installed
from tests.models.networks import NETWORKS


def main(root: Path) -> None:
    from tests.models import onnx_form

    for network in NETWORKS:
        onnx_form.save(_folder(root, network, "onnx"), network)
        if is_installed("paddle"):
            from tests.models import paddle_form

            for form in paddle_form.FORMS:
                paddle_form.save(_folder(root, network, f"paddle_{form}"), network, form)
        if is_installed("torch"):
            from tests.models import torch_form

            for form in torch_form.FORMS:
                torch_form.save(_folder(root, network, f"torch_{form}"), network, form)
        if is_installed("openvino"):
            from tests.models import openvino_form

            openvino_form.save(_folder(root, network, "openvino"), root / network / "onnx")
    if is_installed("paddle"):
        paddle_form.save_lod(_folder(root, "lod", "paddle_pdmodel"))
        plain = root / "regression" / "paddle_combined"
        paddle_form.save_encrypted(_folder(root, "encrypted", "paddle"), plain)
        paddle_form.save_boxes(_folder(root, "boxes", "paddle_json"))


def _folder(root: Path, network: str, form: str) -> Path:
    folder = root / network / form
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    main(Path(sys.argv[1]))
