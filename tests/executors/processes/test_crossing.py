"""Samples and outcomes on their way between processes."""

import subprocess
import sys
import weakref
from math import inf, nan
from typing import Any

import pytest

from penstock import errors
from penstock.executors.processes.crossing import batches_in, batches_out, outcomes_in, outcomes_out
from penstock.executors.processes.frame import FrameError, decode, encode
from penstock.request import Outcome, Sample


def crossed(value: Any) -> Any:
    return decode(b"".join(bytes(piece) for piece in encode(value)))


def test_samples_arrive_as_they_left() -> None:
    samples = [Sample(7, {"@": {"x": "1"}}, 12.5, 9), Sample(8, {"a": {}, "b": {"y": 2}}, 1e9)]
    (arrived,) = batches_in(crossed(batches_out([samples])[0]))
    for one, other in zip(samples, arrived, strict=True):
        assert (one.data_id, one.log_id, one.deadline, one.inputs) == (
            other.data_id,
            other.log_id,
            other.deadline,
            other.inputs,
        )


@pytest.mark.parametrize("sizes", [[1, 1, 1], [2, 1, 3], [1]])
def test_batches_arrive_one_by_one_and_those_before_are_kept_by_nobody(sizes: list[int]) -> None:
    class Held(dict[str, Any]):
        """Can be watched."""

    numbers = iter(range(100))
    batches = [[Sample(next(numbers), {}, 1.5, 7) for _ in range(size)] for size in sizes]
    value, strange = batches_out(batches)
    assert strange is value[2]
    held = [Held() for _ in strange]
    watched = [weakref.ref(each) for each in held]
    value[2][:] = held
    held.clear()
    arriving = batches_in(value)
    found = []
    before = 0
    for size in sizes:
        found.append([each.data_id for each in next(arriving)])
        assert [each() for each in watched[:before]] == [None] * before
        before += size
        assert all(each() is not None for each in watched[before:])
    assert found == [[each.data_id for each in batch] for batch in batches]
    assert next(arriving, None) is None
    assert [each() for each in watched] == [None] * len(watched)


def test_lone_samples_arrive_as_they_left_each_until_the_next_is_asked_for() -> None:
    samples = [Sample(n, {"@": {"x": n}}, 1e9 + n, -n) for n in range(5)]
    arriving = batches_in(crossed(batches_out([[each] for each in samples])[0]))
    for sample, (arrived,) in zip(samples, arriving, strict=True):
        assert (arrived.data_id, arrived.log_id) == (sample.data_id, sample.log_id)
        assert (arrived.deadline, arrived.inputs) == (sample.deadline, sample.inputs)
        assert not arrived.gone


@pytest.mark.parametrize(
    "error",
    [
        errors.HookFailed("a hook raised"),
        errors.OpTimeout("too slow"),
        errors.ProductError(51, "no such key"),
        errors.DeclaredError(7, "declared"),
        errors.DeadlineExceeded("late", by_client=True),
        errors.RequestError("some error"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_arrive_as_they_left(error: errors.RequestError) -> None:
    _, (arrived,) = outcomes_in(crossed(outcomes_out(0.5, [Outcome(None, error)])[0]), 1)
    assert type(arrived.error) is type(error)
    assert str(arrived.error) == str(error)
    for name in ("number", "by_client"):
        assert getattr(arrived.error, name, None) == getattr(error, name, None)


def test_an_error_class_of_the_users_arrives_as_the_nearest_of_ours() -> None:
    class Mine(errors.InputMismatch):
        """A subclass that the engine cannot know."""

    _, (arrived,) = outcomes_in(crossed(outcomes_out(0.5, [Outcome(None, Mine("odd"))])[0]), 1)
    assert type(arrived.error) is errors.InputMismatch


def test_error_classes_of_a_script_that_was_read_before_change_nobodys_errors() -> None:
    script = """
from penstock.errors import InferenceFailed
class Mine(InferenceFailed):
    pass
from penstock.executors.processes.crossing import outcomes_in, outcomes_out
from penstock.request import Outcome
for error in (InferenceFailed("x"), Mine("y")):
    _, (arrived,) = outcomes_in(outcomes_out(0.5, [Outcome(None, error)])[0], 1)
    assert type(arrived.error) is InferenceFailed, arrived
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)


def test_values_and_jumps_arrive_and_dicts_become_plain() -> None:
    class Fancy(dict[str, Any]):
        """What some hook may give."""

    sent = [Outcome({"x": 1}, None, True), Outcome(Fancy(y=2))]
    ran, (first, second) = outcomes_in(crossed(outcomes_out(0.5, sent)[0]), 2)
    assert ran == 0.5
    assert (first.value, first.jump) == ({"x": 1}, True)
    assert (second.value, second.jump) == ({"y": 2}, False)


RAN = 0.5
GOOD = [{"x": 1}, None, False]


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [],
        GOOD,
        [RAN],
        [RAN, *GOOD, *GOOD],
        [1, *GOOD],
        [nan, *GOOD],
        [inf, *GOOD],
        [-1.0, *GOOD],
        [RAN, *GOOD, None],
        [RAN, GOOD],
        [RAN, {"x": 1}, None],
        [RAN, {"x": 1}, None, 1],
        [RAN, {1: 1}, None, False],
        [RAN, [], None, False],
        [RAN, None, None, False],
        [RAN, None, ["no such code", "text", 0, False], False],
        [RAN, None, ["hook_failed", 1, 0, False], False],
        [RAN, None, ["hook_failed", "text", "0", False], False],
        [RAN, None, ["hook_failed", "text", 0, False], True],
        [RAN, {"x": 1}, ["hook_failed", "text", 0, False], False],
        [RAN, None, ["product", "text", 0, False], False],
        [RAN, None, ["product", "text", 2**31, False], False],
        [RAN, None, ["declared", "text", -(2**31) - 1, False], False],
    ],
    ids=repr,
)
def test_whatever_else_a_worker_says_is_refused(value: Any) -> None:
    with pytest.raises(FrameError):
        outcomes_in(value, 1)
