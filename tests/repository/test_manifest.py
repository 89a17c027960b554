"""Manifests of versions, names of files, and what tells that a version is complete."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.repository.manifest import (
    Entry,
    File,
    Manifest,
    content_digest,
    fingerprint,
    format_manifest,
    is_unfinished,
    parse_manifest,
    why_incomplete,
    why_moving,
    why_unlike,
    why_unsafe,
)

DIGEST = sha256(b"x").hexdigest()
ONE = Entry(path="model.onnx", size=1, sha256=DIGEST)
MANIFEST = Manifest(model="m", version="3", files=(ONE, replace(ONE, path="a/b.bin")))
FILE = File(path="m/1/model.onnx", size=1, revision="1")


def document(**changed: Any) -> bytes:
    return json.dumps({**json.loads(format_manifest(MANIFEST)), **changed}).encode()


def test_a_manifest_is_read_as_it_was_written() -> None:
    read = parse_manifest(format_manifest(MANIFEST))
    assert sorted(read.files, key=repr) == sorted(MANIFEST.files, key=repr)
    assert (read.model, read.version, read.digest) == ("m", "3", MANIFEST.digest)


def test_the_order_of_files_changes_neither_bytes_nor_digest() -> None:
    other = replace(MANIFEST, files=MANIFEST.files[::-1])
    assert format_manifest(other) == format_manifest(MANIFEST)
    assert (
        other.digest
        == MANIFEST.digest
        == content_digest({"a/b.bin": DIGEST, "model.onnx": DIGEST}.items())
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no JSON"),
        (b"[]", "format None"),
        (document(format=2), "format 2; this release reads format 1"),
        (document(files=[]), "lists no files"),
        (document(files={"a": 1}), "no valid list"),
        (document(files=[1]), "no valid list"),
        (
            document(files=[{"path": "../a", "size": 1, "sha256": DIGEST}]),
            r"'../a', which has \.\.",
        ),
        (document(files=[{"path": "/a", "size": 1, "sha256": DIGEST}]), "is absolute"),
        (document(files=[{"path": "a", "size": True, "sha256": DIGEST}]), "no valid size"),
        (document(files=[{"path": "a", "size": -1, "sha256": DIGEST}]), "no valid size"),
        (document(files=[{"path": "a", "size": 1, "sha256": "ab"}]), "no valid sha256"),
        (document(files=[{"size": 1, "sha256": DIGEST}]), "without a path"),
        (document(files=[{"path": "a", "size": 1, "sha256": DIGEST}] * 2), "twice"),
        (
            document(files=[{"path": each, "size": 1, "sha256": DIGEST} for each in ("a", "a/b")]),
            "'a/b' below another file",
        ),
        (
            document(files=[{"path": "penstock-manifest.json", "size": 1, "sha256": DIGEST}]),
            "lists 'penstock-manifest.json'",
        ),
        (document(model=3), "no text"),
    ],
)
def test_what_is_no_manifest_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_manifest(data)


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_any_bytes_are_a_manifest_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        parse_manifest(data)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "no name"),
        ("/etc/passwd", "absolute"),
        ("../a", r"\.\."),
        ("a/../../b", r"\.\."),
        ("a//b", "empty part"),
        ("a/./b", "empty part"),
        ("a/", "empty part"),
        ("a\\b", "backslash"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\x85b", "control"),
        ("a\udce4", "UTF-8"),
        ("a" * 256, "too long"),
        ("a/" * 40 + "b", "too long"),
    ],
)
def test_a_name_that_could_do_harm_is_refused(path: str, reason: str) -> None:
    assert re.search(reason, why_unsafe(path) or "")


@pytest.mark.parametrize("path", ["model.onnx", "m/1/model.onnx", "a..b", "ä b/模型.onnx", "..a/b"])
def test_other_names_are_not(path: str) -> None:
    assert why_unsafe(path) is None


@pytest.mark.parametrize(
    "name",
    [
        "m.onnx.part",
        "m.onnx.TMP",
        "m.onnx._COPYING_",
        ".m.onnx.Xa3QpQ",
        "w.bin.incomplete",
        "a.crdownload",
    ],
)
def test_names_of_files_that_are_being_written(name: str) -> None:
    assert is_unfinished(name)


@pytest.mark.parametrize("name", ["m.onnx", "part", "template.json", ".gitattributes", "m.parts"])
def test_other_names_are_of_finished_files(name: str) -> None:
    assert not is_unfinished(name)


def test_a_numbered_series_must_be_complete() -> None:
    all_of = [f"w-{index:05}-of-00003.bin" for index in (1, 2, 3)]
    assert (
        why_incomplete([*all_of, "model.onnx", "variables/variables.data-00000-of-00001"]) is None
    )
    assert why_incomplete(all_of[1:]) == "has 2 of 3 files w-*-of-00003.bin"
    assert why_incomplete(["model.onnx"]) is None


def test_what_has_changed_between_two_scans_is_named() -> None:
    other = replace(FILE, path="m/1/w.bin")
    assert why_moving([FILE, other], [other, FILE]) is None
    assert why_moving([FILE], [FILE, other]) == "m/1/w.bin is new"
    assert why_moving([FILE, other], [FILE]) == "m/1/w.bin has gone"
    assert why_moving([FILE], [replace(FILE, size=2)]) == "m/1/model.onnx has changed"
    assert why_moving([FILE], [replace(FILE, revision="2")]) == "m/1/model.onnx has changed"
    # The passage of time, and what a second answer of the store adds, are no change.
    assert why_moving([FILE], [replace(FILE, strong=True, written=1.0)]) is None


def test_what_a_manifest_lacks_is_named() -> None:
    assert why_unlike(MANIFEST, {"model.onnx": 1, "a/b.bin": None, "more": 5}) is None
    assert why_unlike(MANIFEST, {"model.onnx": 1}) == "a/b.bin is missing"
    assert why_unlike(MANIFEST, {"model.onnx": 0, "a/b.bin": 1}) == "model.onnx has 0 bytes of 1"


def test_a_fingerprint_changes_with_any_file_and_not_with_their_order() -> None:
    other = replace(FILE, path="m/1/w.bin")
    first = fingerprint([FILE, other])
    assert fingerprint([other, FILE]) == first
    for changed in (
        replace(other, revision="2"),
        replace(other, size=None),
        replace(other, path="b"),
    ):
        assert fingerprint([FILE, changed]) != first
    assert fingerprint([replace(FILE, strong=True), other]) == first
