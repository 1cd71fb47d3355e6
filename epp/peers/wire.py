"""News as bytes, and back. Pure.

A message holds some tens of kilobytes at most, unless one event is larger, so that none of them
takes long to make or to read. What is not known is passed over: the other picker may be newer.

Hot path: a request is two or three events; making them takes some 13 us, reading them 9. See
`wire_entry` for entries of access logs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from google.protobuf.message import DecodeError

from epp.model import EndpointId
from epp.peers import wire_entry
from epp.peers.news import Batch, Computed, Event, Logs, Over, Sent
from epp.peers.v1 import peers_pb2 as pb

VERSION = 1
FOLLOW = "/epp.peers.v1.Peers/Follow"
MOST_BYTES = 32_768  #: of a message's events, about
SLICE = 32  #: events that are read at a time, or
SLICE_BYTES = 16_384  #: of facts: what is learned of so many takes some 2 ms
LONGEST_INSTANCE = 64  #: characters; pickers tell those whom they ask which they have heard
MOST_FACTS = 256  #: of a request; it has one for each plugin at most
_EVENT_BYTES = 48  #: of an event without its facts, about
_MOST = 2**32 - 1  #: tokens
NO_LOGS = Logs()


class Asked(msgspec.Struct, frozen=True):
    """Who wants to hear of what."""

    instance: str  #: of the follower, drawn at its start
    pool: str
    heard: tuple[Heard, ...] = ()  #: whom it has heard before


class Heard(msgspec.Struct, frozen=True):
    """How far another picker was heard."""

    instance: str
    number: int  #: its last request
    now: bool = False  #: it is being heard


class News:
    """One message that came."""

    def __init__(self, message: pb.News) -> None:
        self.instance = message.instance  #: of the teller
        self.now = message.now  #: on its clock
        self.past_told = message.past_told  #: nothing is left of what was before we came
        self.logs = Logs(message.logs, message.logs_lost)  #: open to the teller
        self._names = list(message.names)
        self._events = message.events

    def __len__(self) -> int:
        """Events, also those of unknown kinds."""
        return len(self._events)

    def slices(self) -> Iterator[tuple[Event, ...]]:
        """Yield its events, some at a time; those of unknown kinds take their time, too.

        Raises:
            ValueError: one of them cannot be.
        """
        found: list[Event] = []
        read = size = 0
        for each in self._events:
            read += 1
            if (event := self._event(each)) is not None:
                found.append(event)
                if isinstance(event, Sent):
                    size += sum(map(len, event.facts.values()))
            if read >= SLICE or size >= SLICE_BYTES:
                yield tuple(found)
                found, read, size = [], 0, 0
        if found:
            yield tuple(found)

    def _event(self, event: pb.Event) -> Event | None:
        kind = event.WhichOneof("what")
        if kind == "sent":
            return self._sent(event.sent)
        if kind == "over":
            return _over(event.over)
        if kind == "logged":
            return wire_entry.read(event.logged, self._name)
        return None if kind is None else Computed(event.computed)

    def _sent(self, sent: pb.Sent) -> Sent:
        name = self._name
        if len(sent.facts) > MOST_FACTS:
            raise ValueError(f"{len(sent.facts)} facts of one request")
        return Sent(
            number=sent.number,
            at=_finite(sent.at),
            endpoint=EndpointId(name(sent.endpoint)),
            prompt_tokens=sent.prompt_tokens,
            uncached=sent.uncached,
            prefill=EndpointId(name(sent.prefill) if sent.HasField("prefill") else ""),
            prefill_uncached=sent.prefill_uncached,
            output=sent.output,
            streamed=sent.streamed,
            over=sent.over,
            facts={name(fact.plugin): fact.told for fact in sent.facts},
        )

    def _name(self, index: int) -> str:
        try:
            return self._names[index]
        except IndexError:
            raise ValueError(f"name {index} of {len(self._names)}") from None


def pack_request(asked: Asked) -> bytes:
    """Return a request to follow as bytes."""
    return pb.FollowRequest(
        version=VERSION,
        instance=asked.instance,
        pool=asked.pool,
        heard=[pb.Heard(instance=h.instance, number=h.number, now=h.now) for h in asked.heard],
    ).SerializeToString()


def unpack_request(data: bytes) -> Asked:
    """Read a request to follow.

    Raises:
        ValueError: it is none.
    """
    try:
        request = pb.FollowRequest.FromString(data)
    except DecodeError as error:
        raise ValueError("no request to follow") from error
    if not _is_instance(request.instance):
        raise ValueError("a request to follow without an instance")
    heard = tuple(Heard(each.instance, each.number, each.now) for each in request.heard)
    return Asked(request.instance, request.pool, heard)


def pack(
    instance: str, batch: Batch, logs: Logs = NO_LOGS, *, past_told: bool = False
) -> Iterator[bytes]:
    """Yield the messages that tell a batch, one at least, without any event if it has none.

    The last of them says that all of the past is told, if it is.
    """
    message = _Message(instance, batch.now, logs)
    for event in batch.events:
        if message.size >= MOST_BYTES:
            yield message.data()
            message = _Message(instance, batch.now, logs)
        message.add(event)
    yield message.data(past_told=past_told)


def unpack(data: bytes) -> News:
    """Read a message.

    Raises:
        ValueError: it is none.
    """
    try:
        message = pb.News.FromString(data)
    except DecodeError as error:
        raise ValueError("no news") from error
    if not _is_instance(message.instance):
        raise ValueError("news without an instance")
    _finite(message.now)
    return News(message)


class _Message:
    """One that is being made."""

    def __init__(self, instance: str, now: float, logs: Logs) -> None:
        self.size = 0  #: bytes, about
        self._news = pb.News(
            version=VERSION, instance=instance, now=now, logs=logs.open, logs_lost=logs.lost
        )
        self._names: dict[str, int] = {}

    def data(self, *, past_told: bool = False) -> bytes:
        """Return it as bytes."""
        self._news.past_told = past_told
        self._news.names.extend(self._names)
        return self._news.SerializeToString()

    def add(self, event: Event) -> None:
        """Add an event."""
        made = self._news.events.add()
        self.size += _EVENT_BYTES
        if isinstance(event, Sent):
            self._sent(made.sent, event)
        elif isinstance(event, Computed):
            made.computed = event.number
        elif isinstance(event, Over):
            _set_over(made.over, event)
        else:
            wire_entry.write(made.logged, event, self._name)
            self.size += wire_entry.MORE_BYTES

    def _sent(self, made: pb.Sent, sent: Sent) -> None:
        made.number = sent.number
        made.at = sent.at
        made.endpoint = self._name(sent.endpoint)
        made.prompt_tokens = _tokens(sent.prompt_tokens)
        made.uncached = _tokens(sent.uncached)
        if sent.prefill:
            made.prefill = self._name(sent.prefill)
            made.prefill_uncached = _tokens(sent.prefill_uncached)
        made.output = _tokens(sent.output)
        made.streamed = sent.streamed
        made.over = sent.over
        for plugin, told in sent.facts.items():
            made.facts.add(plugin=self._name(plugin), told=told)
            self.size += len(told)

    def _name(self, name: str) -> int:
        index = self._names.setdefault(name, len(self._names))
        if index == len(self._names) - 1:
            self.size += len(name)
        return index


def _set_over(made: pb.Over, over: Over) -> None:
    made.number = over.number
    if over.first_seconds is not None:
        made.first_seconds = over.first_seconds
    made.seconds = over.seconds
    made.completed = over.completed
    if over.prompt_tokens is not None:
        made.prompt_tokens = _tokens(over.prompt_tokens)
    if over.cached_tokens is not None:
        made.cached_tokens = _tokens(over.cached_tokens)


def _over(over: pb.Over) -> Over:
    return Over(
        number=over.number,
        first_seconds=_finite(over.first_seconds) if over.HasField("first_seconds") else None,
        seconds=_finite(over.seconds),
        completed=over.completed,
        prompt_tokens=over.prompt_tokens if over.HasField("prompt_tokens") else None,
        cached_tokens=over.cached_tokens if over.HasField("cached_tokens") else None,
    )


def _tokens(number: int) -> int:
    """As many as a message can hold."""
    return number if 0 <= number <= _MOST else (0 if number < 0 else _MOST)


def _finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is no time")
    return seconds


def _is_instance(told: str) -> bool:
    """Whether it can be a picker's: it is logged, and told to others."""
    return 0 < len(told) <= LONGEST_INSTANCE and told.isascii() and told.isprintable()


def heartbeat(instance: str, now: float, logs: Logs = NO_LOGS) -> bytes:
    """Return a message that says no more than that its teller lives, and what it hears."""
    return next(pack(instance, Batch(now, ()), logs))
