"""Which requests are copied: whole conversations of allowed tenants, the same ones on every mirror.

A sample of single requests would tear conversations apart, and the shadow pool would find less in
its caches than the real one does.

**Source:** BLAKE2b with a key, RFC 7693.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from epp.headers import CONTROL, DEFAULT_FLOW, FAIRNESS_ID, NEVER_SET, SESSION_ID, first
from epp.traffic.mirror.options import EVERY_TENANT

MIRRORED = "x-epp-mirrored"  #: on copies, so that no copy is copied
MOST_BYTES = 2**24  #: of a compressed body that are looked at
_STEPS = 2**64
_EITHER = zlib.MAX_WBITS | 32  #: gzip or zlib, as the first bytes say

Verdict = Literal["copy", "tenant", "sample", "loop"]

#: Credentials stay where they were sent; lengths and hops are the next connection's own.
_WITHHELD = CONTROL | NEVER_SET | {"cookie", "accept-encoding", "expect", "forwarded"}
_WITHHELD_SUFFIXES = ("authorization", "api-key", "-token", "-secret")
_WITHHELD_PREFIXES = ("x-envoy-", "x-forwarded-", ":")


class Body(msgspec.Struct):
    """The parts of a request that say which conversation it is of."""

    messages: list[Any] = []
    prompt: Any = None
    input: Any = None  #: of the Responses API: text, or messages and other items
    conversation: Any = None  #: of the Responses API: an id, or an object with one


_decoder = msgspec.json.Decoder(Body)


class Sampling:
    """Decides by tenant, then by the conversation's keyed hash.

    Args:
        tenants: who may be copied.
        share: of conversations, 0 to 1.
        key: up to 64 bytes; mirrors that share it choose the same conversations.
    """

    def __init__(self, tenants: frozenset[str], share: float, key: bytes) -> None:
        self._tenants = tenants
        self._below = int(share * _STEPS)
        self._key = key

    def judge(self, headers: Mapping[str, str], body: bytes) -> Verdict:
        """Return whether a request is copied, else why not; names of headers in lower case."""
        if MIRRORED in headers:
            return "loop"
        tenant = first(headers, FAIRNESS_ID) or DEFAULT_FLOW
        if EVERY_TENANT not in self._tenants and tenant not in self._tenants:
            return "tenant"
        said = f"{tenant}\0".encode() + conversation(headers, body)
        number = int.from_bytes(blake2b(said, key=self._key, digest_size=8).digest(), "big")
        return "copy" if number < self._below else "sample"


def conversation(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return what all requests of a conversation have in common.

    The client's session id; without one the server's id of the conversation, or the first message
    of its user, which later turns send again; without messages the prompt. What cannot be read is
    a conversation of its own.
    """
    if session := headers.get(SESSION_ID):
        return session.encode("utf-8", "surrogatepass")
    try:
        read = _decoder.decode(_plain(headers, body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    if read.conversation is not None:
        return msgspec.json.encode(read.conversation)
    items = read.input if isinstance(read.input, list) else []
    for message in (*read.messages, *items):
        if isinstance(message, dict) and message.get("role") == "user":
            return msgspec.json.encode(_said(message.get("content")))
    asked = read.prompt if read.prompt is not None else read.input
    return msgspec.json.encode(asked) if asked is not None else body


def _plain(headers: Mapping[str, str], body: bytes) -> bytes:
    """The body before it was compressed; as it is, if that cannot be undone."""
    if headers.get("content-encoding", "").strip().lower() not in ("gzip", "x-gzip", "deflate"):
        return body
    try:
        return zlib.decompressobj(_EITHER).decompress(body, MOST_BYTES)
    except zlib.error:
        return body


def _said(content: Any) -> Any:
    """What a message says, however it is put: later turns move marks of what is to be cached."""
    return list(_parts(content)) if isinstance(content, list) else [content]


def _parts(content: Iterable[Any]) -> Iterable[Any]:
    for part in content:
        if not isinstance(part, dict):
            yield part
        elif part.get("type") in ("text", "input_text") and "text" in part:
            yield part["text"]
        else:
            yield {name: value for name, value in part.items() if name != "cache_control"}


def forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a copy: not the picker's choice, no credentials, and marked."""
    kept = {
        name: value
        for name, value in headers.items()
        if name not in _WITHHELD
        and not name.startswith(_WITHHELD_PREFIXES)
        and not name.endswith(_WITHHELD_SUFFIXES)
    }
    return kept | {MIRRORED: "1"}
