"""What became of each request: the raw result of a run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Story(msgspec.Struct, gc=False):
    """One request, as its client saw it. Seconds of virtual time; None is "never came"."""

    id: str
    business: str  #: class of business
    tenant: str
    talk: int
    turn: int
    at: float  #: when it came
    prompt_tokens: int
    output_tokens: int
    ideal_tokens: int  #: of the prompt, that an endless cache of the whole fleet would hold
    replica: int = 0  #: the picker that chose
    pod: int = -1  #: that served; -1 if none did
    prefill_pod: int = -1  #: that computed its prompt for `pod`; -1 if none did
    predicted_tokens: int = 0  #: believed cached by the picker
    cached_tokens: int = 0  #: found cached by the engine that computed the prompt
    first_at: float | None = None
    ended_at: float | None = None
    preemptions: int = 0
    outcome: str = ""  #: "ok", or why not: "shed", "failed", "abandoned", "too_long"

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first_at is None else self.first_at - self.at

    @property
    def duration(self) -> float | None:
        """Seconds to the end."""
        return None if self.ended_at is None else self.ended_at - self.at

    @property
    def tpot(self) -> float | None:
        """Seconds of each token after the first; None of answers without."""
        if self.first_at is None or self.ended_at is None or self.output_tokens < 2:
            return None
        return (self.ended_at - self.first_at) / (self.output_tokens - 1)


class Moment(msgspec.Struct, frozen=True, gc=False):
    """The fleet once a second."""

    at: float
    pods: int  #: that serve
    requests: tuple[int, ...]  #: in each
    waiting: int
    kv_usage: float  #: mean


class Outcome(msgspec.Struct, frozen=True):
    """A run."""

    policy: str
    seed: int
    stories: Sequence[Story]
    moments: Sequence[Moment]
    seconds: float  #: of virtual time, from the first arrival to the last end
    reachable: float  #: share of prompt tokens that one LRU cache of the fleet's size would find
    cpu_seconds: float = 0.0  #: that the run took
