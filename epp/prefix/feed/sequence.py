"""Which messages of one engine to take in, in what order, and when to ask for old ones again.

An engine numbers its messages from 0 on, one by one, and keeps the last ten thousand or so for who
asks. Here it is decided, and nothing else: the caller receives, sends and applies.

* In order: applied at once.
* The first heard is not the first sent, or some are missing: what comes is held, and the missing
  are asked for. Old ones are applied first, then what was held.
* An answer has a hole in its midst: what was lost on the way is asked for once more. Engines' sockets
  drop what they cannot send at once, also of an answer of ten thousand messages.
* The engine has no longer all that is missing: what is known may be wrong, so it is dropped, and
  built anew from the oldest that there is. All of it is true, but not all is known: `whole` is
  False, until a later start of the engine.
* Nobody answers: what is known is kept, as most of it is still true, and `whole` is False; what is
  claimed in vain shows in the engine's answers. It is asked again later, ever less often. If the
  connection broke meanwhile it may be another process, and what is known is dropped.
* Numbers start again, or the engine's process did: nothing that was known is true any more. Where that
  happens again within a second it is two engines under one name, and neither is asked for a while.

Nothing waits for this: what is known is there for look-ups at any time, and readiness does not
depend on it. Every wait has a bound, and so has what is held.

**Source:** ``ZmqEventPublisher`` of vLLM: numbering, and a replay that answers "from a number on"
with what its buffer still has, then an end mark.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

QUIET_SECONDS = 2.0  #: a replay that says nothing for so long is over
TRIES = 3  #: replays in a row that bring nothing
RETRY_SECONDS = 30.0  #: until the next try after that, doubled each time
RETRY_MOST_SECONDS = 600.0
HELD_BYTES = 2 << 20  #: of messages held while older ones are awaited
HELD_MESSAGES = 5000
RESTLESS_SECONDS = 1.0  #: no engine restarts twice within that
STALE_MOST = 8  #: old messages in a row that are a restarted engine with a clock set back


class Reset(msgspec.Struct, frozen=True):
    """Drop all that is known of the engine's blocks."""

    reason: str  #: a fixed word


class Apply(msgspec.Struct, frozen=True):
    """Take in a message."""

    payload: bytes


class Ask(msgspec.Struct, frozen=True):
    """Ask the engine for its messages from a number on; it answers with what it still has.

    This ends what was asked before: answers to that must not be handed in any more.
    """

    start: int


Step = Reset | Apply | Ask


class _Message(msgspec.Struct, frozen=True):
    number: int
    at: float
    payload: bytes


