"""Judges film reviews with two models at once: request -> {bow, cnn} -> combine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from penstock import Op, PipelineServer, RequestOp, ResponseOp
from penstock.protocols.pb import Response

MAX_WORDS = 10_000
WRONG_INPUT = 51  # our own business error; 50 to 999 are free for that
OK = 0


class ImdbRequestOp(RequestOp):
    """Turns the text under the key ``words`` into ids, and says where the sentence ends."""

    def init_op(self):
        words = Path("models/imdb.vocab").read_text().splitlines()
        self.id_of = {word: number for number, word in enumerate(words)}
        self.unknown = self.id_of["<unk>"]

    def unpack_request_package(self, request):
        pairs = dict(zip(request.key, request.value, strict=False))
        words = re.findall(r"[a-z]+(?:'[a-z]+)?", pairs.get("words", "").lower())
        if not 1 <= len(words) <= MAX_WORDS:
            text = f"the key 'words' must hold 1 to {MAX_WORDS} words, got {len(words)}"
            return {}, request.logid, WRONG_INPUT, text
        ids = [self.id_of.get(word, self.unknown) for word in words]
        feed = {
            "words": np.array(ids, dtype=np.int64).reshape(-1, 1),
            "words.lod": np.array([0, len(ids)], dtype=np.int64),
        }
        return feed, request.logid, None, ""


class CombineOp(Op):
    def preprocess(self, input_data, data_id, log_id):
        predictions = [data["prediction"] for data in input_data.values()]
        return {"prediction": sum(predictions) / len(predictions)}, False, None, ""


class ImdbResponseOp(ResponseOp):
    """Does what the default one does, as a start for your own."""

    def pack_response_package(self, channeldata):
        response = Response(err_no=channeldata.error_code)
        if channeldata.error_code == OK:
            for name, value in channeldata.parse().items():
                response.key.append(name)
                response.value.append(repr(value))
        elif channeldata.prod_error_code is not None:
            response.err_no = channeldata.prod_error_code
            response.err_msg = channeldata.prod_error_info
        else:
            response.err_msg = channeldata.error_info
        return response


os.chdir(Path(__file__).parent)  # config.yml, and the models it names, are found from here
if not Path("models/cnn/serving_server_conf.prototxt").exists():  # the file written last
    subprocess.run([sys.executable, "train.py"], check=True)

read_op = ImdbRequestOp()
bow_op = Op("bow", input_ops=[read_op])
cnn_op = Op("cnn", input_ops=[read_op])
combine_op = CombineOp("combine", input_ops=[bow_op, cnn_op])
response_op = ImdbResponseOp(input_ops=[combine_op])

server = PipelineServer()
server.set_response_op(response_op)
server.prepare_server("config.yml")
server.run_server()
