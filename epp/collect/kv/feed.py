"""One engine's messages into the index, a bounded slice of work at a time; no I/O.

What one message tells may take longer than a turn of the event loop may: the blocks of a prompt of
128k tokens take 13 ms to take in. So a message is cut into slices, and the caller says when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from epp.collect.parse import kv_events, kv_slices
from epp.collect.parse.kv_messages import Message
from epp.model import EndpointId
from epp.prefix.blocks import BYTES_PER_TOKEN
from epp.prefix.exact.events import Cleared, Event, Removed, Stored
from epp.prefix.exact.index import ExactIndex
from epp.prefix.feed.engine import Engine
from epp.prefix.feed.sequence import Apply, Ask, Reset, Step

SLICE = 256  #: blocks of ours taken in at a time, 0.4 ms
MOST_ADAPTERS = 4096  #: that are remembered
BEGUN_SECONDS = 30.0  #: a restart that was noticed twice within this is one


def _nobody(_endpoint_id: EndpointId, _rank: int) -> None:
    """Tell nobody."""


class Feed:
    """Of one engine.

    Args:
        engine: what is known of its feed.
        index: takes its blocks.
        tell: is told whenever the index took some, of which endpoint and rank.
    """

    def __init__(
        self, engine: Engine, index: ExactIndex, tell: Callable[[EndpointId, int], None] = _nobody
    ) -> None:
        self.engine = engine
        self._index = index
        self._tell = tell
        self._work: deque[Reset | Apply] = deque()
        self._events: Iterator[kv_slices.Read] | None = None  # of the message in work
        self._slices: deque[tuple[Event, int]] = deque()  # of those read, with their blocks of ours
        self._asked: int | None = None
        self._heard: tuple[int, float] | None = None  # the newest message: number, when sent
        self._probe: int | None = None  # number of a message that only the same process has
        self._was_connected = False
        self._begun_at = 0.0
        self._restarts = 0
        index.join(engine.endpoint_id, engine.rank)

    @property
    def busy(self) -> bool:
        """Whether there is work that `advance` would do."""
        return bool(self._work or self._slices or self._events or self._is_behind)

    def connected(self, now: float) -> None:
        """Note that messages are heard from now on.

        After a break the newest message known is asked for too: if the engine has none of that
        number, or another one, it is another process.
        """
        self.engine.confidence.connected = True
        self._take(self.engine.sequence.joined(now), now)
        if self._was_connected and self._asked:
            self._asked -= 1
            self._probe = self._asked
        self._was_connected = True

    def disconnected(self) -> None:
        """Note that no messages come any more."""
        self.engine.confidence.connected = False

    def heard(self, message: Message, now: float, wall: float) -> None:
        """Note a published message; ``wall`` is seconds since 1970."""
        at = kv_events.sent_at(message.payload)
        self._heard = (message.number, at)
        self.engine.lag = wall - at if at else None
        self.engine.confidence.told(now)
        sequence = self.engine.sequence
        self._take(sequence.live(message.number, message.payload, at=at, now=now), now)

    def answered(self, message: Message, now: float) -> None:
        """Note a message that was asked for, or the end of them."""
        sequence = self.engine.sequence
        if self._is_other(message):
            self._take(sequence.restarted(None, now), now)
            return
        if message.ends:
            self._take(sequence.replay_ended(now), now)
            return
        self.engine.confidence.told(now)
        at = kv_events.sent_at(message.payload)
        self._take(sequence.replayed(message.number, message.payload, at=at, now=now), now)

    def restarted(self, now: float) -> None:
        """Note that the engine's process is another one, unless its messages showed that before."""
        if now - self._begun_at >= BEGUN_SECONDS:
            self._take(self.engine.sequence.restarted(None, now), now)

    def tick(self, now: float) -> None:
        """Let time pass."""
        engine = self.engine
        self._take(engine.sequence.tick(now), now)
        engine.confidence.refused = self._index.refused(engine.endpoint_id, rank=engine.rank) > 0
        if engine.confidence.wants_missed(now):
            self._take(engine.sequence.overdue(now), now)
        if engine.confidence.wants_anew(now):
            self._take(engine.sequence.doubt(now), now)

    @property
    def asks(self) -> bool:
        """Whether old messages are to be asked for, see `question`."""
        return self._asked is not None

    def queued(self, now: float) -> None:
        """Note that they could not be asked for yet."""
        self.engine.sequence.queued(now)

    def question(self) -> int | None:
        """Return from which number on old messages are to be asked for, once for each question."""
        asked, self._asked = self._asked, None
        return asked

    def advance(self) -> None:
        """Do a slice of the work there is."""
        engine = self.engine
        if self._is_behind:
            self._index.resume(engine.endpoint_id, rank=engine.rank)
            self._tell(engine.endpoint_id, engine.rank)
        elif self._slices:
            self._index.apply(engine.endpoint_id, self._next_slices(), rank=engine.rank)
            self._tell(engine.endpoint_id, engine.rank)
        elif self._events:
            self._read_on(self._events)
        elif isinstance(step := self._work.popleft(), Reset):
            self._index.join(engine.endpoint_id, engine.rank)
        else:
            engine.messages += 1
            engine.bytes += len(step.payload)
            self._events = kv_slices.each(step.payload)
            self._read_on(self._events)

    @property
    def _is_behind(self) -> bool:
        return self._index.is_behind(self.engine.endpoint_id, rank=self.engine.rank)

    def _read_on(self, events: Iterator[kv_slices.Read]) -> None:
        """Read some more events of the message in work."""
        engine = self.engine
        try:
            read = next(events, None)
        except kv_events.UnreadableError:
            engine.unread, read = engine.unread + 1, None
        if read is None:
            self._events = None
            return
        largest = self._index.largest_block(engine.endpoint_id, rank=engine.rank)
        for event in read:
            if event is None:
                engine.unread += 1
            elif isinstance(event, Cleared):
                self._slices.append((event, 1))
            else:
                self._cut(event, largest)

    def _cut(self, event: Stored | Removed, tokens: int) -> None:
        """Have an event's slices be taken in; its blocks have ``tokens``, if it does not say."""
        if isinstance(event, Stored):
            tokens = event.block_tokens or tokens
            if event.adapter and len(self.engine.adapters) < MOST_ADAPTERS:
                self.engine.adapters.add(event.adapter)
        parts = max(tokens // self._index.block_tokens, 1)
        blocks = len(event.hashes) * parts
        if blocks <= SLICE:
            self._slices.append((event, blocks))
        else:
            self._slices.extend((each, SLICE) for each in slices(event, max(SLICE // parts, 1)))

    def _next_slices(self) -> Sequence[Event]:
        taken, blocks = [], 0
        while self._slices and blocks < SLICE:
            event, size = self._slices.popleft()
            taken.append(event)
            blocks += size
        return taken

    def _is_other(self, message: Message) -> bool:
        """Whether the first message of an answer shows that another process gave it."""
        probe, self._probe = self._probe, None
        if probe is None or (message.number > probe and not message.ends):
            return False
        if message.ends or self._heard is None or self._heard[0] != probe:
            return message.ends
        return kv_events.sent_at(message.payload) != self._heard[1]

    def _take(self, steps: Sequence[Step], now: float) -> None:
        for step in steps:
            if isinstance(step, Ask):
                self._asked, self._probe = step.start, None
                self.engine.replays += 1
            else:
                self._work.append(step)
        if self.engine.sequence.restarts != self._restarts:
            self._restarts = self.engine.sequence.restarts
            self._begun_at = now
            self._work = _since_reset(self._work)
            self._slices.clear()
            self._events = None


def _since_reset(work: deque[Reset | Apply]) -> deque[Reset | Apply]:
    """Return what is left to do from the last reset on: what came before is void."""
    last = max((at for at, step in enumerate(work) if isinstance(step, Reset)), default=0)
    return deque(list(work)[last:])


def slices(event: Event, most: int = SLICE) -> Iterator[Event]:
    """Yield events of at most ``most`` blocks that together tell the same."""
    if isinstance(event, Cleared) or len(event.hashes) <= most:
        yield event
    elif isinstance(event, Stored):
        yield from _stored(event, most)
    else:
        for at in range(0, len(event.hashes), most):
            yield structs.replace(event, hashes=event.hashes[at : at + most])


def _stored(event: Stored, most: int) -> Iterator[Event]:
    size = event.block_tokens * BYTES_PER_TOKEN
    if len(event.tokens) not in (0, len(event.hashes) * size):
        yield event  # of no use, which the index finds out at once
        return
    for at in range(0, len(event.hashes), most):
        first, after = at * event.block_tokens, (at + most) * event.block_tokens
        yield structs.replace(
            event,
            hashes=event.hashes[at : at + most],
            parent=event.hashes[at - 1] if at else event.parent,
            tokens=event.tokens[at * size : (at + most) * size],
            salt="" if at else event.salt,
            media=tuple([(p - first, name) for p, name in event.media if first <= p < after]),
        )
