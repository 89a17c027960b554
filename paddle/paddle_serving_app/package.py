"""``python -m paddle_serving_app.package``: lists the models that the original offered.

It downloads nothing: it prints the URL from which the original downloaded a model.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

_OCR: Final = "ocr_v2"
_ARCHIVES: Final = "https://paddle-serving.bj.bcebos.com"

MODELS: Final = {
    "senta_bilstm": "paddle_hub_models/text/SentimentAnalysis",
    "senta_bow": "paddle_hub_models/text/SentimentAnalysis",
    "senta_cnn": "paddle_hub_models/text/SentimentAnalysis",
    "ernie": "paddle_hub_models/text/SemanticModel",
    "lac": "paddle_hub_models/text/LexicalAnalysis",
    "faster_rcnn": "paddle_hub_models/image/ObjectDetection",
    "yolov4": "paddle_hub_models/image/ObjectDetection",
    "blazeface": "paddle_hub_models/image/ObjectDetection",
    "unet": "paddle_hub_models/image/ImageSegmentation",
    "deeplabv3": "paddle_hub_models/image/ImageSegmentation",
    "deeplabv3+cityscapes": "paddle_hub_models/image/ImageSegmentation",
    "resnet_v2_50_imagenet": "paddle_hub_models/image/ImageClassification",
    "mobilenet_v2_imagenet": "paddle_hub_models/image/ImageClassification",
    "ocr_rec": _OCR,
    "ocr_det": _OCR,
}
"""Folder of a model's archive, by the model's name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser("python -m paddle_serving_app.package")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list_model", nargs="*", help="Print the names of the models.")
    what.add_argument("--get_model", metavar="NAME", help="Print the URL of a model.")
    what.add_argument("--tutorial", metavar="NAME", help="Print the URL of its example.")
    given = parser.parse_args(arguments)
    if given.list_model is not None:
        print("\n".join(MODELS))
        return 0
    name = given.get_model or given.tutorial
    if name not in MODELS:
        print(f"error: unknown model {name!r}; --list_model lists the models", file=sys.stderr)
        return 1
    if given.tutorial:
        print(f"https://github.com/PaddlePaddle/Serving, folder examples, has one for {name}")
        return 0
    print(f"nothing was downloaded; get {name}.tar.gz from", file=sys.stderr)
    print(url_of(name))
    return 1


def url_of(name: str) -> str:
    """URL of a model's archive."""
    return f"{_ARCHIVES}/{MODELS[name]}/{name}.tar.gz"


if __name__ == "__main__":
    sys.exit(main())
