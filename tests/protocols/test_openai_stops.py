"""Stop texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.openai_stops import Stops


def passed_on(pieces: list[str], texts: list[str]) -> tuple[list[str], bool]:
    """What is passed on of each piece, and at the end; and whether a stop text was found."""
    stops, found = Stops(texts), []
    for each in pieces:
        found.append(stops.add(each))
        if stops.found:
            return found, True
    return [*found, stops.rest()], False


@pytest.mark.parametrize(
    ("pieces", "texts", "found"),
    [
        (["one ", "two"], ["three"], ["one ", "two", ""]),
        (["one ", "two"], ["two"], ["one ", ""]),
        (["a", "EN", "D b"], ["END"], ["a", "", ""]),
        (["a", "EN", "d b"], ["END"], ["a", "", "ENd b", ""]),
        (["a", "EN"], ["END"], ["a", "", "EN"]),
        (["EEEND"], ["EEND"], ["E"]),
        (["b a"], ["a", "b"], [""]),
        (["x\n", "\nUser:"], ["\n\n", "User"], ["x", ""]),
    ],
)
def test_a_text_ends_before_the_first_stop_text(
    pieces: list[str], texts: list[str], found: list[str]
) -> None:
    assert passed_on(pieces, texts)[0] == found


texts = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


@given(st.lists(st.text("abc", max_size=3), max_size=8), texts)
def test_pieces_end_at_a_stop_text_and_nothing_of_one_gets_out(
    pieces: list[str], texts: list[str]
) -> None:
    whole = "".join(pieces)
    found, ended = passed_on(pieces, texts)
    text = "".join(found)
    assert whole.startswith(text)
    assert ended == any(each in whole for each in texts)
    assert not any(each in text for each in texts)
    if ended:
        assert any(whole.startswith(each, len(text)) for each in texts)
    else:
        assert text == whole