class Sequence:
    """The messages of one engine. Times are seconds on the caller's clock, unless said otherwise.

    Args:
        can_ask: whether the engine can be asked for old messages.
    """

    def __init__(self, *, can_ask: bool) -> None:
        self.whole = False  #: nothing that the engine ever told is missing
        self.reason = "silent"  #: why not, a fixed word
        self.gaps = 0  #: times that messages were missing, ever
        self.restarts = 0  #: of the engine, ever
        self.lost = 0  #: messages that nobody has any more, ever, as far as they are numbered
        self._can_ask = can_ask
        self._next = 0  # the number that comes next
        self._since: int | None = None  # what is known began with this message
        self._since_at = 0.0  # which was sent then, by the engine's clock
        self._last_at = 0.0  # so was the newest, applied or held
        self._held: deque[_Message] = deque()
        self._held_bytes = 0
        self._heard_at: float | None = None  # of the replay under way, when it last said something
        self._rebuilds: Literal["", "gladly", "in any case"] = ""  # what is known, by that replay
        self._tries = 0
        self._answered = False  # the question under way, with a message that was taken in
        self._retry_at: float | None = None
        self._pause = RETRY_SECONDS
        self._stale = 0
        self._began_at = -RESTLESS_SECONDS  # the last restart, on the caller's clock
        self._restless_until = 0.0
        self._rejoined = False  # and nothing was applied since

    def succeed(self, former: Sequence) -> None:
        """Go on counting where another one ended: the engine restarted, and is heard elsewhere."""
        self.gaps, self.lost, self.restarts = former.gaps, former.lost, former.restarts + 1

    @property
    def catching_up(self) -> bool:
        """Whether old messages are awaited, and new ones held meanwhile."""
        return self._heard_at is not None

    def joined(self, now: float) -> list[Step]:
        """Note that messages are heard from now on: the engine may have told something before."""
        self._rejoined = True
        return self.overdue(now)

    def queued(self, now: float) -> None:
        """Note that what was to be asked is not asked yet: that nobody answers means nothing."""
        if self.catching_up:
            self._heard_at = now

    def overdue(self, now: float) -> list[Step]:
        """Note that the engine should have told something: its last message may be lost."""
        return self._ask(now) if self._can_ask and not self.catching_up else []

    def live(self, number: int, payload: bytes, *, at: float, now: float) -> list[Step]:
        """Note a message as it was sent, at a time of the engine's clock (0.0 if not told)."""
        message = _Message(number, at, payload)
        newest = self._held[-1].number if self._held else self._next - 1
        if number <= newest:
            if self._is_stale(message):
                return []
            return [*self._begin_again(now), *self.live(number, payload, at=at, now=now)]
        self._stale, self._last_at = 0, at
        if self.catching_up:
            return self._hold(message, now)
        if number == self._next:
            return self._apply(message)
        self.gaps += 1
        if now < self._restless_until:
            self._retry_at = now + self._pause
        elif self._can_ask:
            return [*self._hold(message, now), *self._ask(now)]
        return [*self._miss(number), *self._apply(message)]

    def replayed(self, number: int, payload: bytes, *, at: float, now: float) -> list[Step]:
        """Note a message that was asked for."""
        if not self.catching_up:
            return []
        self._heard_at, self._tries = now, 0
        if self._rebuilds:
            return self._rebuild(_Message(number, at, payload), now)
        if number < self._next:
            return []
        if number > self._next and self._answered:
            return self._ask(now)
        self._answered = True
        steps = [] if number == self._next else self._give_up("history_lost", number)
        steps += self._apply(_Message(number, at, payload))
        if self._held and self._held[0].number <= self._next:
            steps += self._go_on(now)  # what else the replay has is held already
        return steps

    def replay_ended(self, now: float) -> list[Step]:
        """Note the end mark of what was asked for."""
        if not self.catching_up:
            return []
        self._tries += 1
        steps = self._begin_again(now) if self._rebuilds and self._since is not None else []
        if self._since is None and not self._held:
            self.whole, self.reason = True, ""  # it told nothing yet
        return [*steps, *self._go_on(now)]

    def tick(self, now: float) -> list[Step]:
        """Let time pass; to be called about twice a second."""
        if self._heard_at is not None and now - self._heard_at >= QUIET_SECONDS:
            self._tries += 1
            if self._tries < TRIES:
                return self._ask(now, self._rebuilds)
            return self._unanswered(now)
        if self._retry_at is not None and now >= self._retry_at and not self.catching_up:
            self._retry_at = None
            return self._ask(now, "gladly")
        return []

    def restarted(self, started: float | None, now: float) -> list[Step]:
        """Note that the engine's process is another one, started at a time of the engine's clock.

        Nothing happens if what is known began after that, so is told by that process.
        """
        if started is not None and self._since is not None and self._since_at >= started:
            return []
        return [*self._begin_again(now), *self.joined(now)]

    def doubt(self, now: float) -> list[Step]:
        """Build what is known anew, as it has proved wrong; it stays until there is better."""
        if self.catching_up:
            return []
        return (
            self._ask(now, "in any case") if self._can_ask else self._give_up("doubted", self._next)
        )

    def _ask(self, now: float, rebuilds: Literal["", "gladly", "in any case"] = "") -> list[Step]:
        self._heard_at, self._rebuilds, self._answered = now, rebuilds, False
        return [Ask(0 if rebuilds else self._next)]

    def _rebuild(self, first: _Message, now: float) -> list[Step]:
        """Begin what is known anew with the oldest message there is, if that is any better."""
        gladly, self._rebuilds = self._rebuilds == "gladly", ""
        if gladly and self._since is not None and first.number >= self._since:
            self.reason = "history_lost"
            return self._go_on(now)
        self._answered = True
        steps = self._give_up("history_lost" if first.number else "rebuilt", first.number)
        return [*steps, *self._apply(first)]

    def _apply(self, message: _Message) -> list[Step]:
        self._next, self._rejoined = message.number + 1, False
        if self._since is None:
            self._since, self._since_at = message.number, message.at
        if message.number == 0:
            self.whole, self.reason, self._pause = True, "", RETRY_SECONDS
            self._retry_at = None
        return [Apply(message.payload)]

    def _hold(self, message: _Message, now: float) -> list[Step]:
        self._held.append(message)
        self._held_bytes += len(message.payload)
        if self._held_bytes <= HELD_BYTES and len(self._held) <= HELD_MESSAGES:
            return []
        return self._unanswered(now)

    def _go_on(self, now: float) -> list[Step]:
        """End a replay: apply what was held, as far as nothing is missing, or ask again."""
        self._heard_at, self._rebuilds = None, ""
        steps: list[Step] = []
        while self._held:
            message = self._held[0]
            if message.number > self._next:
                if self._tries < TRIES:
                    return [*steps, *self._ask(now)]
                steps += self._give_up("history_lost", message.number)
            self._held.popleft()
            self._held_bytes -= len(message.payload)
            if message.number == self._next:
                steps += self._apply(message)
        self._tries = 0
        return steps

    def _unanswered(self, now: float) -> list[Step]:
        """End a replay that does not come: go on with what was held, and ask again much later."""
        self._retry_at, self._pause = now + self._pause, min(self._pause * 2, RETRY_MOST_SECONDS)
        steps: list[Step] = []
        if self._held and self._held[0].number > self._next:
            steps = self._miss(self._held[0].number)
        elif self._since is None:
            self.reason = "not_replayed"
        self._tries = TRIES
        return [*steps, *self._go_on(now)]

    def _miss(self, number: int) -> list[Step]:
        """Go on without the messages before ``number``, which nobody tells again."""
        steps = self._give_up("not_replayed", number)
        return steps if self._rejoined else []

    def _give_up(self, reason: str, number: int) -> list[Step]:
        """Drop what is known, as messages before ``number`` are lost."""
        self.lost += max(number - self._next, 0)
        self.whole, self.reason = False, reason
        self._next, self._since = number, None
        return [Reset(reason)]

    def _begin_again(self, now: float) -> list[Step]:
        self.restarts += 1
        if now - self._began_at < RESTLESS_SECONDS:
            self._restless_until = now + RETRY_SECONDS
        self._began_at = now
        self._held.clear()
        self._held_bytes, self._next, self._since, self._stale = 0, 0, None, 0
        self._heard_at, self._rebuilds, self._tries, self._retry_at = None, "", 0, None
        self.whole, self.reason = False, "restarted"
        return [Reset("restarted")]

    def _is_stale(self, message: _Message) -> bool:
        """Whether a message with an old number is an old one, not the first of another process."""
        if not message.at or message.at > self._last_at:
            return False
        self._stale += 1
        return self._stale <= STALE_MOST
