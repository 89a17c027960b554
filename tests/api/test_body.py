"""Bodies while they are received."""

from __future__ import annotations

import mmap

import pytest

from penstock.api import body as body_module
from penstock.api.body import PartialBody
from tests.kit.usage import memory, peak_memory, reset_peak_memory


@pytest.mark.parametrize("size", [1, 100, 4096, 100_000])
def test_pieces_are_joined_in_order(size: int) -> None:
    body = PartialBody()
    pieces = [bytes((n % 251,)) * size for n in range(300)]
    for piece in pieces:
        body.add(piece)
        body.add(b"")
    assert body.size == 300 * size
    assert body.join() == b"".join(pieces)


def test_small_and_large_pieces_are_joined_in_order() -> None:
    body = PartialBody()
    pieces = [b"a", b"b" * 70_000, b"c", b"d" * 65_000, b"e" * 1000, b"f"]
    for piece in pieces:
        body.add(piece)
    assert body.join() == b"".join(pieces)


@pytest.mark.parametrize("freed", [0, 20_000_000])
def test_concurrent_bodies_need_little_more_memory_than_their_size(freed: int) -> None:
    bytearray(freed)  # from then on the allocator keeps blocks of nearly that size in its heap
    bodies = [PartialBody() for _ in range(50)]
    before = memory()
    for _ in range(40):
        for body in bodies:
            body.add(bytes(bytearray(50_000)))
    held = sum(body.size for body in bodies)
    assert memory() - before < 1.1 * held
    kept = bodies[::10]
    del bodies, body
    assert memory() - before < 0.3 * held, "what is gone is not with the process any more"
    assert [one.size for one in kept] == [2_000_000] * 5


def test_joining_a_large_body_does_not_copy_it_whole() -> None:
    body = PartialBody()
    pieces = [bytes((n,)) * 1_000_003 for n in range(50)]
    for piece in pieces:
        body.add(piece)
    reset_peak_memory()
    before = memory()
    whole = body.join()
    assert peak_memory() - before < 25_000_000  # the kernel updates its count of pages with a delay
    assert whole == b"".join(pieces)


def test_the_memory_of_a_body_is_reused_and_little_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    mapped = body_module._mapped

    def recording_mapped(size: int) -> mmap.mmap:
        made.append(size)
        return mapped(size)

    monkeypatch.setattr(body_module, "_mapped", recording_mapped)
    monkeypatch.setattr(body_module, "_MAPPINGS", body_module._Mappings())
    for n in range(5):
        body = PartialBody()
        pieces = [bytes((n,)) * (1_000_000 - n) for _ in range(5)]
        for piece in pieces:
            body.add(piece)
        assert body.join() == b"".join(pieces)
    assert len(made) == 1
    before = memory()
    bodies = [PartialBody() for _ in range(20)]
    for body in bodies:
        body.add(bytes(5_000_000))
    for body in bodies:
        assert len(body.join()) == 5_000_000
    assert len(made) == 20
    assert memory() - before < 17_000_000
