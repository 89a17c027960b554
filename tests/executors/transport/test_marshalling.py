"""Samples and outcomes as plain values, in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.caller import Caller
from penstock.errors import (
    DeadlineExceeded,
    HookFailed,
    HttpError,
    ProductError,
    Raised,
    RequestError,
)
from penstock.executors.transport.frames import FrameError
from penstock.executors.transport.marshalling import (
    batches_in,
    batches_out,
    outcomes_in,
    outcomes_out,
    output,
)
from penstock.request import Outcome, Sample
from tests.executors.harness import batch_of


@pytest.mark.parametrize("sizes", [[1], [1, 1, 1], [2, 1, 3]])
def test_samples_are_decoded_in_their_batches_with_the_remaining_time(sizes: list[int]) -> None:
    samples = [Sample(n, {"op": {"n": n}}, 100.0 + n, log_id=-n) for n in range(sum(sizes))]
    remaining = iter(samples)
    batches = [[next(remaining) for _ in range(size)] for size in sizes]
    decoded = [list(each) for each in batches_in(batches_out(batches, 90.0), 5.0)]
    assert list(map(len, decoded)) == sizes
    for here, gone in zip(samples, [each for batch in decoded for each in batch], strict=True):
        assert (gone.data_id, gone.log_id, gone.inputs) == (here.data_id, here.log_id, here.inputs)
        assert gone.deadline == here.deadline - 85.0


def test_callers_are_sent_only_if_the_op_asks() -> None:
    ann = Caller(name="ann", how="jwt", scopes=frozenset("ab"), claims={"team": ["x"]})
    quiet = [Sample(1, {}, 100.0), Sample(2, {}, 100.0)]
    assert len(batches_out([quiet], 0.0)) == 3
    asking = [Sample(n, {}, 100.0) for n in range(3)]
    for sample, caller in zip(asking, (ann, None, ann), strict=True):
        sample.caller = caller
    first, second = batches_in(batches_out([asking[:1], asking[1:]], 0.0), 0.0)
    found = [each.caller for each in (*first, *second)]
    assert found == [ann, None, ann]
    assert found[0] is not None
    assert found[0].claims == ann.claims


def with_exception(error: RequestError) -> RequestError:
    error.raised = Raised("op", "ValueError", "Traceback\nValueError: no")
    return error


@pytest.mark.parametrize(
    "error",
    [
        HookFailed("it raised"),
        DeadlineExceeded("late", by_client=True),
        ProductError(5000, "ours"),
        HttpError(409, "taken", "no_room"),
        with_exception(HttpError(500, "it raised")),
    ],
    ids=str,
)
def test_outcomes_are_decoded_as_they_were_encoded(error: RequestError) -> None:
    batch = batch_of(1, 2)
    batch.ran, batch.prepared, batch.processed = 0.5, 0.1, 0.2
    back = batch_of(1, 2)
    value = outcomes_out(batch, [Outcome({"a": 1}, jump=True), Outcome(None, error)])
    good, bad = outcomes_in(value, back)
    assert (good.value, good.error, good.jump) == ({"a": 1}, None, True)
    assert type(bad.error) is type(error)
    assert str(bad.error) == str(error)
    assert vars(bad.error) == vars(error)
    assert (back.ran, back.prepared, back.processed) == (0.5, 0.1, 0.2)


@pytest.mark.parametrize(
    "value",
    [None, [], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0, {}, None],
     [0.0, 0.0, 0.0, 0.0, None, ["no such error", "", 0, False, None], False],
     [0.0, 0.0, 0.0, 0.0, None, ["hook_failed", "", 0, False, ["op"]], False]],
)  # fmt: skip
def test_an_invalid_value_is_refused(value: Any) -> None:
    with pytest.raises(FrameError):
        outcomes_in(value, batch_of(1))


class Text(str):
    __slots__ = ()


def test_an_output_is_encoded_as_a_plain_dict_with_text_keys() -> None:
    encoded = output({Text("a"): 1})
    assert [type(key) for key in encoded] == [str]
    with pytest.raises(FrameError, match="is a text, not int"):
        output({1: 2})  # type: ignore[dict-item]
