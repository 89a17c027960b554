"""Models of the law with mini-batches: each row of a request is a feed of its own.

The variable LAW has the models, as JSON: by name, the file and the keys of the op.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from penstock import App, Model

app = App("law")


class EachRow(Model):
    """A model that runs on one row at a time."""

    def preprocess(self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0) -> Any:
        feed = super().preprocess(input_dicts, data_id, log_id)
        rows = range(len(feed["x"]))
        return [{name: value[at : at + 1] for name, value in feed.items()} for at in rows]

    def postprocess(
        self, input_data: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        names = fetch_data[0]
        return {name: np.concatenate([each[name] for each in fetch_data]) for name in names}


for name, entry in json.loads(os.environ.get("LAW", "{}")).items():
    app.graph(f"/{name}", EachRow(entry.pop("path"), name=name), op={name: entry})
