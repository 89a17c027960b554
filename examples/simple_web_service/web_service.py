"""House prices: one model behind one op, over HTTP and gRPC."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from penstock import Op, WebService

FEATURES = 13
WRONG_INPUT = 51  # our own business error; 50 to 999 are free for that


class UciOp(Op):
    def init_op(self):
        self.separator = ","
        self.batch_separator = ";"

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, input_dict),) = input_dicts.items()
        try:
            x = self.houses(input_dict["x"])
        except KeyError:
            return {}, False, WRONG_INPUT, "the request has no key 'x'"
        except ValueError as error:
            return {}, False, WRONG_INPUT, f"x: {error}"
        return {"x": x}, False, None, ""

    def houses(self, value):
        """Finite numbers ``[n, 13]``, from a tensor of that shape, nested lists or text."""
        if isinstance(value, str):
            value = [self.house(sample) for sample in value.split(self.batch_separator)]
        value = np.asarray(value)
        if value.ndim != 2 or value.shape[1] != FEATURES or value.dtype.kind not in "iuf":
            raise ValueError(f"a tensor must hold numbers of shape [n, {FEATURES}]")
        with np.errstate(over="ignore"):  # a number too large becomes inf, refused below
            x = np.array(value, dtype=np.float32)
        if not np.isfinite(x).all():
            raise ValueError("every number must be finite")
        return x

    def house(self, sample):
        texts = sample.split(self.separator)
        if len(texts) != FEATURES:
            raise ValueError(f"a sample has {len(texts)} numbers, it must have {FEATURES}")
        try:
            return [float(text) for text in texts]
        except ValueError:  # its own text repeats what was sent, however long
            raise ValueError("only numbers, separated by ',' and ';', can be read") from None

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        price = fetch_dict["price"]
        # As str(price), but never shortened to "..." however many houses were asked for.
        return {"price": np.array2string(price, threshold=price.size + 1)}, None, ""


class UciService(WebService):
    def get_pipeline_response(self, read_op):
        return UciOp(name="uci", input_ops=[read_op])


os.chdir(Path(__file__).parent)  # config.yml, and the model it names, are found from here
if not Path("models/uci/serving_server_conf.prototxt").exists():
    subprocess.run([sys.executable, "train.py"], check=True)

uci_service = UciService(name="uci")
uci_service.prepare_pipeline_config("config.yml")
uci_service.run_service()
