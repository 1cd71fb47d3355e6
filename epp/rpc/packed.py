"""Messages that a client has compressed: unpacked piece by piece, and never beyond what is taken.

**Source:** gRPC, doc/compression.md; RFC 1952 (gzip) and RFC 1950 (what gRPC calls deflate).
"""

from __future__ import annotations

import asyncio
import zlib

from epp.rpc.status import Aborted, Code

PIECE = 2**17  #: bytes unpacked in a row, which take less than a millisecond
BITS = {"gzip": 31, "deflate": 15}  #: of zlib's window, with the kind of its frame
PLAIN = ("", "identity")


class Packed(bytes):
    """A message as it came."""


async def unpack(data: bytes, encoding: str, most: int) -> bytes:
    """Return the message, of ``most`` bytes.

    Raises:
        Aborted: it is larger, or it is not what ``encoding`` says.
    """
    reader, pieces, size = zlib.decompressobj(BITS[encoding]), [], 0
    more = data  #: what follows it
    for at in range(0, len(data), PIECE):
        rest, piece = data[at : at + PIECE], b""
        while (rest or len(piece) == PIECE) and not reader.eof:
            piece = _next(reader, rest)
            rest = reader.unconsumed_tail
            pieces.append(piece)
            size += len(piece)
            if size > most:
                words = f"a message is larger than the {most} bytes that are taken, once unpacked"
                raise Aborted(Code.RESOURCE_EXHAUSTED, words)
            if len(piece) == PIECE:
                await asyncio.sleep(0)  # others have their turn
        if reader.eof:
            more = reader.unused_data + data[at + PIECE :]
            break
    if more or not reader.eof:
        raise Aborted(Code.INTERNAL, f"a message is not one of {encoding}")
    return b"".join(pieces)


def _next(reader: zlib._Decompress, data: bytes) -> bytes:
    try:
        return reader.decompress(data, PIECE)
    except zlib.error as error:
        raise Aborted(Code.INTERNAL, "a compressed message cannot be read") from error
