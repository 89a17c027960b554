"""A pipeline of one op whose model is in another server.

Its arguments are the model's name, ``client_type`` and the endpoints; after ``--`` follow keys of
the op, as ``key=value``.
"""

import sys

import numpy as np

from penstock import Op, Service

at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
name, client_type, *endpoints = sys.argv[1:at]


class Scale(Op):
    def preprocess(self, input_dicts, data_id=0, log_id=0):
        (feed,) = input_dicts.values()
        return {"x": np.array(feed["x"])}


pairs = (each.split("=") for each in sys.argv[at + 1 :])
keys = {key: int(value) if value.isdigit() else value for key, value in pairs}
entry = {"server_endpoints": endpoints, "client_type": client_type, "concurrency": 16, **keys}
if name != "-":
    entry["model_name"] = name
op = Scale("scale")
op.set_pack_tensor_format(True)
Service("pipe", op, op={"scale": entry}, deadline=10.0).run()
