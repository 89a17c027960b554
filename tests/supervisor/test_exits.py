from __future__ import annotations

import pytest

from penstock.supervisor.child_processes import as_shell, status_text


@pytest.mark.parametrize(
    ("status", "number", "words"),
    [
        (0, 0, "exit status 0"),
        (3, 3, "exit status 3"),
        (-9, 137, "killed by SIGKILL"),
        (-99, 227, "killed by signal 99"),
    ],
)
def test_an_exit_status_has_a_shell_number_and_a_text(status: int, number: int, words: str) -> None:
    assert as_shell(status) == number
    assert status_text(status) == words
