"""The heads of many gRPC calls, encoded beforehand, as a client with an HPACK table sends them.

The encoder is the ``hpack`` package's, which shares no code with Penstock. It indexes every value,
as grpc-go does, so that a call's own values enter the server's table and evict others. With
``different`` heads each call has its own ``traceparent``, ``x-request-id`` and ``grpc-timeout``, as
OpenTelemetry and a caller's deadline make them; with ``same`` ones the values never change.
Encoding costs more than a server needs to answer, so the frames are kept in a file.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import hpack
import numpy as np

INFERENCE = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
CALLS = 32_000
"""Calls of all connections together: enough for half a second before a connection is renewed."""
HEADERS, END_HEADERS = 1, 0x4


@dataclass(frozen=True, slots=True)
class Heads:
    """The HEADERS frames of one connection's calls; call ``n`` is stream ``2 * n + 1``."""

    frames: bytes
    offsets: list[int]

    def __len__(self) -> int:
        return len(self.offsets) - 1


def call_fields(values: random.Random, method: str) -> list[tuple[str, str]]:
    """The header fields of one call of ``method``, in the order of grpc-go."""
    trace, span, request = values.getrandbits(128), values.getrandbits(64), values.getrandbits(128)
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "penstock.test:9000"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.65.0"),
        ("te", "trailers"),  # codespell:ignore te
        ("grpc-timeout", f"{values.randrange(20_000_000, 30_000_000)}u"),
        ("traceparent", f"00-{trace:032x}-{span:016x}-01"),
        ("x-request-id", f"{request:032x}"),
    ]


def encode_heads(heads: str, count: int, seed: int, method: str = INFERENCE) -> Heads:
    """Encode the heads of ``count`` calls, in the order in which they are sent."""
    encoder, values = hpack.Encoder(), random.Random(seed)
    fields = call_fields(values, method)
    frames, offsets = bytearray(), [0]
    for number in range(count):
        if heads == "different":
            fields = call_fields(values, method)
        block = encoder.encode(fields)
        frames += len(block).to_bytes(3, "big") + bytes((HEADERS, END_HEADERS))
        frames += (2 * number + 1).to_bytes(4, "big") + block
        offsets.append(len(frames))
    return Heads(bytes(frames), offsets)


def heads_of(
    heads: str, connections: int, cache: Path, calls: int = CALLS, method: str = INFERENCE
) -> list[Heads]:
    """Every connection's heads, read from the folder ``cache`` or encoded and stored there."""
    found = []
    called = method.strip("/").replace("/", ".")
    for seed in range(connections):
        file = cache / f"{heads}-{called}-{calls // connections}-{seed}.npz"
        if not file.is_file():
            made = encode_heads(heads, calls // connections, seed, method)
            cache.mkdir(parents=True, exist_ok=True)
            frames = np.frombuffer(made.frames, np.uint8)
            np.savez(file, frames=frames, offsets=np.array(made.offsets))
        with np.load(file) as kept:
            found.append(Heads(kept["frames"].tobytes(), kept["offsets"].tolist()))
    return found
