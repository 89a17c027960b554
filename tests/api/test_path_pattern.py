"""Patterns of paths: what they match, and which of several has precedence."""

from __future__ import annotations

import pytest

from penstock.api.path_pattern import PathPattern, segment_value

UUID = "123e4567-e89b-12d3-a456-426614174000"


def match(pattern: str, path: str) -> tuple[str, ...] | None:
    segments = path.encode().split(b"/")
    values = [segment_value(raw) for raw in segments[1:]]
    for index, value in enumerate(values, 1):
        if value is not None:
            segments[index] = value.encode()
    return PathPattern(pattern).match(segments, values)


@pytest.mark.parametrize(
    ("pattern", "path", "values"),
    [
        ("/items/{id}", "/items/a%20b", ("a b",)),
        ("/items/{id}", "/items/%C3%A9+", ("é+",)),
        ("/items/{id}", "/items/a%2Fb", None),
        ("/items/{id}", "/items/", None),
        ("/items/{id}", "/items/..", None),
        ("/items/{id}", "/items/%2e%2e", None),
        ("/items/{id}", "/items/a%5Cb", None),
        ("/items/{id}", "/items/a%00", None),
        ("/items/{id}", "/items/%FF", None),
        ("/items/{id}", "/items/a/b", None),
        ("/items/{id:int}", "/items/007", ("007",)),
        ("/items/{id:int}", "/items/%37", ("7",)),
        ("/items/{id:int}", "/items/-7", None),
        ("/items/{id:int}", "/items/7.5", None),
        ("/items/{id:int}", "/items/%D9%A3", None),
        ("/at/{x:float}", "/at/7.5", ("7.5",)),
        ("/at/{x:float}", "/at/7.", None),
        ("/by/{x:uuid}", f"/by/{UUID}", (UUID,)),
        ("/by/{x:uuid}", "/by/x", None),
        ("/{a}/x/{b:int}", "/q/x/1", ("q", "1")),
        ("/a%20b/{c}", "/a%20b/d", ("d",)),
        ("/files/{rest:path}", "/files/a", ("a",)),
        ("/files/{rest:path}", "/files/a/b%20c/", ("a/b c/",)),
        ("/files/{rest:path}", "/files/a%2Fb", ("a/b",)),
        ("/files/{rest:path}", "/files/", ("",)),
        ("/files/{rest:path}", "/files", None),
        ("/files/{rest:path}", "/files//etc/passwd", None),
        ("/files/{rest:path}", "/files/%2Fetc/passwd", None),
        ("/files/{rest:path}", "/files/a//b", None),
        ("/files/{rest:path}", "/files/a/../b", None),
        ("/files/{rest:path}", "/files/a%2F..%2Fb", None),
        ("/files/{rest:path}", "/files/..", None),
        ("/files/{rest:path}", "/files/a%5C..", None),
        ("/files/{rest:path}", "/files/%FF/a", None),
    ],
)
def test_a_path_matches_with_its_values(
    pattern: str, path: str, values: tuple[str, ...] | None
) -> None:
    assert match(pattern, path) == values


def test_more_specific_patterns_have_precedence() -> None:
    ordered = [
        "/a/b",
        "/a/{x:int}",
        "/a/{x:uuid}",
        "/a/{x:float}",
        "/a/{x}",
        "/a/{x}/c",
        "/a/{x:path}",
        "/{x}/b",
        "/{x:path}",
    ]
    patterns = [PathPattern(each) for each in reversed(ordered)]
    patterns.sort(key=lambda each: each.order)
    found = ["/".join(each.shape).replace("{}", "{x}") for each in patterns]
    assert found == [each.replace("{x:", "{") for each in ordered]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("/a{b}", "whole segment"),
        ("/{a}{b}", "whole segment"),
        ("/{a", "whole segment"),
        ("/{a:number}", "converter of .* is one of int, uuid, float, str, path"),
        ("/{a}/{a}", "two placeholders are called a"),
        ("/{a:path}/b", "at the end"),
    ],
)
def test_a_text_that_is_no_pattern_is_an_error(pattern: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PathPattern(pattern)


def test_the_template_has_no_converters() -> None:
    pattern = PathPattern("/a/{b:int}/{c}/{d:path}")
    assert (pattern.template, pattern.names) == ("/a/{b}/{c}/{d}", ("b", "c", "d"))
