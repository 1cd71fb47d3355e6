"""What all tellers of token ids have in common."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from epp.model import Endpoint, InferenceRequest, Tokens

FORMATS = ("completions", "chat")  #: of requests whose prompts can be told


class NoTokens(Exception):
    """Nobody told; ``reason`` is a fixed word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Backend(Protocol):
    """A teller. It never keeps the event loop waiting."""

    async def tokens(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Tokens:
        """Return the request's tokens.

        Raises:
            NoTokens: and why.
        """
        ...

    async def close(self) -> None:
        """Let go of what it holds."""
        ...


def pack(ids: Sequence[int]) -> bytes:
    """Return token ids as four bytes each.

    Raises:
        NoTokens: one of them is none.
    """
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error:
        raise NoTokens("unreadable") from None
