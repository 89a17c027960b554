"""OCR as a pipeline: find the lines of a picture, turn them upright, read them.

    @DAGExecutor -> det -> cls -> rec

A request carries the key ``image``, a picture as base64 text. The reply carries ``result``, a JSON
list of ``{"text", "confidence", "box"}`` in reading order (a box is four corners x, y in pixels,
clockwise from the top left), and ``times``, the milliseconds of every op's hooks as JSON.

Each op is a thin shell: what it does to arrays are plain functions in the modules beside it.
Nothing of a request is kept on ``self``: an op's threads serve several requests at once. What a
hook must remember until ``postprocess``, it leaves in the request's own dict.
"""

from __future__ import annotations

import json

from detection import boxes_from_map, detector_input, in_original, working_picture
from geometry import cut_out
from models import install_models, read_characters
from orientation import classifier_inputs, turned_upright
from picture import NotAPictureError, PictureError, TooLargeError, TooNarrowError, decode_picture
from recognition import read_lines, recogniser_inputs
from stopwatch import Stopwatch

from penstock import Op, ProductErrCode, WebService

DET_OUTPUT = "sigmoid_0.tmp_0"
CLS_OUTPUT = "save_infer_model/scale_0.tmp_1"
REC_OUTPUT = "softmax_11.tmp_0"
LEAST_CONFIDENCE = 0.5


class OcrErrCode(ProductErrCode):
    """What the caller reads as ``err_no`` when a picture is refused."""

    NOT_A_PICTURE = 101
    TOO_LARGE = 102
    TOO_NARROW = 103


CODES: dict[type[PictureError], OcrErrCode] = {
    NotAPictureError: OcrErrCode.NOT_A_PICTURE,
    TooLargeError: OcrErrCode.TOO_LARGE,
    TooNarrowError: OcrErrCode.TOO_NARROW,
}


class DetOp(Op):
    """Finds the lines: a picture in, its crops and their boxes out."""

    def preprocess(self, input_dicts, data_id, log_id):
        (request,) = input_dicts.values()
        watch = Stopwatch()
        try:
            picture = decode_picture(request.get("image"))
        except PictureError as error:
            return {}, False, CODES[type(error)], str(error)
        working = working_picture(picture)
        feed = {"x": detector_input(working.pixels)}
        watch.lap("preprocess")
        request["working"], request["watch"] = working, watch
        return feed, False, None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        (request,) = input_dicts.values()
        working, watch = request["working"], request["watch"]
        watch.lap("process")
        height, width = working.pixels.shape[:2]
        boxes = boxes_from_map(fetch_data[DET_OUTPUT][0, 0], width, height)
        found = {
            "crops": [cut_out(working.pixels, box) for box in boxes],
            "boxes": [box.tolist() for box in in_original(boxes, working)],
        }
        watch.lap("postprocess")
        return {**found, "times": {self.name: watch.laps}}, None, ""


class ClsOp(Op):
    """Turns the crops that stand on their heads. A picture without lines skips the model."""

    def preprocess(self, input_dicts, data_id, log_id):
        (found,) = input_dicts.values()
        watch = found["watch"] = Stopwatch()
        feeds = [{"x": batch} for batch in classifier_inputs(found["crops"])]
        watch.lap("preprocess")
        if not feeds:
            return {}, True, None, ""
        return feeds, False, None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        (found,) = input_dicts.values()
        watch = found["watch"]
        watch.lap("process")
        if not fetch_data:
            crops = []
        else:
            crops = turned_upright(found["crops"], [part[CLS_OUTPUT] for part in fetch_data])
        watch.lap("postprocess")
        times = {**found["times"], self.name: watch.laps}
        return {"crops": crops, "boxes": found["boxes"], "times": times}, None, ""


class RecOp(Op):
    """Reads the crops; lines it is not sure about are left out."""

    def init_op(self):
        self.characters = read_characters()

    def preprocess(self, input_dicts, data_id, log_id):
        (found,) = input_dicts.values()
        watch = found["watch"] = Stopwatch()
        feeds = [{"x": batch} for batch in recogniser_inputs(found["crops"])]
        watch.lap("preprocess")
        if not feeds:
            return {}, True, None, ""
        return feeds, False, None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        (found,) = input_dicts.values()
        watch = found["watch"]
        watch.lap("process")
        probabilities = [part[REC_OUTPUT] for part in fetch_data] if fetch_data else []
        lines = read_lines(found["crops"], probabilities, self.characters)
        result = [
            {"text": text, "confidence": confidence, "box": box}
            for (text, confidence), box in zip(lines, found["boxes"], strict=True)
            if confidence >= LEAST_CONFIDENCE
        ]
        watch.lap("postprocess")
        times = {**found["times"], self.name: watch.laps}
        reply = {"result": json.dumps(result, ensure_ascii=False), "times": json.dumps(times)}
        return reply, None, ""


class OcrService(WebService):
    """The graph of the three ops."""

    def get_pipeline_response(self, read_op):
        install_models()
        det = DetOp(name="det", input_ops=[read_op])
        cls = ClsOp(name="cls", input_ops=[det])
        return RecOp(name="rec", input_ops=[cls])


if __name__ == "__main__":
    service = OcrService(name="ocr")
    service.prepare_pipeline_config("config.yml")
    service.run_service()
