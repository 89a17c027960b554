"""Detectors by the configuration that PaddleDetection exports beside a model."""

from paddle_serving_app.reader.pddet.image_tool import Detection, Resize

__all__ = ["Detection", "Resize"]
