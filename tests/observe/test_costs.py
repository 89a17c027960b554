"""What an op's batches cost: of several engines, and as text."""

from penstock.observe.reports import joined
from penstock.observe.status import _batched


def test_the_engine_that_has_run_the_most_batches_tells_the_costs() -> None:
    few = {"words": "not known yet", "batches": 3, "seconds": {}}
    many = {"words": "8 rows cost 1.9 × one", "batches": 90, "seconds": {"8": 0.1}}
    graphs = [
        {"name": "g", "version": "1", "ops": [{"name": "a", "costs": c}]} for c in (few, many)
    ]
    (graph,) = joined(graphs)
    assert graph["ops"][0]["costs"] == many


def test_the_text_of_an_op_has_them() -> None:
    batching = {"by": "rows", "why": "you say so"}
    text = _batched(batching, {"words": "8 rows cost 1.9 × one"})
    assert text == "  batched by rows: you say so; 8 rows cost 1.9 × one"
    assert _batched(batching, None) == "  batched by rows: you say so"
