"""run_batch: a sample's outcome does not depend on its neighbours, and no hook ends a worker."""

import gc
import math
import time
from asyncio import CancelledError
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batching.joining import Joining
from penstock.batching.rows import Rows
from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    HookFailed,
    InferenceFailed,
    InputMismatch,
    OpTimeout,
    ProductError,
    RequestError,
    WrongCount,
    WrongType,
)
from penstock.executors import work
from penstock.executors.work import BoundOp, WorkOptions, run_batch
from penstock.ops.op import Op
from penstock.ops.product import CustomException
from penstock.ops.short import op
from penstock.protocols.status import CustomExceptionCode
from penstock.request import REQUEST_OP_NAME, Batch, CloseReason, Outcome, Sample
from penstock.runtimes.model import Model
from penstock.tensor import TensorSpec
from penstock.typed.op import TypedOp
from tests.kit.python_session import PythonSession

BAD = -1
"""A value in a feed that makes ``process`` fail."""


def sample_of(number: int, **feed: Any) -> Sample:
    return Sample(number, {REQUEST_OP_NAME: feed}, math.inf, log_id=100 + number)


def batch_of(*samples: Sample) -> Batch:
    return Batch(list(samples), CloseReason.FULL, 0.0)


def run(op: Op, *samples: Sample, model: Any = None, **options: Any) -> list[Outcome]:
    return run_batch(BoundOp(op, model, WorkOptions(**options)), batch_of(*samples))


def values(outcomes: list[Outcome]) -> list[Any]:
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    return [outcome.value for outcome in outcomes]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and np.array_equal(one, other)
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, RequestError):
        return (type(one), str(one), vars(one)) == (type(other), str(other), vars(other))
    return bool(type(one) is type(other) and one == other)


def raising(error: BaseException) -> Any:
    raise error


class CustomBaseException(BaseException):
    """For ops that derive their errors from the wrong class."""


class WithoutText(Exception):
    def __str__(self) -> str:
        raise SystemExit


# The ways in which ``process`` fails when BAD is in its feed.
FAILURES: dict[str, Callable[[], Any]] = {
    "raises": lambda: raising(ValueError("no such cat")),
    "raises nothing to say": lambda: raising(KeyError()),
    "raises ours": lambda: raising(InputMismatch("wrong rank")),
    "raises a declared error": lambda: raising(
        CustomException(CustomExceptionCode.INPUT_PARAMS_ERROR, "say it", True)
    ),
    "exits": lambda: raising(SystemExit(3)),
    "interrupts": lambda: raising(KeyboardInterrupt()),
    "is cancelled": lambda: raising(CancelledError()),
    "raises its own": lambda: raising(CustomBaseException("on the camel")),
    "gives nothing": lambda: None,
    "gives a list": lambda: [1, 2],
    "gives a code": lambda: (None, 5000, "broken pipe"),
}


