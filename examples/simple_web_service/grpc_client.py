"""Asks the house price service over gRPC, with text and with a tensor.

python grpc_client.py [127.0.0.1:9998]
"""

import sys

import numpy as np
from http_client import HOUSE

from penstock import PipelineClient

client = PipelineClient()
client.connect([sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9998"])

print(client.predict(feed_dict={"x": HOUSE}, fetch=["price"]))

houses = np.array([[float(number) for number in HOUSE.split(",")]] * 2, dtype=np.float32)
print(client.predict(feed_dict={"x": houses}, fetch=["price"], pack_tensor_format=True))
