"""The networks as TorchScript and as exported programs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.models.networks import B1, B2, EMBEDDING, NETWORKS, W1, W2, W3, write_conf

FORMS = ("script", "exported")


def _tensor(name: str, dtype: str, *shape: str | int) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape}


SIGNATURES = {
    "regression": {
        "inputs": [_tensor("x_in", "float32", "n", 13)],
        "outputs": [_tensor("output_0", "float32", "n", 1)],
    },
    "sequence": {
        "inputs": [
            _tensor("words_in", "int64", "n", "length"),
            _tensor("scale_in", "float32", "n", 1),
        ],
        "outputs": [
            _tensor("output_0", "float32", "n", "length", 5),
            _tensor("output_1", "float32", "n", 5),
        ],
    },
}
"""``signature.json`` of TorchScript."""


class Regression(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.last = torch.nn.Linear(13, 64), torch.nn.Linear(64, 1)
        for layer, weight, bias in ((self.hidden, W1, B1), (self.last, W2, B2)):
            layer.weight.data = torch.from_numpy(weight.T.copy())
            layer.bias.data = torch.from_numpy(bias.copy())

    def forward(self, x_in: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.hidden(x_in)))


class Sequence(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding.from_pretrained(torch.from_numpy(EMBEDDING.copy()))
        self.last = torch.nn.Linear(16, 5, bias=False)
        self.last.weight.data = torch.from_numpy(W3.T.copy())

    def forward(
        self, words_in: torch.Tensor, scale_in: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.tanh(self.last(self.embedding(words_in))) * scale_in.unsqueeze(1)
        return scores, scores.amax(dim=1)


def save(folder: Path, network: str, form: str) -> Path:
    """Write the model; its own names are not the public ones."""
    net = (Regression() if network == "regression" else Sequence()).eval()
    names = NETWORKS[network]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if form == "script":
            torch.jit.save(torch.jit.script(net), str(folder / "model.pt"))
            (folder / "signature.json").write_text(json.dumps(SIGNATURES[network]))
        else:
            torch.export.save(exported(net, network), str(folder / "model.pt2"))
    outputs = [f"output_{at}" for at in range(len(names.outputs))]
    write_conf(folder, network, [f"{name}_in" for name in names.inputs], outputs)
    return folder


def exported(net: Any, network: str) -> Any:
    rows, length = torch.export.Dim("rows", min=0), torch.export.Dim("length", min=1)
    if network == "regression":
        return torch.export.export(net, (torch.ones(2, 13),), dynamic_shapes=({0: rows},))
    examples = (torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 1))
    shapes = ({0: rows, 1: length}, {0: rows})
    return torch.export.export(net, examples, dynamic_shapes=shapes)
