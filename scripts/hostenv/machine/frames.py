"""Reading the agent's frames from a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.agent import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostenv.machine.channel import Channel
    from hostenv.machine.silence import Silence


class FrameReader:
    """Takes what a channel delivers apart into frames. Bulk data passes through as it comes, uncopied."""

    def __init__(self, channel: Channel, silence: Silence) -> None:
        self._channel = channel
        self._silence = silence
        self._early = bytearray()

    def skip_past(self, marker: bytes, most: int) -> bool:
        """Drop all up to and including ``marker``; false where it is not in the first ``most`` bytes."""
        while marker not in self._early:
            piece = self._receive(wire.PIECE)
            if not piece or len(self._early) > most:
                return False
            self._early += piece
        del self._early[: self._early.index(marker) + len(marker)]
        return True

    def head(self) -> tuple[bytes, int] | None:
        """Return the next frame's kind and length; ``None`` where the agent has ended."""
        head = self.body(wire.HEADER.size)
        if head is None:
            return None
        kind, length = wire.HEADER.unpack(head)
        return kind, length

    def body(self, length: int) -> bytes | None:
        """Return the next ``length`` bytes; ``None`` where the agent ended before them."""
        body = b"".join(self.pieces(length))
        return body if len(body) == length else None

    def pieces(self, length: int) -> Iterator[bytes]:
        """Yield the next ``length`` bytes in pieces; fewer only where the agent ended before them."""
        while length:
            piece = self._next(min(length, wire.PIECE))
            if not piece:
                return
            length -= len(piece)
            yield piece

    def _next(self, limit: int) -> bytes:
        if not self._early:
            return self._receive(limit)
        piece = bytes(self._early[:limit])
        del self._early[:limit]
        return piece

    def _receive(self, limit: int) -> bytes:
        with self._silence.waiting():
            return self._channel.receive(limit)
