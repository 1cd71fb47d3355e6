"""What goes between the picker and its reading process: two lengths, a record, and bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
from msgspec import structs

from epp.formats import HEADERS, path_of
from epp.model import Arrival, InferenceRequest

LENGTHS = struct.Struct("<II")  #: of the record and of the bytes after it


class Asked(msgspec.Struct, frozen=True):
    """A body to be read; its bytes follow."""

    parsers: tuple[str, ...]  #: their types
    headers: dict[str, bytes]  #: those that parsers look at


class Read(msgspec.Struct, frozen=True):
    """What it says; the prompt's bytes follow, then those of a body that is to take its place."""

    request: InferenceRequest | None = None  #: without what the picker knows itself
    prompt_bytes: int = 0  #: how many of those that follow are the prompt's
    changed: bool = False  #: whether there are more
    refused: str = ""  #: why the client is to be told that it is wrong
    failed: str = ""  #: the type of an exception that no body should cause


_asked = msgspec.msgpack.Decoder(Asked).decode
_read = msgspec.msgpack.Decoder(Read).decode
_encode = msgspec.msgpack.Encoder().encode


def pack(record: Asked | Read, data: bytes) -> tuple[bytes, bytes]:
    """Return what is sent of a record and its bytes: a head, and the bytes as they are."""
    encoded = _encode(record)
    return LENGTHS.pack(len(encoded), len(data)) + encoded, data


def asked(parsers: Sequence[str], arrival: Arrival) -> Asked:
    """Return what a parser must know of an arrival beside its body."""
    told = {
        name: arrival.headers[name].encode("utf-8", "surrogatepass")
        for name in HEADERS
        if name in arrival.headers
    }
    return Asked(tuple(parsers), told)


def arrival_of(written: bytes, body: bytes) -> tuple[tuple[str, ...], Arrival]:
    """Return the parsers' types and the arrival that `asked` describes."""
    told = _asked(written)
    headers = {name: value.decode("utf-8", "surrogatepass") for name, value in told.headers.items()}
    return told.parsers, Arrival("", headers, body)


def answer(request: InferenceRequest, *, changed: bool = False) -> tuple[Read, bytes]:
    """Return what is told of a request that was read, its prompt, and its body if ``changed``."""
    bare = structs.replace(request, headers={}, body=b"", path="", prompt=b"")
    told = Read(bare, len(request.prompt), changed)
    return told, request.prompt + request.body if changed else request.prompt


def read_of(written: bytes) -> Read:
    """Return the record that the child wrote."""
    return _read(written)


def with_body(read: Read, data: bytes, arrival: Arrival) -> tuple[Arrival, bytes]:
    """Return the arrival with the body that the child left of it, and the prompt."""
    prompt = data[: read.prompt_bytes]
    if not read.changed:
        return arrival, prompt
    return structs.replace(arrival, body=data[read.prompt_bytes :]), prompt


def understood(read: InferenceRequest, prompt: bytes, arrival: Arrival, now: float) -> Arrival:
    """Return the arrival with its request, completed by what the picker knows itself."""
    request = structs.replace(
        read,
        id=arrival.id,
        headers=arrival.headers,
        body=arrival.body,
        path=path_of(arrival),
        prompt=prompt,
        arrived_at=now,
    )
    return structs.replace(arrival, understood=request)