class Mixed(Op):
    """Does with each sample what its request names."""

    def __init__(self, failure: str = "raises") -> None:
        super().__init__(name="mixed")
        self.failure = failure
        self.calls: list[Any] = []

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        request = input_dicts[REQUEST_OP_NAME]
        match request.get("pre", "feeds"):
            case "raises":
                raise RuntimeError("it's broken")
            case "exits":
                raise SystemExit
            case "interrupts":
                raise KeyboardInterrupt
            case "is cancelled":
                raise CancelledError
            case "ends a generator":
                raise GeneratorExit
            case "raises its own":
                raise CustomBaseException
            case "raises what cannot be told":
                raise WithoutText
            case "declares":
                raise CustomException(CustomExceptionCode.CLIENT_ERROR, "one: two", True)
            case "product error":
                return None, False, 51, "no cat"
            case "reserved product error":
                return None, False, 5000, "no cat"
            case "skips":
                return {}, True, None, ""
            case "gives a number":
                return 5, False, None, ""
            case "gives a pair":
                return {}, False
            case "gives a mixed list":
                return [{}, 5]
            case "gives a list":
                return request["feeds"]
        return request["feeds"][0], False, None, ""

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        (feed,) = feed_batch
        self.calls.append(typical_logid)
        if (feed["x"] == BAD).any():
            return FAILURES[self.failure]()
        result = {"x": feed["x"] * 2}
        if "k" in feed:
            result["k"] = feed["k"] + 1
        if "x.lod" in feed:
            result["x.lod"] = feed["x.lod"]
        return result

    def postprocess(
        self, input_data: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        match input_data[REQUEST_OP_NAME].get("post", "answers"):
            case "raises":
                raise RuntimeError("too late")
            case "exits":
                raise SystemExit
            case "is cancelled":
                raise CancelledError
            case "product error":
                return {}, 52, "no dog"
            case "gives nothing":
                return None
        return {"got": fetch_data, "data_id": data_id, "log_id": log_id}


@st.composite
def feeds(draw: st.DrawFn) -> dict[str, Any]:
    """Rows of a few shapes and dtypes, or sequences, whose lod may be wrong; sometimes BAD."""
    kind = draw(st.sampled_from(["rows", "rows", "rows", "two inputs", "sequences", "bad lod"]))
    rows = draw(st.integers(0, 3))
    columns = draw(st.sampled_from([2, 2, 2, 3]))
    dtype = draw(st.sampled_from(["int64", "int64", "int64", "float32"]))
    x = np.arange(rows * columns, dtype=dtype).reshape(rows, columns) + draw(st.integers(0, 9))
    if x.size and draw(st.integers(0, 3)) == 0:
        x[draw(st.integers(0, rows - 1)), 0] = BAD
    if kind == "two inputs":
        other = np.full((draw(st.sampled_from([rows, rows, 1, 3])), 1), 7)
        pair = [("x", x), ("k", other)]
        return dict(draw(st.permutations(pair)))
    if kind == "sequences":
        return {
            "x": x,
            "x.lod": [0, *sorted(draw(st.lists(st.integers(0, rows), max_size=2))), rows],
        }
    if kind == "bad lod":
        return {"x": x, "x.lod": draw(st.lists(st.integers(0, 5), max_size=3))}
    return {"x": x}


PRE = ["feeds"] * 8 + ["gives a list"] * 3
PRE += ["raises", "exits", "interrupts", "declares", "product error", "reserved product error"]
PRE += ["is cancelled", "ends a generator", "raises its own", "raises what cannot be told"]
PRE += ["skips", "gives a number", "gives a pair", "gives a mixed list"]
POST = ["answers"] * 6 + ["raises", "exits", "is cancelled", "product error", "gives nothing"]
REQUESTS = st.fixed_dictionaries(
    {
        "pre": st.sampled_from(PRE),
        "post": st.sampled_from(POST),
        "feeds": st.lists(feeds(), min_size=1, max_size=3),
    }
)


def copy_of(request: dict[str, Any]) -> dict[str, Any]:
    return {**request, "feeds": [dict(feed) for feed in request["feeds"]]}


@given(requests=st.lists(REQUESTS, min_size=1, max_size=9), failure=st.sampled_from([*FAILURES]))
def test_a_sample_s_outcome_does_not_depend_on_its_neighbours(
    requests: list[dict[str, Any]], failure: str
) -> None:
    together = run(
        Mixed(failure), *[sample_of(n, **copy_of(request)) for n, request in enumerate(requests)]
    )
    assert len(together) == len(requests)
    for number, request in enumerate(requests):
        (alone,) = run(Mixed(failure), sample_of(number, **copy_of(request)))
        assert same(alone.error, together[number].error), (alone, together[number])
        assert same(alone.value, together[number].value), (alone, together[number])


def test_inputs_with_different_rows_never_get_a_neighbour_s_rows() -> None:
    def two(number: int, x: int, k: int, *, k_first: bool = False) -> Sample:
        feed = {"x": np.full((x, 2), number), "k": np.full((k, 1), number)}
        return sample_of(number, feeds=[dict(sorted(feed.items(), reverse=not k_first))])

    samples = [two(1, 1, 3), two(2, 1, 3, k_first=True), two(3, 3, 1, k_first=True), two(4, 3, 1)]
    for number, value in enumerate(values(run(Mixed(), *samples)), start=1):
        assert set(np.unique(value["got"]["x"])) == {2 * number}
        assert set(np.unique(value["got"]["k"])) == {number + 1}


@pytest.mark.parametrize("lod", [[0, 1], [0, 5], [0, 3, 2], [1, 2], [0], []])
def test_an_invalid_lod_never_includes_a_neighbour_s_rows(lod: list[int]) -> None:
    def words(number: int, lod: list[int]) -> Sample:
        return sample_of(number, feeds=[{"x": np.full((2, 2), number), "x.lod": lod}])

    outcomes = run(Mixed(), words(1, [0, 2]), words(2, lod), words(3, [0, 1, 2]))
    for number, outcome in enumerate(outcomes, start=1):
        (alone,) = run(Mixed(), words(number, [[0, 2], lod, [0, 1, 2]][number - 1]))
        assert same(outcome.value, alone.value)
        assert same(outcome.error, alone.error)


@given(size=st.integers(1, 64), data=st.data())
def test_one_culprit_fails_alone_and_is_found_in_few_calls(size: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(0, size - 1))
    op = Mixed()
    samples = [
        sample_of(n, feeds=[{"x": np.array([[BAD if n == culprit else n + 1]])}])
        for n in range(size)
    ]
    outcomes = run(op, *samples)
    failed = [n for n, outcome in enumerate(outcomes) if outcome.error is not None]
    assert failed == [culprit]
    assert len(op.calls) <= 2 * math.ceil(math.log2(size)) + 1


@pytest.mark.parametrize("size", [1, 2, 5, 8, 64])
def test_if_all_samples_fail_each_is_called_alone(size: int) -> None:
    op = Mixed()
    samples = [sample_of(n, feeds=[{"x": np.array([[BAD]])}]) for n in range(size)]
    outcomes = run(op, *samples)
    assert all(isinstance(outcome.error, HookFailed) for outcome in outcomes)
    assert len(op.calls) == 2 * size - 1


def test_without_isolation_a_failed_call_fails_all_its_samples_and_no_others() -> None:
    op = Mixed()
    outcomes = run(
        op,
        sample_of(0, feeds=[{"x": np.array([[1]])}]),
        sample_of(1, feeds=[{"x": np.array([[BAD]])}]),
        sample_of(
            2, feeds=[{"x": np.array([[1.5]])}]
        ),  # another dtype, and therefore a separate call
        isolate_errors=False,
    )
    assert [type(outcome.error) for outcome in outcomes] == [HookFailed, HookFailed, type(None)]
    assert len(op.calls) == 2


def test_a_call_over_its_timeout_is_not_bisected(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1000, 5))
    monkeypatch.setattr(work, "_monotonic", lambda: float(next(now)))
    op = Mixed()
    samples = [sample_of(n, feeds=[{"x": np.array([[1]])}]) for n in range(4)]
    outcomes = run_batch(BoundOp(op, None, WorkOptions()), batch_of(*samples), limit=1.0)
    assert [type(outcome.error) for outcome in outcomes] == [OpTimeout] * 4
    assert "Failed to process(batch: [0, 1, 2, 3]): exceeded retry count." in str(outcomes[0].error)
    assert len(op.calls) == 1


