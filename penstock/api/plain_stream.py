"""PlainStream: a call to a graph over HTTP whose answer comes in pieces.

The pieces are dicts with arrays, and are encoded here.

Thread: the engine's loop, except ``encode``.
"""

from __future__ import annotations

from penstock.api.encoded_pieces import EncodedPieces, Waiting
from penstock.api.http import HttpCall
from penstock.api.stream_call import StreamCall
from penstock.protocols import media
from penstock.request import Feed
from penstock.typed.signature import Schema


class PlainStream(EncodedPieces, StreamCall):
    """See the module.

    Attributes:
        piece_schema: of a piece; None accepts anything.
    """

    __slots__ = ("piece_schema", "waiting")

    piece_schema: Schema | None
    as_text = True

    def run(self, call: HttpCall) -> None:
        """See ``StreamCall``."""
        self.waiting = Waiting()
        super().run(call)

    def encode(self, value: Feed) -> bytes:
        """See ``GraphCall``: a piece as JSON."""
        return encode(value, self.piece_schema, media.JSON)

    def is_large(self, value: Feed) -> bool:
        """See ``GraphCall``; pictures are always encoded in a thread."""
        schema = self.piece_schema
        return super().is_large(value) or (schema is not None and schema.has_images)


def encode(value: Feed, schema: Schema | None, kind: str) -> bytes:
    """A graph's result, or a piece of it, with a media type.

    Raises:
        RequestError: it is not what the schema says.
        TypeError, ValueError: it has a value that cannot be encoded.
    """
    if schema is None:
        return media.encode(value, kind)
    return schema.write(schema.check(value), kind)
