"""When a GET gets 304, or a part of the answer."""

from __future__ import annotations

import pytest

from penstock.protocols.conditional import Part, is_unchanged, part_of

TAG = {b"etag": b'"a"', b"last-modified": b"Thu, 01 Oct 2026 10:00:00 GMT"}


@pytest.mark.parametrize(
    ("asked", "unchanged"),
    [
        ({}, False),
        ({b"if-none-match": b'"a"'}, True),
        ({b"if-none-match": b'W/"a"'}, True),
        ({b"if-none-match": b'"b", "a"'}, True),
        ({b"if-none-match": b"*"}, True),
        ({b"if-none-match": b"a"}, False),
        ({b"if-none-match": b'"b"'}, False),
        ({b"if-none-match": b'"'}, False),
        ({b"if-modified-since": b"Thu, 01 Oct 2026 10:00:00 GMT"}, True),
        ({b"if-modified-since": b"Thu, 01 Oct 2026 10:00:01 GMT"}, True),
        ({b"if-modified-since": b"Thu, 01 Oct 2026 09:59:59 GMT"}, False),
        ({b"if-modified-since": b"yesterday"}, False),
        ({b"if-modified-since": b"Thu, 01 Oct 99999 10:00:00 GMT"}, False),
        ({b"if-modified-since": b"Thu, 01 Oct 2026 10:00:00 -0000"}, True),
        # If-None-Match decides where both are sent.
        (
            {b"if-none-match": b'"b"', b"if-modified-since": b"Thu, 01 Oct 2026 10:00:00 GMT"},
            False,
        ),
    ],
)
def test_a_caller_has_the_answer_by_its_tag_or_else_its_time(
    asked: dict[bytes, bytes], unchanged: bool
) -> None:
    assert is_unchanged(asked, TAG) is unchanged
    assert is_unchanged(asked, {}) is False


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (b"bytes=0-3", Part(0, 4)),
        (b"bytes=8-", Part(8, 10)),
        (b"bytes=-3", Part(7, 10)),
        (b"bytes=-30", Part(0, 10)),
        (b"bytes=5-99", Part(5, 10)),
        (b"BYTES=0-0", Part(0, 1)),
        (b"bytes=10-", Part(10, 10)),  # these two cannot be satisfied
        (b"bytes=-0", Part(10, 10)),
        (b"bytes=0-1,4-5", None),
        (b"bytes=3-2", None),
        (b"bytes=-", None),
        (b"lines=0-3", None),
        (b"bytes=0-%d" % 10**20, None),
        (b"", None),
    ],
)
def test_one_range_of_bytes_is_a_part(asked: bytes, part: Part | None) -> None:
    assert part_of({b"range": asked}, TAG, 10) == part


@pytest.mark.parametrize(
    ("condition", "applies"),
    [(b'"a"', True), (TAG[b"last-modified"], True), (b'"b"', False), (b'W/"a"', False)],
)
def test_a_range_of_another_version_is_ignored(condition: bytes, applies: bool) -> None:
    found = part_of({b"range": b"bytes=0-3", b"if-range": condition}, TAG, 10)
    assert found == (Part(0, 4) if applies else None)
