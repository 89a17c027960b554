"""Pre- and postprocessing of detectors, from the configuration that PaddleDetection exports."""

from paddle_serving_app.reader.pddet.image_tool import Detection, Resize

__all__ = ["Detection", "Resize"]
