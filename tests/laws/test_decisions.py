"""Each model of the law is batched, padded, or run one request at a time, as its table says."""

from pathlib import Path
from typing import Any

import pytest

from penstock import Op
from penstock.batching.decision import Batching
from penstock.service.batches import batching_of
from penstock.service.models import open_model
from tests.laws.zoo import CASES, save
from tests.service.in_process import blueprint_of, root


def decision(name: str, folder: Path, **keys: Any) -> Batching:
    """How an op with this model is batched."""
    conf = {"model_config": str(save(name, folder))}
    entry = {"batch_size": 8, "local_service_conf": conf, **CASES[name].options, **keys}
    op = Op("work", input_ops=[root()])
    blueprint = blueprint_of(op, {"op": {"work": entry}})
    (options,) = blueprint.options
    return batching_of(op, options, open_model(op, options, blueprint.config.op["work"]))


@pytest.mark.parametrize("name", CASES)
def test_each_model_is_batched_as_its_table_says(tmp_path: Path, name: str) -> None:
    found, case = decision(name, tmp_path), CASES[name]
    assert (found.by, case.why in found.why) == (case.by, True), str(found)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.by])
def test_only_models_whose_answers_it_leaves_alone_are_padded(tmp_path: Path, name: str) -> None:
    found = decision(name, tmp_path, pad={"enabled": True})
    assert (found.by, found.padding is not None) == (CASES[name].by, CASES[name].pads), str(found)
