"""Writes lexicon.onnx and words.txt: the mood of a text as the sum of its words' valences.

The words and their valences are those of the package vaderSentiment.

    python export.py [FOLDER]
"""

import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def main(folder: Path) -> None:
    lexicon = (files("vaderSentiment") / "vader_lexicon.txt").read_text(encoding="utf-8")
    rows = [line.split("\t")[:2] for line in lexicon.splitlines()]
    valences = {word: float(valence) for word, valence in rows if word.isalpha()}
    weights = np.array(list(valences.values()), np.float32)[:, np.newaxis]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["counts", "valences"], ["sum"]),
            helper.make_node("Sigmoid", ["sum"], ["positive"]),
        ],
        "lexicon",
        [helper.make_tensor_value_info("counts", TensorProto.FLOAT, ["batch", len(weights)])],
        [helper.make_tensor_value_info("positive", TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(weights, "valences")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lexicon.onnx").write_bytes(model.SerializeToString(deterministic=True))
    (folder / "words.txt").write_text("\n".join(valences))
    print(f"{folder}: {len(valences)} words")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "models"))
