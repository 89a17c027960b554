"""Equal inputs have one digest, and others have others."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from penstock.engine.digest import OUTLINE, digest_of, outline_of

SWAPPED = {"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 0]}
ALIKE: list[tuple[Any, Any]] = [
    ("text", "te" + "xt"),
    (b"bytes", b"bytes"),
    ([1, 2.0, None, True], [1, 2.0, None, True]),
    (np.arange(6).reshape(2, 3)[:, ::2], np.array([[0, 2], [3, 5]])),
    (np.float32(1.5), np.float32(1.5)),
    ("\udc80", "\udc80"),
    (np.array(["a", "bc"], object), np.array(["a", "b" + "c"], object)),
    (10**5000, 10**5000),
    ([10**5000], [10**5000]),
    (-(3**40_000), -(3**40_000)),
    (np.zeros(1, SWAPPED), np.zeros(1, SWAPPED)),
    ([["a"], (1, {"b": None})], [["a"], (1, {"b": None})]),
]
UNLIKE: list[tuple[Any, Any]] = [
    ("text", "texts"),
    ("1", b"1"),
    ("1", 1),
    (1, 1.0),
    (1, True),
    ([1, 2], (1, 2)),
    ([1, 2], [2, 1]),
    (["ab", "c"], ["a", "bc"]),
    ([["a"], "b"], [["a", "b"]]),
    ({"a": "b"}, ["a", "b"]),
    (np.zeros(4), np.zeros((2, 2))),
    (np.zeros(2, "i4"), np.zeros(2, "f4")),
    (np.zeros(2, "i4"), np.zeros(1, "i8")),
    (np.array(5), np.int64(5)),
    (np.array(["a"]), np.array([b"a"])),
    (0.0, -0.0),
    (np.array(["a", "b"], object), np.array(["b", "a"], object)),
    (np.array(["a", "b"], object), np.array([["a", "b"]], object)),
    (np.zeros(1, [("a", "i4")]), np.zeros(1, [("b", "i4")])),
    (np.zeros(1, [("b", "i4"), ("a", "i4")]), np.zeros(1, SWAPPED)),
    (10**5000, 10**5000 + 1),
    (10**5000, -(10**5000)),
    ([1, "a"], [1, b"a"]),
    ([None, 1], [1, None]),
    ([[1], [2, 3]], [[1, 2], [3]]),
]


def kind_of(value: Any) -> str:
    return type(value).__name__  # huge ints cannot be written


@pytest.mark.parametrize(("one", "other"), ALIKE, ids=kind_of)
def test_like_inputs_have_one_digest(one: Any, other: Any) -> None:
    assert digest_of({"op": {"x": one}}) == digest_of({"op": {"x": other}}) is not None


@pytest.mark.parametrize(("one", "other"), UNLIKE, ids=kind_of)
def test_unlike_inputs_have_several(one: Any, other: Any) -> None:
    assert digest_of({"op": {"x": one}}) != digest_of({"op": {"x": other}})


def test_names_and_predecessors_count() -> None:
    assert digest_of({"op": {"x": 1}}) != digest_of({"op": {"y": 1}})
    assert digest_of({"op": {"x": 1}}) != digest_of({"po": {"x": 1}})


@pytest.mark.parametrize("odd", [object(), {1, 2}, np.array([{1}]), lambda: None])
def test_objects_have_no_digest(odd: Any) -> None:
    assert digest_of({"op": {"x": [odd]}}) is None


def test_what_contains_itself_has_no_digest() -> None:
    knot: list[Any] = []
    knot.append(knot)
    assert digest_of({"op": {"x": knot}}) is None


def test_what_raises_when_it_is_told_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    def dumps(*args: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr("penstock.engine.digest.marshal.dumps", dumps)
    assert outline_of({"op": {"x": 1}}) is None
    assert digest_of({"op": {"x": 1}}) is None


def test_an_array_that_contains_itself_and_an_endless_record_have_no_digest() -> None:
    knot = np.empty(1, object)
    knot[0] = knot
    assert digest_of({"op": {"x": knot}}) is None
    record = np.zeros(1, [(f"field{n}", "i4") for n in range(300)])
    assert digest_of({"op": {"x": record}}) is None
    assert digest_of({"op": {"x": 1 << (1 << 24)}}) is None


LARGE: list[tuple[Any, Any]] = [
    (bytes(5000), bytes(2500) + b"x" + bytes(2499)),
    ("a" * 5000, "a" * 2500 + "b" + "a" * 2499),
    (np.zeros(5000), np.concatenate([np.zeros(2500), np.ones(1), np.zeros(2499)])),
]


@pytest.mark.parametrize(("one", "other"), LARGE)
def test_the_outline_of_large_parts_tells_their_ends_and_the_digest_all(
    one: Any, other: Any
) -> None:
    names = [digest_of({"op": {"x": each}}) for each in (one, other)]
    outlines = [outline_of({"op": {"x": each}}) for each in (one, other)]
    assert names[0] is not None
    assert names[1] is not None
    assert names[0] != names[1]
    assert outlines[0] == outlines[1] == names[0][:OUTLINE] == names[1][:OUTLINE]


@pytest.mark.parametrize(("one", "_other"), LARGE)
def test_outlines_tell_lengths_and_ends(one: Any, _other: Any) -> None:
    whole, longer, begun = (
        outline_of({"op": {"x": each}}) for each in (one, changed(one, 0), changed(one, -1))
    )
    assert len({whole, longer, begun, outline_of({"op": {"x": one[:-1]}})}) == 4


def changed(value: Any, at: int) -> Any:
    if isinstance(value, np.ndarray):
        made = value.copy()
        made[at] = 7
        return made
    one = b"z" if isinstance(value, bytes) else "z"
    return one + value[1:] if at == 0 else value[:-1] + one


def test_an_array_is_told_whatever_its_order_in_memory() -> None:
    large = np.arange(40_000).reshape(200, 200)
    other = np.asfortranarray(large)
    assert digest_of({"op": {"x": large}}) == digest_of({"op": {"x": other}})
    assert digest_of({"op": {"x": large}}) != digest_of({"op": {"x": large.T}})


def floats(length: int) -> list[float]:
    return [n / 7 for n in range(length)]


MEBIBYTE = 1 << 20
HUGE: list[Any] = [
    bytes(3 * MEBIBYTE),
    "é" * 3 * MEBIBYTE,
    np.zeros((768, 512)),
    np.zeros((768, 512), "c16").transpose(),
]


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize("part", [0.0, 0.123, 0.5, 0.87654, 1.0])
def test_one_octet_of_a_huge_part_makes_another_digest(huge: Any, part: float) -> None:
    length = huge.size if isinstance(huge, np.ndarray) else len(huge)
    at = int(part * (length - 1))
    if isinstance(huge, np.ndarray):
        other = huge.copy("K")
        other.flat[at] = 1
    else:
        other = huge[:at] + (b"z" if isinstance(huge, bytes) else "z") + huge[at + 1 :]
    names = [digest_of({"op": {"x": each, "y": 1}}) for each in (huge, huge, other)]
    assert names[0] is not None
    assert names[0] == names[1]
    assert names[2] is not None
    assert names[0] != names[2]


def test_of_a_huge_list_the_length_the_ends_and_samples_count() -> None:
    huge = floats(300_000)
    names = [digest_of({"op": {"x": [*huge]}})]
    for at in (0, 5000, 150_000, 299_999):
        other = [*huge]
        other[at : at + 100] = [0.5] * len(other[at : at + 100])
        names.append(digest_of({"op": {"x": other}}))
    names.append(digest_of({"op": {"x": [*huge, 1.0]}}))
    names.append(digest_of({"op": {"x": huge[1:2] + huge[:-1]}}))
    assert None not in names
    assert len(set(names)) == len(names)
    assert digest_of({"op": {"x": huge}}) == names[0]


def test_of_many_rows_all_are_told_as_far_as_they_fit() -> None:
    rows = [[float(n)] * 50 for n in range(1000)]
    assert digest_of({"op": {"x": rows}}) == digest_of({"op": {"x": [*map(list, rows)]}})
    other = [*map(list, rows)]
    other[700][25] = 0.5
    assert digest_of({"op": {"x": rows}}) != digest_of({"op": {"x": other}})


WIDE: list[Any] = [
    floats(300_000),
    tuple(floats(300_000)),
    [floats(600)] * 600,
    [[[1.0]] * 100] * 5000,
    np.array([str(n) for n in range(300_000)], object),
    dict.fromkeys(range(300_000), "text"),
    {"a": {n: [n] for n in range(100_000)}},
    ["text " * 1000] * 50_000,
    "text " * MEBIBYTE,
    b"bytes " * MEBIBYTE,
    np.zeros(MEBIBYTE),
    np.zeros((2048, 1024))[:, ::2],
    [np.zeros(10)] * 100_000,
    [np.zeros(1), "text " * MEBIBYTE],
    [[""]] * 65_000,
    dict.fromkeys(range(100_000), "text"),
    3**5_000_000,
]


@pytest.mark.parametrize("wide", WIDE, ids=kind_of)
def test_little_is_told_and_copied_of_the_largest_inputs(
    wide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"outline": 0, "digest": 0}

    class Counted:
        def __init__(self, data: bytes = b"", *, digest_size: int) -> None:
            self.size = digest_size

        def update(self, octets: Any) -> None:
            told[name] += len(octets)

        def digest(self) -> bytes:
            return bytes(self.size)

    monkeypatch.setattr("penstock.engine.digest.blake2b", Counted)
    copied = {}
    for name, look in (("outline", outline_of), ("digest", digest_of)):
        tracemalloc.start()
        try:
            look({"op": {"x": wide}})
            copied[name] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert told["outline"] < 50_000
    assert copied["outline"] < 300_000
    assert told["digest"] < 1_350_000
    assert copied["digest"] < 12_000_000
