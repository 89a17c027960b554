"""Readers: pre- and postprocessing of images, text and videos, for services and clients.

Each name is a class of Paddle Serving 0.9 with its arguments, defaults and numbers. Importing them
needs numpy alone; a reader that needs another library imports it when it is made.
"""

from paddle_serving_app.reader.chinese_bert_reader import ChineseBertReader
from paddle_serving_app.reader.detection import (
    DetectionBGR2RGB,
    DetectionFile2Image,
    DetectionNormalize,
    DetectionPadStride,
    DetectionResize,
    DetectionSequential,
    DetectionTranspose,
)
from paddle_serving_app.reader.imdb_reader import IMDBDataset
from paddle_serving_app.reader.lac_reader import LACReader
from paddle_serving_app.reader.ocr_reader import OCRReader
from paddle_serving_app.reader.pptsn_reader import (
    Image2Array,
    Normalization,
    Sampler,
    Scale,
    TenCrop,
    VideoDecoder,
)
from paddle_serving_app.reader.results import (
    BlazeFacePostprocess,
    RCNNPostprocess,
    SegPostprocess,
)
from paddle_serving_app.reader.senta_reader import SentaReader
from paddle_serving_app.reader.text_boxes import (
    DBPostProcess,
    FilterBoxes,
    GetRotateCropImage,
    SortedBoxes,
)
from paddle_serving_app.reader.transforms import (
    BGR2RGB,
    RGB2BGR,
    Base64ToImage,
    CenterCrop,
    Div,
    File2Image,
    ImageReader,
    Normalize,
    PadStride,
    Resize,
    ResizeByFactor,
    Sequential,
    Transpose,
    URL2Image,
)

__all__ = [
    "BGR2RGB",
    "RGB2BGR",
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
    "IMDBDataset",
    "Image2Array",
    "ImageReader",
    "LACReader",
    "Normalization",
    "Normalize",
    "OCRReader",
    "PadStride",
    "RCNNPostprocess",
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
]
