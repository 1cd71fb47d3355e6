"""What a request's head says about its way, and what of it goes on; pure.

**Source:** the headers that llm-d's endpoint picker sends and its sidecar reads and removes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from epp import headers
from epp.model import join_host_port

MOST_ENDPOINTS = 16  #: named in one header; further ones are not looked at

_PORT = re.compile("[0-9]{1,5}")

#: Not passed on: about this connection alone, or about our own part. The rank is for the engine.
_KEPT_BACK = headers.CONTROL - {headers.RANK} | headers.NEVER_SET


class Address(msgspec.Struct, frozen=True):
    """Where a server listens."""

    host: str  #: without brackets
    port: int

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)


class Way(msgspec.Struct, frozen=True):
    """What the picker chose."""

    prefillers: tuple[Address, ...] = ()  #: in order of preference, each once
    rank_port: int = 0  #: of the data-parallel rank's sidecar; 0 if none is named


def read(pairs: Iterable[tuple[str, str]]) -> Way:
    """Read the headers; repeated ones and lists with commas are one list.

    What is no ``host:port`` is skipped: a request without a prefill endpoint is computed here.
    """
    named: dict[str, list[str]] = {}
    for name, value in pairs:
        named.setdefault(name.lower(), []).extend(value.split(","))
    ranks = _addresses(named.get(headers.DATA_PARALLEL, ()))
    return Way(
        _addresses(named.get(headers.PREFILLER, ())),
        ranks[0].port if ranks else 0,
    )


def onward(pairs: Iterable[tuple[str, str]], request_id: str) -> list[tuple[str, str]]:
    """Return the headers that go on to an engine, with the request's id."""
    pairs = list(pairs)
    dropped = _KEPT_BACK | {headers.REQUEST_ID, "expect"} | _listed(pairs)
    kept = [(name, value) for name, value in pairs if name.lower() not in dropped]
    return [*kept, (headers.REQUEST_ID, request_id)]


def backward(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers of an engine's answer that go on to the client."""
    pairs = list(pairs)
    dropped = headers.NEVER_SET - {"content-length"} | _listed(pairs)
    return [(name, value) for name, value in pairs if name.lower() not in dropped]


def request_id_of(head: Mapping[str, str]) -> str:
    """Return the client's id of a request; "" if it has none."""
    return head.get(headers.REQUEST_ID, "").strip()


def _listed(pairs: Iterable[tuple[str, str]]) -> set[str]:
    """Headers that ``Connection`` says are about this connection (RFC 9110, 7.6.1)."""
    told = (value for name, value in pairs if name.lower() == "connection")
    return {name.strip().lower() for value in told for name in value.split(",")}


def _addresses(values: Iterable[str]) -> tuple[Address, ...]:
    found: dict[Address, None] = {}
    for value in values:
        address = parse(value)
        if address is not None and len(found) < MOST_ENDPOINTS:
            found[address] = None
    return tuple(found)


def parse(text: str) -> Address | None:
    """Read ``host:port`` or ``[v6]:port``; None if it is neither."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not _PORT.fullmatch(port) or not 0 < int(port) < 65_536:
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    allowed = all(letter.isalnum() or letter in ".-_:%" for letter in host)
    return Address(host, int(port)) if host and host.isascii() and allowed else None
