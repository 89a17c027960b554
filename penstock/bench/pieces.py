"""What counts as a piece of an answer, and its times. Pure.

A piece has content: texts, numbers or bytes, not the mere frame of a message. Of a chunk of
OpenAI's API that is the text, the reasoning or the call of a tool in one of its choices: the chunks
with the role, with the reason of the end, or with the usage have none.

Source: AIPerf's metrics: time to first token (the first response with content), and inter token
latency, (latency - time to first token) / (output tokens - 1), where the latency ends with the last
response with content. Here pieces are counted, since what a token is only the model knows.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.client.piece_reader import Piece

_EMPTY: Final = frozenset({"", '""', "null", "{}", "[]"})
_CHOICES: Final = '"choices"'


def has_content(piece: Piece) -> bool:
    """Whether a piece counts."""
    if isinstance(piece, bytes):
        return bool(piece)
    if piece in _EMPTY:
        return False
    if piece[:1] != "{" or _CHOICES not in piece:
        return True
    try:
        chunk = orjson.loads(piece)
    except orjson.JSONDecodeError:
        return True
    choices = chunk.get("choices")
    if not isinstance(choices, list) or "object" not in chunk:
        return True
    return any(isinstance(choice, dict) and _is_said(choice) for choice in choices)


def _is_said(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta", choice)
    if not isinstance(delta, dict):
        return False
    names = ("content", "text", "reasoning_content", "reasoning", "refusal", "tool_calls")
    return any(delta.get(name) for name in names)


def between_pieces(first: float, last: float, pieces: int) -> float | None:
    """The mean seconds between the pieces of an answer; None if it has fewer than two.

    Args:
        first: when the first one arrived.
        last: when the last one arrived.
        pieces: their number.
    """
    return (last - first) / (pieces - 1) if pieces > 1 else None
