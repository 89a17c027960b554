"""What is said about a program that ends before it serves. ``tests.service.test_code_reload`` has
templates that run.
"""

from __future__ import annotations

import json

import pytest

from penstock.supervisor.template import last_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("loading\nValueError: no\n\n", "loading\nValueError: no"),
        (json.dumps({"level": "ERROR", "message": "a.py\nNo: no\n"}) + "\n", "a.py\nNo: no"),
        ('{"a": 1}\n{no JSON\n', '{"a": 1}\n{no JSON'),
        ("x" * 5000 + "\nthe end", "x" * 892 + "\nthe end"),
    ],
)
def test_the_last_words_are_the_end_of_standard_error_with_messages_of_our_log_as_text(
    text: str, words: str
) -> None:
    assert last_words(text) == words
