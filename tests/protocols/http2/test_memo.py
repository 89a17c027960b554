from __future__ import annotations

import pytest
from hpack import Encoder

from penstock.protocols.http2 import Http2Limits, encode_block
from penstock.protocols.http2.codes import MalformedMessage
from penstock.protocols.http2.memo import MOST_REMEMBERED, MOST_SHARED, BlockDecoder, HeadMemo

from . import peers


def test_an_equal_block_gives_the_same_head() -> None:
    decoder = BlockDecoder(Http2Limits(), HeadMemo())
    assert decoder.request(peers.GET_BLOCK) is decoder.request(peers.GET_BLOCK)


def test_a_block_that_changes_the_table_is_not_remembered() -> None:
    encoder = Encoder()
    decoder = BlockDecoder(Http2Limits(), HeadMemo())
    decoder.request(encoder.encode([*peers.GET, (b"x-a", b"1")]))
    assert decoder.requests == {}
    known = encoder.encode([*peers.GET, (b"x-a", b"1")])
    decoder.request(known)
    assert set(decoder.requests) == {known}


def test_the_same_bytes_mean_something_else_after_a_change_of_the_table() -> None:
    encoder = Encoder()
    decoder = BlockDecoder(Http2Limits(), HeadMemo())
    decoder.request(encoder.encode([*peers.GET, (b"x-a", b"1")]))
    block = encoder.encode([*peers.GET, (b"x-a", b"1")])
    assert decoder.request(block).fields[b"x-a"] == b"1"
    # One entry more in front: the index that was x-a is now another field.
    decoder.pass_over(encoder.encode([(b"x-b", b"2")]))
    moved = encoder.encode([*peers.GET, (b"x-a", b"1")])
    assert moved != block
    assert decoder.request(moved).fields[b"x-a"] == b"1"
    with pytest.raises(MalformedMessage):
        decoder.request(block)


def test_connections_of_one_door_share_equal_heads() -> None:
    memo = HeadMemo()
    one, other = (BlockDecoder(Http2Limits(), memo) for _ in range(2))
    indexed = Encoder().encode(peers.GET)
    assert one.request(peers.GET_BLOCK) is other.request(indexed)
    assert one.request(peers.GET_BLOCK) is not BlockDecoder(Http2Limits(), HeadMemo()).request(
        peers.GET_BLOCK
    )


def test_memos_are_bounded() -> None:
    memo = HeadMemo()
    decoder = BlockDecoder(Http2Limits(), memo)
    for n in range(2000):
        decoder.request(encode_block([*peers.GET, (b"x-n", b"%d" % n)]))
        decoder.ending(encode_block([(b"x-n", b"%d" % n)]))
        assert len(decoder.requests) <= MOST_REMEMBERED
        assert len(decoder.endings) <= MOST_REMEMBERED
        assert len(memo._heads) <= MOST_SHARED
    decoder.request(encode_block([*peers.GET, (b"x", b"v" * 3000)]))
    assert all(len(block) < 1100 for block in decoder.requests)
