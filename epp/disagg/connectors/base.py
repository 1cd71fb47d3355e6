"""What every connector is: two bodies made of one, and what says how they go together."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, Protocol

import msgspec
from xxhash import xxh3_64_intdigest

LEASE_PART = 0.9  #: in which a cache is read: its lease began before the prefill's answer came
BOOTSTRAP_PORT = 8998  #: of a prefill server, unless told otherwise; SGLang's and Mooncake's


class Mode(Enum):
    """When the decode leg may begin."""

    SEQUENTIAL = "sequential"  #: after the prefill leg was answered
    BOTH_AT_ONCE = "both-at-once"  #: with the prefill leg; the engines find each other


class Unsplittable(Exception):
    """The request must be computed on one endpoint; the one argument is a fixed word for why."""


class BadAnswer(Exception):
    """A prefill's answer cannot be given to a decode engine; the one argument is a fixed word."""


class Transfer(msgspec.Struct, frozen=True):
    """One attempt to hand one request's KV cache over. Never used for another attempt."""

    id: str  #: unique among all attempts of all requests
    path: str  #: of the request, without query
    host: str  #: of the prefill endpoint, without brackets
    bootstrap_port: int = BOOTSTRAP_PORT
    engine_id: str = ""  #: what `Connector.asks_engine_id` asks for; "" if it does not

    @property
    def room(self) -> int:
        """A number below 2^63 that stands for `id`."""
        return xxh3_64_intdigest(self.id.encode()) >> 1


class Connector(Protocol):
    """Makes the bodies of both legs. Has no state: one serves all requests."""

    name: ClassVar[str]
    mode: ClassVar[Mode]
    asks_engine_id: ClassVar[bool]
    """Whether the prefill engine's id must be asked first: ``GET http://host:bootstrap_port/query``
    answers ``{"RANK": {"engine_id": ...}}``."""

    def prefill_body(self, body: bytes, transfer: Transfer) -> bytes:
        """Return what the prefill endpoint is sent.

        Args:
            body: the client's, without what `strip` removes.
            transfer: this attempt.

        Raises:
            Unsplittable: the request must not be split.
        """
        ...

    def decode_body(self, body: bytes, answer: bytes, transfer: Transfer) -> bytes:
        """Return what the decode endpoint is sent.

        Args:
            body: the client's, the same that the prefill's was made of.
            answer: the prefill endpoint's, with status 200; b"" with `Mode.BOTH_AT_ONCE`.
            transfer: the attempt that was answered.

        Raises:
            BadAnswer: a decode engine might stop at it.
            Unsplittable: the request must not be split.
        """
        ...

    def abort(self, transfer: Transfer) -> tuple[str, bytes] | None:
        """Return path and body of what tells a decode endpoint to give up; None if nothing does.

        For a decode leg that has begun while its prefill leg has failed.
        """
        ...
