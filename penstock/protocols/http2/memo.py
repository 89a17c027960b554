"""Header blocks that were seen before: what was made of them is made once.

Until the dynamic table changes, equal bytes mean equal fields, so that a client that repeats itself
costs one look-up for each head. Where the bytes differ, equal fields still give the same head.
"""

from __future__ import annotations

from typing import Final, TypeVar

from penstock.protocols.heads import Headers, RequestHead, ResponseHead
from penstock.protocols.http2.blocks import FieldDecoder, Fields
from penstock.protocols.http2.codes import HeadersTooLarge
from penstock.protocols.http2.limits import Http2Limits
from penstock.protocols.http2.messages import request_head, response_head, trailers

MOST_REMEMBERED: Final = 64
LONGEST_REMEMBERED: Final = 1024
"""Blocks kept at once, and bytes of one: more than the kinds of requests that a client repeats, and
little enough for the memory of an idle connection."""

MOST_SHARED: Final = 512
LONGEST_SHARED: Final = 2048
"""The same for the heads of a whole door, the bytes as header lists are counted."""


class HeadMemo:
    """Heads of requests by their fields, shared by the connections of one door.

    A connection whose client does not repeat its blocks still finds heads that others have brought:
    they need no check, and whoever answers finds its note.
    """

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[tuple[tuple[bytes, bytes], ...], RequestHead] = {}

    def head(self, fields: Fields, size: int) -> RequestHead:
        """The head of these fields, of ``size`` bytes; the same object for equal ones, while kept.

        Raises:
            MalformedMessage: it is none.
        """
        key = tuple(fields)
        head = self._heads.get(key)
        if head is None:
            head = request_head(fields)
            if size <= LONGEST_SHARED:
                if len(self._heads) >= MOST_SHARED:
                    self._heads.clear()
                self._heads[key] = head
        return head


class BlockDecoder:
    """The peer's header blocks on one connection.

    Attributes:
        requests: blocks known to be a head without fault, and the head; dropped when the dynamic
            table changes.
        responses: the same for responses.
        endings: the same for trailers.
    """

    __slots__ = ("_decoder", "_memo", "endings", "requests", "responses")

    def __init__(self, limits: Http2Limits, memo: HeadMemo) -> None:
        self._memo = memo
        self._decoder = FieldDecoder(limits)
        self.requests: dict[bytes, RequestHead] = {}
        self.responses: dict[bytes, ResponseHead] = {}
        self.endings: dict[bytes, Headers] = {}

    def request(self, block: bytes) -> RequestHead:
        """The head that a block is.

        Raises:
            ConnectionFault: the block cannot be decoded, or is beyond all bounds.
            HeadersTooLarge: over a limit, but decoded.
            MalformedMessage: decoded, but no head.
        """
        head = self.requests.get(block)
        if head is None:
            fields, size, lasting = self._decode(block)
            head = self._memo.head(fields, size)
            if lasting:
                _remember(self.requests, block, head)
        return head

    def response(self, block: bytes) -> ResponseHead:
        """The head of a response that a block is; errors as for ``request``."""
        head = self.responses.get(block)
        if head is None:
            fields, _, lasting = self._decode(block)
            head = response_head(fields)
            if lasting:
                _remember(self.responses, block, head)
        return head

    def ending(self, block: bytes) -> Headers:
        """The trailers that a block is; errors as for ``request``."""
        headers = self.endings.get(block)
        if headers is None:
            fields, _, lasting = self._decode(block)
            headers = trailers(fields)
            if lasting:
                _remember(self.endings, block, headers)
        return headers

    def pass_over(self, block: bytes) -> None:
        """Decode a block that nobody wants, for what it does to the dynamic table.

        Raises:
            ConnectionFault: as ``request``.
        """
        try:
            self._decode(block)
        except HeadersTooLarge:
            return  # the table is right nevertheless

    def settings_acknowledged(self) -> None:
        """The peer knows our HEADER_TABLE_SIZE; a block from before may be none any more."""
        self._decoder.settings_acknowledged()
        self._drop()

    def _decode(self, block: bytes) -> tuple[Fields, int, bool]:
        """The fields of a block, their size, and whether equal bytes will mean the same again."""
        decoder = self._decoder
        before = decoder.changes
        try:
            fields, size = decoder.decode(block)
        finally:
            lasting = decoder.changes == before
            if not lasting:
                self._drop()
        return fields, size, lasting

    def _drop(self) -> None:
        self.requests.clear()
        self.responses.clear()
        self.endings.clear()


_Value = TypeVar("_Value")


def _remember(memo: dict[bytes, _Value], block: bytes, value: _Value) -> None:
    if len(block) <= LONGEST_REMEMBERED:
        if len(memo) >= MOST_REMEMBERED:
            memo.clear()
        memo[block] = value