def of_dicts(seen: list[int], count: Callable[[int], Any]) -> Op:
    @op(batch=8, name="made")
    def made(requests: list[Any]) -> Any:
        seen.append(len(requests))
        return count(len(requests))

    return made


def of_values(seen: list[int], count: Callable[[int], Any]) -> Op:
    def made(x: list[int]) -> list[int]:
        seen.append(len(x))
        return count(len(x))  # type: ignore[no-any-return]

    made_op = TypedOp(made, batched=True)
    made_op.init_op()
    return made_op


@pytest.mark.parametrize("of", [of_dicts, of_values])
@pytest.mark.parametrize(
    ("count", "got"),
    [
        (lambda size: [{"x": 1}] * 2, "2 of them"),  # right by chance for halves
        (lambda size: (), "0 of them"),
        (lambda size: np.zeros(()), "one ndarray"),
        (lambda size: {}, "one dict"),
    ],
)
def test_a_wrong_number_of_results_fails_the_whole_batch_once(
    of: Callable[..., Op], count: Callable[[int], Any], got: str
) -> None:
    seen: list[int] = []
    errors = {
        size: [
            each.error for each in run(of(seen, count), *[sample_of(n, x=n) for n in range(size)])
        ]
        for size in (4, 1)
    }
    assert seen == [4, 1], "each batch ran once"
    for size, found in errors.items():
        assert len(found) == size
        assert {type(each) for each in found} == {WrongCount}
        assert f"made must return a list of {size} " in str(found[0])
        assert f", got {got}" in str(found[0])


