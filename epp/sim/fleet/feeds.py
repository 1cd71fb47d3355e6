"""Engines' KV events: what they publish, and its way to one picker: late, some lost, read at picks.

What arrives is handed to the same parts as in production: the sequence that notices gaps, the index,
the confidence in both. Between two picks nobody looks, so news are kept until the next.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

from epp.clock import Clock
from epp.model import EndpointId
from epp.prefix.exact.events import Event, Removed, Stored, Tier
from epp.prefix.feed.engine import Engine
from epp.prefix.feed.sequence import Apply, Reset, Step
from epp.prefix.precise import PrecisePrefixCacheProducer
from epp.sim.fleet.pod import Pod
from epp.sim.fleet.scenario import Events
from epp.sim.offload.tiers import CPU, Change

TICK_SECONDS = 0.5

Message = tuple[int, tuple[Event, ...]]


class _Line:
    """From one engine."""

    def __init__(self, engine: Engine, *, mute: bool) -> None:
        self.engine = engine
        self.mute = mute
        self.coming: deque[tuple[float, Message]] = deque()


class Feeds:
    """All that one picker hears.

    Args:
        producers: of the picker's configuration, that read events.
        events: how they come.
        draw: which are lost.
    """

    def __init__(
        self,
        producers: Sequence[PrecisePrefixCacheProducer],
        events: Events,
        *,
        clock: Clock,
        draw: random.Random,
    ) -> None:
        self._producers = producers
        self._events = events
        self._clock = clock
        self._draw = draw
        self._lines: dict[EndpointId, list[_Line]] = {}
        self._ticked_at = 0.0
        self._joined = 0  # engines, ever

    def join(self, endpoint_id: EndpointId) -> None:
        """Listen to an engine that begins."""
        lines = self._lines[endpoint_id] = []
        for producer in self._producers:
            engine = producer.engines.add(endpoint_id, 0, can_ask=False)
            engine.confidence.connected = True
            producer.index.join(endpoint_id)
            lines.append(_Line(engine, mute=self._joined < self._events.mute))
        self._joined += 1

    def leave(self, endpoint_id: EndpointId) -> None:
        """An engine is gone."""
        for producer, line in zip(self._producers, self._lines.pop(endpoint_id, ()), strict=False):
            producer.engines.remove(line.engine)
            producer.index.forget(endpoint_id)

    def tell(self, endpoint_id: EndpointId, message: Message) -> None:
        """A message was published at this moment; it comes later, or never."""
        at = self._clock.now() + self._events.delay_seconds
        for line in self._lines.get(endpoint_id, ()):
            lost = self._events.loss and self._draw.random() < self._events.loss
            if not line.mute and not lost:
                line.coming.append((at, message))

    def take_in(self) -> None:
        """Take in what has come by now."""
        now = self._clock.now()
        ticks = now - self._ticked_at >= TICK_SECONDS
        if ticks:
            self._ticked_at = now
        for endpoint_id, lines in self._lines.items():
            for producer, line in zip(self._producers, lines, strict=True):
                self._drain(producer, endpoint_id, line, now)
                if ticks:
                    steps = line.engine.sequence.tick(now)
                    self._apply(producer, endpoint_id, steps, {})
        if ticks:
            for producer in self._producers:
                producer.index.expire(now)

    def _drain(
        self, producer: PrecisePrefixCacheProducer, endpoint_id: EndpointId, line: _Line, now: float
    ) -> None:
        coming, engine = line.coming, line.engine
        heard = False
        while coming and coming[0][0] <= now:
            at, (number, events) = coming.popleft()
            engine.confidence.told(at)
            payload = b"%d" % number
            steps = engine.sequence.live(number, payload, at=at, now=at)
            self._apply(producer, endpoint_id, steps, {payload: events})
            heard = True
        if heard:
            producer.computed(endpoint_id, 0)

    @staticmethod
    def _apply(
        producer: PrecisePrefixCacheProducer,
        endpoint_id: EndpointId,
        steps: Sequence[Step],
        told: dict[bytes, tuple[Event, ...]],
    ) -> None:
        for step in steps:
            if isinstance(step, Reset):
                producer.index.join(endpoint_id)
            elif isinstance(step, Apply):
                producer.index.apply(endpoint_id, told.get(step.payload, ()))


class Publisher:
    """Publishes what engines' caches gained and lost.

    Args:
        feeds: of the pickers that hear of it.
        tokens: returns the token ids of blocks, four bytes each.
    """

    def __init__(self, feeds: Sequence[Feeds], tokens: Callable[[Sequence[int]], bytes]) -> None:
        self._feeds = feeds
        self._tokens = tokens
        self._numbers: dict[int, int] = {}  # of messages, by pod

    def publish(self, pod: Pod) -> None:
        """Tell what is new since the last time."""
        removed, sealed = pod.engine.news()
        moved = pod.engine.tiers.news()
        if not (removed or sealed or moved):
            return
        events: list[Event] = [Removed(tuple(removed))] if removed else []
        for each in sealed:
            blocks = each.request.blocks
            hashes = tuple(blocks[each.first : each.end])
            parent = blocks[each.first - 1] if each.first else None
            events.append(Stored(hashes, parent, self._tokens(hashes), pod.config.block_tokens))
        events += map(_moved, moved)
        number = self._numbers.get(pod.number, 0)
        self._numbers[pod.number] = number + 1
        message = (number, tuple(events))
        for feed in self._feeds:
            feed.tell(pod.endpoint_id, message)


def _moved(change: Change) -> Event:
    """Return what tells of a block in a lower tier: no tokens, which were told before."""
    hashes, tier = (change.block,), Tier.CPU if change.medium == CPU else Tier.DISK
    return Stored(hashes, None, b"", 0, tier) if change.stored else Removed(hashes, tier)
