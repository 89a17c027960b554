"""A short sample of the fuzzing with fixed seeds; ``python -m tests.fuzz.run`` is the long form."""

from collections.abc import Hashable

import pytest

from tests.fuzz import engine
from tests.fuzz.targets import MODULES, Target, load

SECONDS = 1.5


@pytest.mark.parametrize("name", MODULES)
def test_no_input_causes_a_fault(name: str) -> None:
    outcome = engine.explore(load(name), SECONDS, seed=20)
    assert outcome.fault is None, str(outcome)
    assert outcome.inputs > 100
    assert len(outcome.signatures) > 5


def broken(kind: str) -> Target:
    def run(data: bytes) -> Hashable:
        if b"\xff" in data:
            if kind == "raises":
                raise KeyError("broken")
            return len(bytearray(20 << 20))
        return len(data) % 7

    return Target("broken", run, [b"a"], [b"\xff"])


def test_an_unexpected_exception_is_found() -> None:
    outcome = engine.explore(broken("raises"), 5.0, seed=1)
    assert isinstance(outcome.fault, KeyError)
    assert b"\xff" in outcome.failing_input


def test_excessive_memory_is_found() -> None:
    with pytest.raises(AssertionError, match="memory"):
        engine.peak_memory(broken("grows").run, b"\xff")
