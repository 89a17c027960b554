"""Compressed bodies, of requests and replies."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from backports import zstd as packer

from penstock.api.body import decompress
from penstock.api.compression import choose, pack
from penstock.errors import TooLarge, Undecodable
from penstock.protocols import zstd

MOST = 8 << 20


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (b"gzip, deflate, br, zstd", b"zstd"),
        (b"gzip, deflate", b"gzip"),
        (b"gzip;q=1.0, zstd;q=0.5", b"gzip"),
        (b"*", b"zstd"),
        (b"*;q=0", None),
        (b"zstd;q=0, gzip;q=0", None),
        (b"identity", None),
        (b"br", None),
        (b"", None),
        (b"gzip;q=nonsense", None),
    ],
)
def test_the_preferred_accepted_coding_is_chosen(accepted: bytes, coding: bytes | None) -> None:
    assert choose(accepted) == coding


@pytest.mark.parametrize("coding", [b"gzip", b"zstd"])
def test_a_compressed_body_is_decompressed_to_the_same(coding: bytes) -> None:
    body = b"[1.5, 2.5]" * 10_000
    packed = pack(body, coding)
    assert len(packed) < len(body) / 10
    assert decompress(coding, packed, MOST) == body


@pytest.mark.parametrize("window", [zlib.MAX_WBITS, -zlib.MAX_WBITS], ids=["zlib", "raw"])
def test_deflate_is_zlib_s_format_or_deflate_without_a_header(window: int) -> None:
    body = b"[1.5, 2.5]" * 1000
    for level in range(-1, 10):
        stream = zlib.compressobj(level, wbits=window)
        packed = stream.compress(body) + stream.flush()
        assert decompress(b"Deflate", packed, MOST) == body
        for wrong in (packed[:-3], packed + b"x", b"", b"xyz" + packed):
            with pytest.raises(Undecodable):
                decompress(b"deflate", wrong, MOST)
    bomb = zlib.compressobj(9, wbits=window)
    with pytest.raises(TooLarge):
        decompress(b"deflate", bomb.compress(b"x" * (MOST + 1)) + bomb.flush(), MOST)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda data: data[:-3], Undecodable),
        (lambda data: data + b"x", Undecodable),
        (lambda data: b"xyz" + data, Undecodable),
        (lambda data: b"", Undecodable),
        (lambda _: packer.compress(b"x" * (MOST + 1)), TooLarge),
        (lambda _: packer.compress(b"x" * (MOST // 2)), TooLarge),
        (lambda data: _with_window(27, data), Undecodable),
    ],
    ids=["cut", "longer", "other", "empty", "too large", "a bomb", "a large window"],
)
def test_invalid_or_too_large_zstd_is_refused(
    spoil: Callable[[bytes], bytes], error: type[Exception]
) -> None:
    with pytest.raises(error):
        zstd.unpack(spoil(packer.compress(b"hello" * 100)), MOST)


def _with_window(logarithm: int, data: bytes) -> bytes:
    options = {int(packer.CompressionParameter.window_log): logarithm}
    stream = packer.ZstdCompressor(options=options)
    return stream.compress(data) + stream.flush()
