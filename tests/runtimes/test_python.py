import numpy as np
import pytest

from penstock.errors import InferenceFailed, InputMismatch, WrongType
from penstock.runtimes.model import Model
from penstock.runtimes.python import PythonSession
from penstock.tensor import TensorSpec

X = TensorSpec(name="x", alias="x", dtype=np.dtype(np.float32), shape=(None,))
Y = TensorSpec(name="y", alias="y", dtype=np.dtype(np.float32), shape=(None,))


def test_a_callable_is_a_model() -> None:
    model = Model(PythonSession(lambda feeds: {"y": feeds["x"] + 1}, [X], [Y]))
    assert model.run({"x": np.array([1, 2])})["y"].tolist() == [2, 3]


def test_plain_values_become_arrays() -> None:
    session = PythonSession(lambda feeds: {"y": [1.0]}, [X], [Y])
    assert isinstance(session.run({"x": np.ones(1)}, ["y"])[0], np.ndarray)


def test_what_the_callable_raises_is_an_inference_failure_that_names_it() -> None:
    def fail(feeds):
        raise ZeroDivisionError("no rows")

    with pytest.raises(InferenceFailed, match="ZeroDivisionError: no rows") as caught:
        PythonSession(fail, [X], [Y]).run({}, ["y"])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_request_error_passes_through() -> None:
    def refuse(feeds):
        raise InputMismatch("too cold")

    with pytest.raises(InputMismatch, match="too cold"):
        PythonSession(refuse, [X], [Y]).run({}, ["y"])


def test_a_missing_output_is_an_inference_failure() -> None:
    with pytest.raises(InferenceFailed, match=r"\['y'\], only \['z'\]"):
        PythonSession(lambda feeds: {"z": 1}, [X], [Y]).run({}, ["y"])


def test_a_result_that_is_no_mapping_is_a_wrong_type() -> None:
    with pytest.raises(WrongType, match="not list"):
        PythonSession(lambda feeds: [1], [X], [Y]).run({}, ["y"])  # type: ignore[arg-type]


def test_a_stateful_callable_is_copied_for_each_clone() -> None:
    class Counter:
        calls = 0

        def __call__(self, feeds):
            self.calls += 1
            return {"y": np.array([self.calls])}

    session = PythonSession(Counter(), [X], [Y], thread_safe=False)
    twin = session.clone()
    assert [session.run({}, ["y"])[0][0] for _ in range(2)] == [1, 2]
    assert twin.run({}, ["y"])[0][0] == 1


def test_a_thread_safe_callable_is_shared() -> None:
    session = PythonSession(lambda feeds: {}, [X], [Y])
    assert session.clone() is session
