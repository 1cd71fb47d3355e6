"""One message's events, as many at a time as take a millisecond or two to read; pure.

To decode a prompt of 64k tokens at once takes 5 ms, and hits that are told again may be many times that.
So a large payload is walked over value by value, and only parts of it are decoded. A large event is
several that together tell the same.

**Source:** the MessagePack specification.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from epp.collect.parse.kv_events import (
    MAX_BLOCK_TOKENS,
    NAMES,
    UnreadableError,
    event_of,
    parse,
)
from epp.prefix.exact.events import Event

SMALL = 65_536  #: bytes that are decoded at once
MOST_EVENTS = 256  #: that are read at a time
MOST_TOKENS = 4096  #: of a part of a large event, as far as blocks allow it
MOST_STEPS = 16_384  #: values that are walked over at a time, a millisecond

Read = Sequence[Event | None]

_decode = msgspec.msgpack.Decoder().decode
_LISTS = ("block_hashes", "token_ids", "extra_keys")

#: Bytes of a value by its first byte, if that tells.
_SIZES = (
    *[1] * 0x80, *[0] * 0x20, *range(1, 0x21), 1, 0, 1, 1, *[0] * 6, 5, 9, 2, 3, 5, 9, 2, 3, 5, 9,
    3, 4, 6, 10, 18, *[0] * 7, *[1] * 0x20,
)  # fmt: skip
#: Bytes that tell the length of what begins with this one: text or bytes, an extension, a list.
_LENGTHS = {
    0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4,
    0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4,
}  # fmt: skip
_EXTENSIONS, _LISTED, _NAMED = (0xC7, 0xC8, 0xC9), (0xDC, 0xDD), (0xDE, 0xDF)


def each(payload: bytes) -> Iterator[Read]:
    """Yield one message's events, read as they are asked for; None is one that cannot be used.

    Raises:
        UnreadableError: it is not msgpack, or not a batch, or its rest is not.
    """
    try:
        yield from _small(payload) if len(payload) <= SMALL else _large(Walk(payload))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError) as error:
        raise UnreadableError(f"{len(payload)} bytes are no batch of events: {error}") from error


def _small(payload: bytes) -> Iterator[Read]:
    batch = parse(payload)
    every = [*batch.events, *[None] * sum(batch.unread.values())]
    for at in range(0, len(every), MOST_EVENTS):
        yield every[at : at + MOST_EVENTS]


def _large(walk: Walk) -> Iterator[Read]:
    walk.enter()
    yield from walk.past(1)
    read, since = list[Event | None](), walk.at
    for _ in range(walk.enter()):
        start = walk.at
        yield from walk.past(1)
        if walk.at - start > SMALL:
            yield read
            read = []
            yield from parts(Walk(walk.data, start))
        else:
            read.append(event_of(_decode(walk.data[start : walk.at])))
        if len(read) >= MOST_EVENTS or walk.at - since > SMALL // 2:
            yield read
            read, since = [], walk.at
    yield read
    if walk.at > len(walk.data):
        raise IndexError("it ends too early")


def parts(walk: Walk) -> Iterator[Read]:
    """Yield a large event as several."""
    if not (walk.is_array or walk.is_map):
        yield [None]
        return
    spans = yield from _fields(walk)
    lists = {name: _List(walk.data, spans[name][0]) for name in _LISTS if name in spans}
    lists = {name: each for name, each in lists.items() if each.is_list}
    fields: dict[str, Any] = {
        name: _decode(walk.data[start:end])
        for name, (start, end) in spans.items()
        if name not in lists and end - start <= SMALL
    }
    if "block_hashes" not in lists:
        yield [event_of(fields)]
        return
    if fields.get("type") != "BlockStored":
        lists = {"block_hashes": lists["block_hashes"]}
    yield from _blocks(fields, lists)


def _blocks(fields: dict[str, Any], lists: Mapping[str, _List]) -> Iterator[Read]:
    """Yield the event that ``fields`` and ``lists`` make, some blocks at a time."""
    hashes, tokens, before = lists["block_hashes"], lists.get("token_ids"), None
    size = fields.get("block_size") if tokens is not None and tokens.left else 0
    if not isinstance(size, int) or not 0 <= size <= MAX_BLOCK_TOKENS:
        yield [None]
        return
    if tokens is not None and tokens.left != hashes.left * size:
        yield [event_of({**fields, "block_hashes": [], "token_ids": tokens.take(1)})]
        return
    step = min(max(MOST_TOKENS // max(size, 1), 1), MOST_EVENTS)
    while hashes.left:
        told = {
            name: each.take(step * size if each is tokens else step) for name, each in lists.items()
        }
        if own := told.get("extra_keys"):
            before, own[0] = own[-1], _begun(own[0], before)
        yield [event_of({**fields, **told})]
        fields["parent_block_hash"] = told["block_hashes"][-1]


def _fields(walk: Walk) -> Generator[Read, None, dict[str, tuple[int, int]]]:
    """Return where an event's fields begin and end."""
    spans: dict[str, tuple[int, int]] = {}
    named, count = walk.is_map, walk.enter()
    names: Sequence[str] = ("type",)
    for number in range(count // 2 if named else count):
        name = walk.value() if named else next(iter(names[number:]), "")
        start = walk.at
        yield from walk.past(1)
        if isinstance(name, str):
            spans[name] = (start, walk.at)
        if not named and not number:
            tag = _decode(walk.data[start : min(walk.at, start + SMALL)])
            names = ("type", *NAMES.get(str(tag), ()))
    return spans


def _begun(keys: Any, before: Any) -> Any:
    """Return a block's keys without the media that the block before had, too."""
    if not isinstance(keys, list) or not isinstance(before, list):
        return keys
    return [key for key in keys if not (isinstance(key, str) and key in before)]


class _List:
    """The values of a list that are still to be taken; none of what is no list."""

    def __init__(self, data: bytes, at: int) -> None:
        self._walk = Walk(data, at)
        self.is_list = self._walk.is_array
        self.left = self._walk.enter() if self.is_list else 0

    def take(self, count: int) -> list[Any]:
        """Return the next ``count`` values, or as many as there are."""
        count = min(count, self.left)
        self.left -= count
        return self._walk.values(count)


class Walk:
    """A place in msgpack, which goes on from value to value."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def is_array(self) -> bool:
        """Whether an array begins here."""
        return self.data[self.at] & 0xF0 == 0x90 or self.data[self.at] in _LISTED

    @property
    def is_map(self) -> bool:
        """Whether a map begins here."""
        return self.data[self.at] & 0xF0 == 0x80 or self.data[self.at] in _NAMED

    def enter(self) -> int:
        """Go on to the first value of an array or a map; return how many it has, names included.

        Raises:
            IndexError: neither begins here.
        """
        if not (self.is_array or self.is_map):
            raise IndexError(f"byte {self.at} begins no list")
        self.at, count = _entered(self.data, self.at)
        return count

    def past(self, count: int) -> Iterator[Read]:
        """Walk over so many values; yield nothing whenever that took a while."""
        while count := self._go(count, MOST_STEPS):
            yield ()

    def value(self) -> Any:
        """Return the value that begins here, and walk over it."""
        return self.values(1)[0]

    def values(self, count: int) -> list[Any]:
        """Return the next values, and walk over them."""
        start, left = self.at, count
        while left := self._go(left, MOST_STEPS):
            pass
        data = b"\xdd" + count.to_bytes(4, "big") + self.data[start : self.at]
        decoded: list[Any] = _decode(data)
        return decoded

    def _go(self, count: int, most: int) -> int:
        """Walk over up to ``most`` values; return how many of ``count`` are left."""
        data, at = self.data, self.at
        while count and most > 0:
            left = steps = min(count, most)
            while left and (size := _SIZES[data[at]]):
                at += size
                left -= 1
            count -= steps - left
            most -= steps - left
            if left:
                at, more = _entered(data, at)
                count, most = count + more - 1, most - 1
        self.at = at
        return count


def _entered(data: bytes, at: int) -> tuple[int, int]:
    """Return where what begins at ``at`` goes on, and how many values it has there.

    Raises:
        IndexError: nothing begins so.
    """
    first = data[at]
    if first & 0xE0 == 0x80:  # a short map or array
        return at + 1, (first & 0x0F) * (1 if first & 0x10 else 2)
    width = _LENGTHS.get(first)
    if width is None:
        raise IndexError(f"byte {at} begins no value")
    begins = at + 1 + width
    length = int.from_bytes(data[at + 1 : begins], "big")
    if first in _LISTED or first in _NAMED:
        return begins, length * (2 if first in _NAMED else 1)
    return begins + length + (first in _EXTENSIONS), 0
