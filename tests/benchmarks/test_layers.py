"""Each layer answers rightly, and what it adds can be told."""

from __future__ import annotations

import pytest

from benchmarks import layers


@pytest.mark.parametrize("layer", layers.LAYERS)
async def test_every_layer_echoes(layer: str) -> None:
    assert 0 < await layers.cpu_us_per_request(layer, 0.02) < 100_000


async def test_another_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "TEXT", "sent")
    monkeypatch.setitem(
        layers.LAYERS,
        "wrong",
        lambda: layers._grpc(layers.Method(unary=lambda call, message: call.reply(b"wrong"))),
    )
    with pytest.raises(RuntimeError, match="another answer"):
        await layers.cpu_us_per_request("wrong", 0.01)
