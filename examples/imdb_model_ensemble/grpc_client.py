"""Sends a hundred reviews over gRPC, all at once, and reads the answers as they come.

python grpc_client.py [127.0.0.1:18070]
"""

import sys

from http_client import REVIEWS

from penstock import PipelineClient

REQUESTS = 100

client = PipelineClient()
client.connect([sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:18070"])

futures = [
    client.predict(
        feed_dict={"words": REVIEWS[i % len(REVIEWS)], "logid": 10_000 + i},
        fetch=["prediction"],
        asyn=True,
    )
    for i in range(REQUESTS)
]
for i, future in enumerate(futures):
    reply = future.result()
    if reply.err_no != 0:
        sys.exit(f"request {i} failed with {reply.err_no}: {reply.err_msg}")
    if i < len(REVIEWS):
        print(REVIEWS[i], "->", reply.value[0])
print(f"{len(futures)} requests answered")
