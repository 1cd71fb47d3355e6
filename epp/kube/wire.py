"""What the API sends for lists and watches: pages, and one JSON object a line."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import aiohttp
import msgspec

from epp.kube.copy import About
from epp.kube.errors import KubeError

MAX_LINE_BYTES = 16 * 1024 * 1024  #: etcd takes 1.5 MiB; JSON escapes may be a few times that

KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class Event(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class PageMetadata(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion", default="")
    next_page: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct):
    """One page of a list."""

    metadata: PageMetadata
    items: list[msgspec.Raw] | None = None


class _Bookmark(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")


class _Object(msgspec.Struct):
    metadata: _Bookmark


_pages = msgspec.json.Decoder(Page)
_events = msgspec.json.Decoder(Event)
_objects = msgspec.json.Decoder(_Object)


def decode_page(what: str, body: bytes) -> Page:
    """Decode the answer to ``what``; raises `KubeError` also if it tells no version to watch from."""
    try:
        page = _pages.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(what, error) from None
    if not page.metadata.version:
        raise KubeError(f"{what}: the list has no resourceVersion", reason="answer")
    return page


def decode_event(what: str, line: bytes) -> Event:
    """Decode one line; raises `KubeError`."""
    try:
        return _events.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(what, error) from None


def decode_about(what: str, item: msgspec.Raw) -> About:
    """Decode an object's metadata; a bookmark's name is ""."""
    try:
        found = _objects.decode(item).metadata
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(what, error) from None
    return About(found.name, found.namespace, found.uid, found.version)


async def lines(what: str, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the whole lines of a watch; what comes after the last line break is dropped.

    Raises:
        KubeError: a line is longer than any object.
    """
    _keep_alive(answer)
    rest = bytearray()
    async for piece in answer.content.iter_any():
        if b"\n" not in piece:
            rest += piece
        else:
            first, *whole, last = piece.split(b"\n")
            yield bytes(rest + first)
            for line in whole:
                yield line
            rest = bytearray(last)
        if len(rest) > MAX_LINE_BYTES:
            raise KubeError(f"{what}: a line has over {MAX_LINE_BYTES} bytes", reason="answer")


def _keep_alive(answer: aiohttp.ClientResponse) -> None:
    """Let the kernel notice a server that vanished without a word."""
    transport = answer.connection.transport if answer.connection is not None else None
    plug = transport.get_extra_info("socket") if transport is not None else None
    if plug is None:
        return
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # each system has its own
            plug.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _unreadable(what: str, error: Exception) -> KubeError:
    return KubeError(f"{what}: the answer cannot be read: {error}", reason="answer")
