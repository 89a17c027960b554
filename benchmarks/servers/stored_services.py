"""With FAR, a service whose two remote ops call the one at this address; without, that one: a value
of the wanted size goes from the first op to the second. With STORE an external store carries it.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from penstock import Op, Service, op, run
from penstock.tensor import Signature

store = os.environ.get("STORE")
options = {"min_bytes": 1, "shared_secret": "env:SHARED_SECRET"}
dag = {"external_store": store, "external_store_options": options} if store else {}
number = {"n": ("INT64", [1])}
value = {"x": ("UINT8", [None])}


@op()
def make(request: dict[str, Any]) -> dict[str, Any]:
    """An array of so many bytes."""
    return {"x": np.ones(int(request["n"][0]), np.uint8)}


@op()
def size(request: dict[str, Any]) -> dict[str, Any]:
    """Its size."""
    return {"n": np.array([request["x"].nbytes])}


@op()
def ask(request: dict[str, Any]) -> dict[str, Any]:
    """The request as a tensor."""
    return {"n": np.array([request["bytes"]])}


far = os.environ.get("FAR")
if far is None:
    run(
        Service("make", make, signature=Signature(inputs=number, outputs=value), dag=dag),
        Service("size", size, signature=Signature(inputs=value, outputs=number), dag=dag),
    )
else:
    remote: dict[str, Any] = {"client_type": "grpc", "server_endpoints": [far]}
    first = Op("make", input_ops=[ask], **remote)
    second = Op("size", input_ops=[first], **remote)

    @op(second)
    def answer(sized: dict[str, Any]) -> dict[str, Any]:
        """The size as JSON."""
        return {"bytes": int(sized["n"][0])}

    Service("sizes", answer, dag=dag).run()
