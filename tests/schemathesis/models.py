"""A service with a model and a pipeline, also over the model servers' protocols."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from penstock import Model, Service, Signature, op, run
from penstock.api.general_model import GeneralModelApplication
from tests.kit.onnx_models import scale

FOLDER = Path(tempfile.mkdtemp())


@op()
def facts(feed: dict[str, Any]) -> dict[str, Any]:
    """Constant outputs: the plain route does not check inputs against the declared signature."""
    return {"number": [1, 2], "text": ["a"], "truth": [[True, False]]}


BOTH = {"number": ("INT64", [-1]), "text": ("BYTES", [1]), "truth": ("BOOL", [-1, 2])}
run(
    Service(
        "double",
        Model(scale(FOLDER / "double.onnx", 2.0), batch=8),
        applications=[GeneralModelApplication],
    ),
    Service("facts", facts, signature=Signature(inputs=BOTH, outputs=BOTH)),
)
