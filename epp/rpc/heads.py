"""Header blocks of calls: read with ``hpack``, written by hand, since ours never differ.

A gateway's calls have the same head, so what a block says is remembered until a block changes the
table that blocks refer to: reading one costs 50 us, remembering 0.2.

**Source:** RFC 7541; gRPC, doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import hpack
import msgspec

from epp.rpc.frames import END_HEADERS, END_STREAM, HEADERS, Broken, Fault, frame
from epp.rpc.status import Code

MOST_BYTES = 16_384  #: of a head's names and values, as gRPC's own servers allow
MOST_DETAILS = 1_024  #: characters of an error's words
REMEMBERED = 256  #: blocks
MOST_REMEMBERED = 4_096  #: bytes of a block, and of what it says

_STATUS_200 = b"\x88"  #: by the static table
_CONTENT_TYPE = b"\x0f\x10"  #: a literal that no table keeps, its name from the static table
_LITERAL = b"\x00"  #: the same, with a name of its own
_RESIZES = re.compile(rb"([\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}")  #: RFC 7541, 4.2: two
_GRPC = re.compile(r"application/grpc([+;].*)?")
_NEEDED = {":method", ":scheme", ":path"}
_PSEUDO = _NEEDED | {":authority"}
_HOP_BY_HOP = {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"}
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class Head(msgspec.Struct, frozen=True, gc=False):
    """What a client says as it opens a call."""

    path: str  #: ``/package.Service/Method``
    is_grpc: bool  #: a POST of gRPC's content type
    seconds: float | None  #: in which the call must be over; None: no bound
    metadata: tuple[tuple[str, str], ...]  #: names are lower-case; no pseudo-headers
    encoding: str  #: how messages are compressed that are
    tells: bool  #: it says which compressions it knows, or uses one: it is told ours
    sound: bool  #: HTTP/2 allows such a head


class Heads:
    """Reads the header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=MOST_BYTES)
        self._known: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """Understand a block.

        Raises:
            Broken: it cannot be read, and no later one could.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        table = self._decoder.header_table
        size, newest = table.maxsize, _newest(table.dynamic_entries)
        count = len(table.dynamic_entries)
        if _RESIZES.match(block):
            raise Broken(Fault.COMPRESSION_ERROR, "the headers' table is resized again and again")
        try:
            pairs = self._decoder.decode(block, raw=True)
        except (hpack.HPACKError, ValueError, IndexError) as error:
            why = f"headers cannot be read: {type(error).__name__}"
            raise Broken(Fault.COMPRESSION_ERROR, why) from error
        head = _head(tuple((_text(pair[0]), _text(pair[1])) for pair in pairs))
        entries = table.dynamic_entries
        if (table.maxsize, len(entries)) != (size, count) or _newest(entries) is not newest:
            self._known.clear()
        elif len(self._known) < REMEMBERED and _size(block, head) <= MOST_REMEMBERED:
            self._known[block] = head
        return head


def _size(block: bytes, head: Head) -> int:
    return len(block) + sum(len(name) + len(value) for name, value in head.metadata)


def _newest(entries: deque[Any]) -> Any:
    return entries[0] if entries else None


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else bytes(value).decode("latin-1")


def _head(pairs: tuple[tuple[str, str], ...]) -> Head:
    told = dict(pairs)
    kind = told.get("content-type", "")
    return Head(
        path=told.get(":path", ""),
        is_grpc=told.get(":method") == "POST" and _GRPC.fullmatch(kind) is not None,
        seconds=_seconds(told.get("grpc-timeout", "")),
        metadata=tuple(pair for pair in pairs if not pair[0].startswith(":")),
        encoding=told.get("grpc-encoding", ""),
        tells="grpc-accept-encoding" in told or "grpc-encoding" in told,
        sound=_sound(pairs, told),
    )


def _sound(pairs: tuple[tuple[str, str], ...], told: dict[str, str]) -> bool:
    """Whether names are lower-case, and pseudo-headers first, whole, and each there once."""
    pseudo = [name for name, _ in pairs if name.startswith(":")]
    return (
        [name for name, _ in pairs[: len(pseudo)]] == pseudo
        and len(set(pseudo)) == len(pseudo)
        and _NEEDED <= set(pseudo) <= _PSEUDO
        and told[":path"] != ""
        and told.get("te", "trailers") == "trailers"
        and not _HOP_BY_HOP & told.keys()
        and all(name and name == name.lower() for name in told)
    )


def _seconds(timeout: str) -> float | None:
    found = _TIMEOUT.fullmatch(timeout)
    return None if found is None else int(found[1]) * _UNITS[found[2]]


# --- answers -----------------------------------------------------------------------


def answer_head(stream: int, *, tells: bool) -> bytes:
    """Begin the answer of a call; ``tells`` which compressions we know."""
    return frame(HEADERS, END_HEADERS, stream, _ANSWER + _ACCEPTED if tells else _ANSWER)


def end(stream: int, code: Code, details: str = "", *, begun: bool, tells: bool = False) -> bytes:
    """End the answer of a call, whether it has ``begun`` or not; for ``tells`` see `answer_head`."""
    block = _ENDS_OK if code is Code.OK else b"".join(_status(code, details))
    if not begun:
        block = _ANSWER + (_ACCEPTED if tells else b"") + block
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, block)


def not_grpc(stream: int) -> bytes:
    """Answer what is no call of gRPC: HTTP status 415."""
    status = b"\x08" + _sized(b"415")  # a literal that no table keeps, its name ":status"
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, status)


def _status(code: Code, details: str) -> Iterator[bytes]:
    yield _LITERAL + _sized(b"grpc-status") + _sized(str(int(code)).encode())
    if details:
        said = quote(details[:MOST_DETAILS], safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
        yield _LITERAL + _sized(b"grpc-message") + _sized(said.encode())


def _sized(text: bytes) -> bytes:
    """Return a string of HPACK, not compressed."""
    return bytes(hpack.hpack.encode_integer(len(text), 7)) + text


_ANSWER = _STATUS_200 + _CONTENT_TYPE + _sized(b"application/grpc")
_ACCEPTED = _LITERAL + _sized(b"grpc-accept-encoding") + _sized(b"identity,deflate,gzip")
_ENDS_OK = b"".join(_status(Code.OK, ""))
