"""The networks as OpenVINO's files, read from ONNX. ``convert_model`` would report its use."""

from __future__ import annotations

from pathlib import Path


def save(folder: Path, onnx: Path) -> Path:
    """Write ``model.xml`` and ``model.bin``; its names are the public ones."""
    import openvino

    model = openvino.Core().read_model(str(onnx / "model.onnx"))
    openvino.serialize(model, str(folder / "model.xml"))
    return folder
