"""How a call ends: gRPC's statuses, and the errors that say so.

**Source:** gRPC, doc/statuscodes.md.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """gRPC's statuses."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallError(Exception):
    """A call does not go on."""


class Aborted(CallError):
    """It ends with this status, by our own will."""

    def __init__(self, code: Code, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details


class Gone(CallError):
    """It is over: nothing that is written arrives."""
