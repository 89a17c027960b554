from typing import NoReturn

import numpy as np
import pytest

from penstock.errors import InferenceFailed, InputMismatch, WrongType
from penstock.runtimes.model import Model
from penstock.runtimes.python import Function, PythonSession
from penstock.tensor import TensorSpec

X = TensorSpec(name="x", alias="x", dtype=np.dtype(np.float32), shape=(None,))
Y = TensorSpec(name="y", alias="y", dtype=np.dtype(np.float32), shape=(None,))


def test_a_callable_is_a_model() -> None:
    model = Model(PythonSession(lambda feeds: {"y": feeds["x"] + 1}, [X], [Y]))
    assert model.run({"x": np.array([1, 2])})["y"].tolist() == [2, 3]


def test_plain_values_become_arrays() -> None:
    session = PythonSession(lambda feeds: {"y": [1.0]}, [X], [Y])
    assert isinstance(session.run({"x": np.ones(1)}, ["y"])[0], np.ndarray)


def raising(error: Exception) -> Function:
    def fail(feeds: object) -> NoReturn:
        raise error

    return fail


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (raising(ZeroDivisionError("no rows")), InferenceFailed, "ZeroDivisionError: no rows"),
        (raising(InputMismatch("too cold")), InputMismatch, "too cold"),
        (lambda feeds: {"z": 1}, InferenceFailed, r"\['y'\], only \['z'\]"),
        (lambda feeds: [1], WrongType, "not list"),
    ],
)
def test_what_the_callable_does_wrong_is_an_error_that_names_it(
    function: Function, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        PythonSession(function, [X], [Y]).run({}, ["y"])


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
