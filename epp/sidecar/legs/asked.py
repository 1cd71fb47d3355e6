"""One request as both legs need it, and why a leg did not do; nouns only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Asked(msgspec.Struct, frozen=True):
    """What the client wants, without what it may not say."""

    path: str  #: with its query, as written
    head: Sequence[tuple[str, str]]  #: that goes on to engines
    body: bytes

    @property
    def plain_path(self) -> str:
        """The path without its query."""
        return self.path.partition("?")[0]


class Prefilled(msgspec.Struct, frozen=True):
    """A prompt that was computed elsewhere."""

    body: bytes  #: for the engine here; of this request and no other
    at: float  #: seconds on the event loop's clock, when its lease began at the latest


class Failed(Exception):
    """A leg did not do; ``reason`` is a fixed word, for metrics."""

    def __init__(self, reason: str, *, elsewhere: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.elsewhere = elsewhere  #: whether another prefill endpoint may do better


class Refused(Exception):
    """The sidecar answers itself."""

    def __init__(self, status: int, message: str, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason  #: a fixed word, for metrics