class AsksLater(Op):
    def is_jump_op(self) -> bool:
        return True

    def check_jumping(self, input_data: Any) -> Any:
        async def later() -> bool:
            raise AssertionError

        return later()


def test_a_coroutine_of_check_jumping_is_an_error_and_not_a_yes() -> None:
    (outcome,) = run(AsksLater(), sample_of(0, x=1))
    assert isinstance(outcome.error, HookFailed)
    assert "check_jumping returned a coroutine" in str(outcome.error)


def test_cancelled_and_expired_samples_run_no_hook() -> None:
    gone, late, fine = (sample_of(n, feeds=[{"x": np.array([[1]])}]) for n in range(3))
    gone.gone = True
    late.deadline = 0.0
    op = Mixed()
    outcomes = run(op, gone, late, fine)
    assert [type(o.error) for o in outcomes] == [Cancelled, DeadlineExceeded, type(None)]
    assert op.calls == [102]


@pytest.mark.parametrize(
    ("pre", "kind"),
    [
        ("raises", HookFailed),
        ("exits", HookFailed),
        ("product error", ProductError),
        ("gives a number", WrongType),
    ],
)
def test_a_failure_of_preprocess_keeps_its_class_and_skips_process(
    pre: str, kind: type[RequestError]
) -> None:
    op = Mixed()
    (outcome,) = run(op, sample_of(0, pre=pre, feeds=[{"x": np.array([[1]])}]))
    assert type(outcome.error) is kind
    assert op.calls == []


def test_a_very_long_exception_text_is_cut() -> None:
    class Verbose(Op):
        def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
            raise ValueError("no such cat" * 1_000_000)

    (outcome,) = run(Verbose("talking"), sample_of(0, x="1"))
    assert "no such catno such cat" in str(outcome.error)
    assert len(str(outcome.error)) < 20_000


class RefusingBad(Op):
    """An op whose ``process`` raises if its feed has BAD."""

    def process(self, feed_batch: Any, typical_logid: int) -> Any:
        if (feed_batch[0]["x"] == BAD).any():
            raise ValueError("no such cat")
        return {"x": feed_batch[0]["x"]}


@pytest.mark.parametrize("bad", [{5}, {2, 5}, set(range(8))])
def test_an_exception_of_process_is_one_warning_per_culprit_and_none_per_half(
    caplog: pytest.LogCaptureFixture, bad: set[int]
) -> None:
    samples = [sample_of(n, x=np.array([[BAD if n in bad else n]])) for n in range(8)]
    outcomes = run(RefusingBad("cat"), *samples)
    assert {n for n, outcome in enumerate(outcomes) if outcome.error} == bad
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"op cat: process raised (data_ids=[{n}] log_id={100 + n})")
        for n in sorted(bad)
    ]
    assert "ValueError: no such cat" in caplog.text
    # Otherwise the frames would hold the batch as long as the reply exists.
    assert all(outcome.error.__cause__ is None for outcome in outcomes if outcome.error)


class RaisingOurs(RefusingBad):
    """The same with an error of ours, raised in ``preprocess`` or ``process``."""

    def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
        ((_, feed),) = input_dicts.items()
        if feed["x"][0, 0] == 0:
            raise InputMismatch("no such cat")
        return feed

    def process(self, feed_batch: Any, typical_logid: int) -> Any:
        try:
            return super().process(feed_batch, typical_logid)
        except ValueError as error:
            raise InputMismatch("no such cat") from error


