"""Models for tests of bad input over the model servers' protocols.

For each datatype there is a model of that name, which returns its input ``x`` of any shape.
``plain`` takes float32 ``[-1, 3]``. ``hold`` waits on the named pipe ``HOSTILE_PIPE`` if its input
begins with 1; see ``service.py``.
"""

import os

from penstock import Service, Signature, op, run
from penstock.api.general_model import GeneralModelApplication
from penstock.protocols.oip import DTYPES


@op()
def echo(feed):
    return feed


@op(name="echo")
def held(feed):
    if feed["x"].size and feed["x"][0] == 1:
        with open(os.environ["HOSTILE_PIPE"], "rb", buffering=0) as pipe:
            pipe.read(1)
    return {"x": feed["x"][:1]}


def service(name, function, datatype, shape):
    tensor = {"x": (datatype, shape)}
    return Service(
        name,
        function,
        signature=Signature(inputs=tensor, outputs=tensor),
        applications=[GeneralModelApplication] if name == "plain" else (),
    )


def services():
    return [
        service("plain", echo, "FP32", [-1, 3]),
        service("hold", held, "UINT8", [-1]),
        *(service(datatype, echo, datatype, None) for datatype in DTYPES),
    ]


if __name__ == "__main__":
    run(*services())
