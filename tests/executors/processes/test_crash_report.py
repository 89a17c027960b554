"""The stack in the report of a worker that was ended by a signal."""

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
OUTER = [
    frame(OURS / "executors" / "work.py", "run_batch"),
    frame(OURS / "service" / "run.py", "run_service"),
    frame("/srv/app/service.py", "<module>"),
]


def test_the_op_s_own_frames_are_kept_and_outer_ones_are_removed() -> None:
    end = ["", "Extension modules: numpy._core (total: 1)"]
    assert list(frames_of_the_op([*HEAD, *OWN, *OUTER, *end])) == [*HEAD, *OWN]


def test_our_frames_within_the_op_s_call_are_kept() -> None:
    model = [frame(OURS / "runtimes" / "onnx.py", "run")]
    assert list(frames_of_the_op([*HEAD, *model, *OUTER])) == [*HEAD, *model]


def test_both_ends_of_a_deep_stack_are_kept() -> None:
    deep = [frame("/srv/app/service.py", f"level{n}") for n in range(50)]
    assert list(frames_of_the_op([*HEAD, *deep, *OUTER])) == [
        *HEAD,
        *deep[:8],
        "  ... 38 frames ...",
        *deep[-4:],
    ]
    assert list(frames_of_the_op([*HEAD, *deep[:13], *OUTER])) == [*HEAD, *deep[:13]]


def test_each_stack_is_shortened_separately() -> None:
    other = ["Thread (most recent call first):", frame("/srv/app/service.py", "beside")]
    assert list(frames_of_the_op([*HEAD, *OWN, *OUTER, *other])) == [*HEAD, *OWN, *other]


def test_a_user_s_folder_with_our_name_is_the_user_s() -> None:
    own = [frame("/srv/app/penstock/executors/mine.py", "process")]
    assert list(frames_of_the_op([*HEAD, *own, *OUTER])) == [*HEAD, *own]
