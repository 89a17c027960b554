"""What is left of the stack of a worker that a signal ended."""

from __future__ import annotations

from pathlib import Path

import penstock
from penstock.executors.processes.crash_report import frames_of_the_op

OURS = Path(penstock.__file__).parent


def frame(file: object, name: str) -> str:
    return f'  File "{file}", line 7 in {name}'


HEAD = [
    "a line of the op's",
    "Fatal Python error: Aborted",
    "Current thread (most recent call first):",
]
OWN = [
    frame("/usr/lib/python3.11/re/__init__.py", "match"),
    frame("/srv/app/service.py", "inner"),
    frame("/srv/app/service.py", "process"),
]
WAY = [
    frame(OURS / "executors" / "work.py", "run_batch"),
    frame(OURS / "service" / "run.py", "run_service"),
    frame("/srv/app/service.py", "<module>"),
]


def test_the_op_s_own_frames_are_left_and_not_the_way_to_them() -> None:
    end = ["", "Extension modules: numpy._core (total: 1)"]
    assert list(frames_of_the_op([*HEAD, *OWN, *WAY, *end])) == [*HEAD, *OWN]


def test_frames_of_ours_within_the_op_s_call_are_left() -> None:
    model = [frame(OURS / "runtimes" / "onnx.py", "run")]
    assert list(frames_of_the_op([*HEAD, *model, *WAY])) == [*HEAD, *model]


def test_of_a_deep_stack_both_ends_are_left() -> None:
    deep = [frame("/srv/app/service.py", f"level{n}") for n in range(50)]
    assert list(frames_of_the_op([*HEAD, *deep, *WAY])) == [
        *HEAD,
        *deep[:8],
        "  ... 38 frames ...",
        *deep[-4:],
    ]
    assert list(frames_of_the_op([*HEAD, *deep[:13], *WAY])) == [*HEAD, *deep[:13]]


def test_each_stack_is_looked_at_by_itself() -> None:
    other = ["Thread (most recent call first):", frame("/srv/app/service.py", "beside")]
    assert list(frames_of_the_op([*HEAD, *OWN, *WAY, *other])) == [*HEAD, *OWN, *other]


def test_a_folder_of_the_user_s_that_is_called_like_ours_is_not_ours() -> None:
    own = [frame("/srv/app/penstock/executors/mine.py", "process")]
    assert list(frames_of_the_op([*HEAD, *own, *WAY])) == [*HEAD, *own]
