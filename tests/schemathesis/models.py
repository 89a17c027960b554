"""A model and a pipeline, which the model servers' protocols serve among others."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from penstock import Model, Service, Signature, op, run
from penstock.api.general_model import GeneralModelApplication
from tests.service.models import scale

FOLDER = Path(tempfile.mkdtemp())


@op()
def facts(feed: dict[str, Any]) -> dict[str, Any]:
    """The same of whatever it is asked: the plain route does not check what a service declares."""
    return {"number": [1, 2], "text": ["a"], "truth": [[True, False]]}


BOTH = {"number": ("INT64", [-1]), "text": ("BYTES", [1]), "truth": ("BOOL", [-1, 2])}
run(
    Service(
        "double",
        Model(scale(FOLDER / "double.onnx", 2.0), batch_size=8),
        applications=[GeneralModelApplication],
    ),
    Service("facts", facts, signature=Signature(inputs=BOTH, outputs=BOTH)),
)
