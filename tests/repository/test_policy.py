"""Which versions of a model are served."""

from __future__ import annotations

import pytest

from penstock.repository.policy import (
    ALL,
    LATEST,
    VersionPolicy,
    canonical,
    default,
    missing,
    parse,
    wanted,
)

THERE = ["9", "10", "2"]


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        (LATEST, ["10"]),
        (VersionPolicy(latest=2), ["9", "10"]),
        (VersionPolicy(latest=9), ["2", "9", "10"]),
        (ALL, ["2", "9", "10"]),
        (VersionPolicy(specific=("10", "2", "7")), ["2", "10"]),
        (VersionPolicy(specific=("7",)), []),
    ],
)
def test_the_policy_chooses_among_the_versions_that_are_there(
    policy: VersionPolicy, served: list[str]
) -> None:
    assert wanted(policy, THERE) == served
    assert default(served) == (served[-1] if served else None)


def test_versions_that_are_named_and_not_there_are_missing() -> None:
    assert missing(VersionPolicy(specific=("10", "7", "3")), THERE) == ["3", "7"]
    assert missing(ALL, THERE) == []


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("latest", LATEST),
        ("latest 2", VersionPolicy(latest=2)),
        ("all", ALL),
        ("3", VersionPolicy(specific=("3",))),
        ("1, 003", VersionPolicy(specific=("1", "3"))),
    ],
)
def test_policies_are_written_as_text(text: str, policy: VersionPolicy) -> None:
    assert parse(text) == policy


@pytest.mark.parametrize("text", ["", "latest 0", "latest x", "latest 1 2", "all 1", "v1", "1, x"])
def test_other_texts_are_no_policy(text: str) -> None:
    with pytest.raises(ValueError, match="must be latest, latest N, all, or numbers"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1", "1"),
        ("00000123", "123"),
        ("0", "0"),
        (str((1 << 63) - 1), str((1 << 63) - 1)),
        (str(1 << 63), None),
        ("9" * 33, None),
        ("v1", None),
        ("1.0", None),
        ("-1", None),
        ("\u0661", None),
        ("", None),
    ],
)
def test_a_version_is_a_number(text: str, version: str | None) -> None:
    assert canonical(text) == version
