"""A call with one body, over HTTP or baidu_std."""

from __future__ import annotations

from abc import abstractmethod

from penstock.api.body import LARGE, SMALL, SMALL_PACKED, PartialBody
from penstock.api.call import Call
from penstock.api.threads import run_aside
from penstock.errors import RequestError, TooLarge


class BodyCall(Call):
    """A call with one body, which may arrive in pieces, and compressed.

    Subclasses define its processing (``take``), decompression, and refusal.
    """

    __slots__ = ("partial",)

    partial: PartialBody | None

    @property
    @abstractmethod
    def is_packed(self) -> bool:
        """Whether the body is compressed."""

    @abstractmethod
    def unpack(self, body: bytes) -> bytes:
        """Decompress the body; from any thread.

        Raises:
            RequestError: it is corrupt, or decompresses to too much.
        """

    @abstractmethod
    def take(self, body: bytes) -> None:
        """Process the complete, decompressed body."""

    @abstractmethod
    def refuse(self, error: RequestError) -> None:
        """Refuse the body."""

    def expect(self, announced: int) -> bool:
        """Reserve an announced body. Returns False if it is refused."""
        exchange = self.exchange
        try:
            if announced > self.shared.most:
                raise TooLarge(f"the body is over {self.shared.most} bytes")
            if announced <= SMALL:
                exchange.take_small(announced)
            elif self.is_packed:
                exchange.take(announced)
            else:
                exchange.announce(announced)
        except RequestError as error:
            self.refuse(error)
            return False
        self.expect_body()
        return True

    def collect(self, piece: bytes, ended: bool) -> bytes | None:
        """Join and decompress the pieces. None while pieces are missing, or if a thread continues
        with a large or compressed body.

        Raises:
            RequestError: they are too large, or not compressed as declared.
        """
        most = self.shared.most
        body = piece
        partial = self.partial
        if partial is not None or not ended:
            if partial is None:
                partial = self.partial = PartialBody()
            partial.add(piece)
            if partial.size > most:
                raise TooLarge(f"the body is over {most} bytes")
            if not ended:
                return None
            self.partial = None
            if partial.size > LARGE:
                self.aside(self._open(partial))
                return None
            body = partial.join()
        if self.is_packed:
            if len(body) > SMALL_PACKED:
                partial = PartialBody()
                partial.add(body)
                self.aside(self._open(partial))
                return None
            body = self.unpack(body)
            self.exchange.take(len(body))
        return body

    def give_up(self, error: RequestError) -> None:
        """Refuse the body, maybe before its end."""
        self.partial = None
        self.stop()
        self.refuse(error)

    async def _open(self, partial: PartialBody) -> None:
        try:
            body = await run_aside(self.shared.threads, self._whole, partial)
            if self.is_packed:
                self.exchange.take(len(body))
        except RequestError as error:
            self.refuse(error)
        else:
            self.exchange.on_gone = None
            self.take(body)

    def _whole(self, partial: PartialBody) -> bytes:
        body = partial.join()
        return self.unpack(body) if self.is_packed else body