@pytest.mark.parametrize("kind", [RefusingBad, RaisingOurs])
@pytest.mark.parametrize("size", [1, 8])
def test_failed_samples_leave_no_cycle(
    kind: type[Op], size: int, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()
    gc.disable()
    try:
        samples = [sample_of(n, x=np.array([[BAD if n % 3 else n]])) for n in range(3, 3 + size)]
        outcomes = run(kind("cat"), *samples)
        outcomes += run(kind("cat"), sample_of(0, x=np.array([[0]])))
        caplog.clear()  # the records have the tracebacks
        del samples
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert any(outcome.error for outcome in outcomes) == (size > 1 or kind is RaisingOurs)


def test_without_isolation_one_warning_names_all_samples_of_the_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    samples = [sample_of(n, x=np.array([[BAD]])) for n in range(20)]
    run(RefusingBad("cat"), *samples, isolate_errors=False)
    (record,) = caplog.records
    shown = ", ".join(map(str, range(16)))
    log_ids = " ".join(map(str, range(100, 120)))
    found = f"process raised (data_ids=[{shown}] and 4 more log_id={log_ids})"
    assert found in record.getMessage()


def test_an_exception_of_check_jumping_is_logged_once_per_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Jumping(Op):
        def check_jumping(self, input_data: Any) -> bool:
            raise ValueError("where to")

    target = Op("target")
    jumping = Jumping("cat", jump_to_ops=[target])
    outcomes = run(jumping, sample_of(1), sample_of(2))
    assert all(type(outcome.error) is HookFailed for outcome in outcomes)
    assert caplog.messages == ["op cat: check_jumping raised (data_ids=[1, 2] log_id=101 102)"]


def test_a_skipped_process_passes_its_data_on() -> None:
    op = Mixed()
    skips = sample_of(0, pre="skips", feeds=[])
    runs = sample_of(1, feeds=[{"x": np.array([[3]])}])
    first, second = values(run(op, skips, runs))
    assert first["got"] == {}
    assert same(second["got"], {"x": np.array([[6]])})
    assert op.calls == [101]


def test_a_list_of_feeds_runs_one_by_one_and_returns_a_list() -> None:
    op = Mixed()
    pieces = [{"x": np.array([[n]])} for n in (1, 2, 3)]
    (value,) = values(run(op, sample_of(0, pre="gives a list", feeds=pieces)))
    assert same(value["got"], [{"x": np.array([[n]])} for n in (2, 4, 6)])
    assert len(op.calls) == 3


def test_the_feeds_of_several_lists_are_joined_where_the_rows_of_the_model_are_known() -> None:
    sizes: list[int] = []

    def double(feed: Any) -> Any:
        if (feed["x"] == BAD).any():
            raise ValueError("bad")
        sizes.append(len(feed["x"]))
        return {"y": 2 * feed["x"]}

    class Lists(Op):
        def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
            return input_dicts[REQUEST_OP_NAME]["feeds"]

        def postprocess(
            self, input_data: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
        ) -> Any:
            return {"got": [each["y"].tolist() for each in fetch_data]}

    axes = {"x": None, "y": None}
    x, y = (
        TensorSpec(name=name, alias=name, dtype=np.dtype("i8"), shape=(None, 1)) for name in axes
    )
    model = Model(PythonSession(double, [x], [y]))
    joining = Joining(rows=Rows(inputs={"x": 0}, outputs={"y": 0}))
    lists = [[1, 2], [3, BAD], [], [4, 5, 6]]
    samples = [
        sample_of(n, feeds=[{"x": np.array([[each]])} for each in some])
        for n, some in enumerate(lists)
    ]
    outcomes = run(Lists("lists"), *samples, model=model, joining=joining, batch_size=4)
    assert [each.value and each.value["got"] for each in outcomes] == [
        [[[2]], [[4]]],
        None,
        [],
        [[[8]], [[10]], [[12]]],
    ]
    assert sizes == [2, 1, 3], "four at a time, and halves of what failed"


def test_an_empty_list_of_feeds_runs_nothing_and_returns_an_empty_list() -> None:
    op = Mixed()
    (value,) = values(run(op, sample_of(0, pre="gives a list", feeds=[])))
    assert value["got"] == []
    assert op.calls == []


def test_the_first_failing_feed_of_a_list_ends_its_sample_only() -> None:
    op = Mixed()
    bad = [{"x": np.array([[n]])} for n in (1, BAD, 3)]
    fine = [{"x": np.array([[n]])} for n in (4, 5)]
    outcomes = run(
        op,
        sample_of(0, pre="gives a list", feeds=bad),
        sample_of(1, pre="gives a list", feeds=fine),
    )
    assert isinstance(outcomes[0].error, HookFailed)
    assert same((outcomes[1].value or {})["got"], [{"x": np.array([[n]])} for n in (8, 10)])
    assert len(op.calls) == 4, "the third piece does not run any more"


class Sums(Op):
    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        return {"sum": feed_batch[0]["x"].sum(keepdims=True).ravel()}


def test_an_output_without_a_batch_axis_is_accepted_for_one_sample_and_refused_for_more() -> None:
    one = sample_of(0, x=np.array([[1, 2]]))
    two = sample_of(1, x=np.array([[3, 4]]))
    assert same(values(run(Sums(), one)), [{"sum": np.array([3])}])
    outcomes = run(Sums(name="sums"), one, two)
    assert all(isinstance(outcome.error, InferenceFailed) for outcome in outcomes)
    assert "'sum'" in str(outcomes[0].error)
    assert "shared_outputs" in str(outcomes[0].error)


def test_a_shared_output_is_passed_whole_to_every_sample() -> None:
    op = Sums()
    op.shared_outputs = ["sum"]  # type: ignore[misc]
    one = sample_of(0, x=np.array([[1, 2]]))
    two = sample_of(1, x=np.array([[3, 4]]))
    assert same(values(run(op, one, two)), [{"sum": np.array([10])}] * 2)


class Lengths(Op):
    joins_feeds = False

    def process(self, feed_batch: list[Any], typical_logid: int) -> Any:
        return {"size": [len(feed["x"]) for feed in feed_batch]}


def test_feeds_that_are_not_joined_are_passed_as_a_list_and_results_are_split() -> None:
    op = Lengths("lengths")
    outcomes = run(op, sample_of(0, x="abc"), sample_of(1, x=BAD), sample_of(2, x=[1, 2], y=1))
    assert [outcome.value for outcome in outcomes] == [{"size": [3]}, None, {"size": [2]}]
    assert isinstance(outcomes[1].error, HookFailed)


class FakeModel:
    def __init__(self) -> None:
        self.fed: list[Any] = []

    def run(self, feed: Any) -> Any:
        self.fed.append(feed)
        if (feed["x"] == BAD).any():
            raise InputMismatch("invalid arg list")
        return {"y": feed["x"] + 1}


def test_the_default_hooks_run_the_model_on_the_joined_feed() -> None:
    model = FakeModel()
    one = sample_of(0, x=np.array([[1]]))
    two = sample_of(1, x=np.array([[2]]))
    results = values(run(Op(name="op"), one, two, model=model))
    assert same(results, [{"y": np.array([[2]])}, {"y": np.array([[3]])}])
    assert same(model.fed, [{"x": np.array([[1], [2]])}])


def test_an_error_of_the_model_only_fails_its_own_sample() -> None:
    one = sample_of(0, x=np.array([[BAD]]))
    two = sample_of(1, x=np.array([[2]]))
    outcomes = run(Op(name="op"), one, two, model=FakeModel())
    assert isinstance(outcomes[0].error, InputMismatch)
    assert "invalid arg list" in str(outcomes[0].error)
    assert same(outcomes[1].value, {"y": np.array([[3]])})


def test_without_a_model_the_default_process_is_skipped() -> None:
    assert values(run(Op(), sample_of(0, x=5, name="cat"))) == [{"x": 5, "name": "cat"}]


class Jumper(Op):
    """Jumps if it has two inputs; the target does not matter here."""

    def is_jump_op(self) -> bool:
        return True

    def check_jumping(self, input_data: Any) -> bool:
        if any("bomb" in data.parse() for data in input_data.values()):
            raise ValueError("boom")
        assert [data.id for data in input_data.values()] == list(input_data)
        return len(input_data) == 2


def test_check_jumping_gets_the_whole_batch_and_decides_for_all_samples() -> None:
    one, two = run(Jumper(), sample_of(3, a=1), sample_of(4, a=2))
    assert (one.jump, two.jump) == (True, True)
    assert (one.value, two.value) == ({"a": 1}, {"a": 2})
    (alone,) = run(Jumper(), sample_of(5, a=1))
    assert not alone.jump


def test_check_jumping_gets_and_decides_for_the_good_samples_only() -> None:
    class RefusingBadJumper(Jumper):
        def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
            (feed,) = input_dicts.values()
            return feed, False, 51 if "bad" in feed else None, "it is bad"

    one, bad, two = run(
        RefusingBadJumper(), sample_of(3, a=1), sample_of(4, bad=1), sample_of(5, a=2)
    )
    assert (one.jump, two.jump) == (True, True)
    assert isinstance(bad.error, ProductError)
    assert bad.error.number == 51
    assert not bad.jump
    (alone,) = run(RefusingBadJumper(), sample_of(6, bad=1))
    assert isinstance(alone.error, ProductError)


@pytest.mark.parametrize(
    ("hook", "given", "message"),
    [
        ("preprocess", "text", "op odd: preprocess must give a dict, or a list of dicts"),
        ("preprocess", (1, 2), "op odd: preprocess returned a tuple of 2, but must return"),
        ("process", None, "op odd: process gave no result"),
        ("postprocess", 1, "op odd: postprocess should return dict"),
    ],
)
def test_an_invalid_result_of_a_hook_is_a_warning(
    hook: str, given: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(Op):
        def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
            return {}

    setattr(Wrong, hook, lambda self, *arguments: given)
    run(Wrong("odd"), sample_of(3, x=1))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(message)
    assert "data_ids=[3]" in record.getMessage()


def raises(*_: Any) -> Any:
    raise ValueError("no such cat")


def declares(*_: Any) -> Any:
    raise CustomException(CustomExceptionCode.INPUT_PARAMS_ERROR, "no such cat")


@pytest.mark.parametrize("fault", [raises, declares, lambda *_: 1])
@pytest.mark.parametrize("hook", ["preprocess", "process", "postprocess"])
def test_the_log_has_the_op_s_label_and_the_caller_gets_its_name(
    hook: str, fault: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(Op):
        def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
            return {}

    setattr(Wrong, hook, lambda self, *arguments: fault(*arguments))
    caplog.set_level("INFO")
    (outcome,) = run(Wrong("quote"), sample_of(3, x=1), label="prices/quote")
    (line,) = caplog.messages
    assert line.startswith(f"op prices/quote: {hook}")
    assert outcome.error is not None
    assert "prices" not in str(outcome.error)


def test_check_jumping_of_an_op_without_jumps_is_not_called() -> None:
    class Careless(Op):
        def check_jumping(self, input_data: Any) -> bool:
            raise AssertionError("not a jump op")

    (outcome,) = run(Careless(), sample_of(0, a=1))
    assert outcome.error is None
    assert not outcome.jump


def test_a_sample_s_edits_in_preprocess_are_visible_in_its_postprocess() -> None:
    class Edits(Op):
        def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
            input_dicts[REQUEST_OP_NAME]["was"] = data_id
            return {}, True, None, ""

        def postprocess(
            self, input_data: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
        ) -> Any:
            return input_data[REQUEST_OP_NAME]

    assert values(run(Edits(), sample_of(0), sample_of(1))) == [{"was": 0}, {"was": 1}]


def test_an_internal_error_fails_the_batch_and_not_the_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(work, "plan_calls", lambda feeds: raising(AssertionError("ours")))
    batch = batch_of(*[sample_of(n, feeds=[{"x": np.array([[1]])}]) for n in range(2)])
    outcomes = run_batch(BoundOp(Mixed(), None, WorkOptions()), batch)
    assert [type(outcome.error) for outcome in outcomes] == [InferenceFailed] * 2
    assert "please report this" in caplog.text


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_has_the_duration_of_each_phase(count: int) -> None:
    class Slow(Op):
        def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
            time.sleep(0.002)
            return {"x": np.zeros((1, 2))}

        def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
            time.sleep(0.004)
            return feed_batch[0]

        def postprocess(self, input_dicts: Any, fetch: Any, data_id: int, log_id: int) -> Any:
            time.sleep(0.001)
            return fetch, None, ""

    batch = batch_of(*(sample_of(number) for number in range(count)))
    run_batch(BoundOp(Slow("slow"), None, WorkOptions()), batch)
    before, process, after = batch.phases
    assert before >= 0.002 * count
    assert process >= 0.004
    assert after >= 0.001 * count
    assert before + process + after == pytest.approx(batch.ran)
