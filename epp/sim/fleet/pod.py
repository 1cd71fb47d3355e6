"""One engine of a simulated fleet: its steps on the timeline, and what others see of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from epp.errors import ConfigError
from epp.model import ROLE, CacheCounts, CacheInfo, Endpoint, EndpointId, Load
from epp.sim.fleet.leap import LeapingEngine, News
from epp.sim.fleet.scenario import Pods
from epp.sim.fleet.timeline import Timeline
from epp.sim.model import Config, Request
from epp.sim.offload.tiers import Offload
from epp.sim.profiles import Profile, Timing, by_name

PORT = 8000
LARGEST_BLOCK = 256  #: tokens of a block, unless the scenario says otherwise
KEPT_SECONDS = 120.0  #: of history; more than scrapes may be late
KEPT = 4096  #: entries of history, before older ones are let go


class Seen(NamedTuple):
    """What an engine's metrics say from a moment on."""

    at: float
    queued: int
    running: int
    kv_usage: float
    growth: float  #: of `kv_usage`, a second
    queries: int = 0  #: tokens of prompts admitted since its start, and
    hits: int = 0  #: those of them that its cache held


class Around(Protocol):
    """What engines live in, as they see it."""

    def news(self, pod: Pod, news: News) -> None:
        """Take first tokens and finished requests."""
        ...

    def fetch(self, pod: Pod, request_id: str) -> None:
        """Read the KV cache of a request; `Pod.fetched` is told how it went."""
        ...

    def fail(self, request_id: str) -> None:
        """A request died with its engine."""
        ...


class Pod:
    """An engine with an address.

    Args:
        number: unique in the fleet; tells its address.
        config: of its engine.
        timeline: when its steps end.
        around: what it lives in.
    """

    def __init__(
        self,
        number: int,
        pods: Pods,
        config: Config,
        *,
        timeline: Timeline,
        around: Around,
        seed: int = 0,
    ) -> None:
        self.number = number
        self.pods = pods
        self.config = config
        self.engine = LeapingEngine(config, seed)
        room = self.engine.cache.capacity * config.block_tokens
        self._cache = CacheInfo(config.block_tokens, room)  # as metrics tell it
        self.endpoint_id = EndpointId(f"pod-{number}")
        self.ready_at = timeline.now()
        self.draining = False
        self.group = 0  #: position in the scenario's fleet
        self.alive = True
        self.sent = 0  #: requests that were sent here and are not over
        self.backlog = 0  #: uncached prompt tokens of those without a first token
        self._uncached: dict[str, int] = {}  # of each of them
        self._timeline = timeline
        self._around = around
        self._fetched: list[tuple[str, bool]] = []  # by the end of the step under way
        self._version = 0  # of the plan under way: events of another one are void
        self._end: float | None = None
        self._dropped: list[str] = []
        self._queued = 0  # those who wait since the step under way was planned
        self._told = (0, 0)  # of prompts, as metrics said last
        self._history = [Seen(-1.0, 0, 0, 0.0, 0.0)]
        self._times = [-1.0]

    @property
    def endpoint(self) -> Endpoint:
        """As discovery tells it."""
        host = f"10.0.{self.number >> 8}.{self.number & 255}"
        name = f"pod-{self.number}"
        labels = dict(self.pods.labels)
        if self.pods.role:
            labels[ROLE] = self.pods.role
        return Endpoint(self.endpoint_id, host, PORT, name, labels=labels, draining=self.draining)

    def submit(self, request: Request) -> None:
        """Queue a request at this moment.

        Raises:
            ValueError: it can never fit.
        """
        now = self._timeline.now()
        self.engine.submit(request, now)
        uncached = 0 if request.fetches else request.prompt_tokens - self.cached(request)
        self._uncached[request.id] = uncached
        self.backlog += uncached
        self._interrupt(now)

    def cached(self, request: Request) -> int:
        """Prompt tokens of ``request`` that the cache holds at this moment."""
        block = self.config.block_tokens
        limit = (request.prompt_tokens - 1) // block
        return self.engine.cache.match(request.blocks, limit) * block

    @property
    def usage(self) -> float:
        """Part of the KV blocks in use at this moment, 0.0 to 1.0."""
        return self.engine.used_at(self._timeline.now())

    def drop(self, request_id: str) -> None:
        """Its client left: the request ends with the step under way."""
        self.backlog -= self._uncached.pop(request_id, 0)
        if self._end is None:
            self.engine.abort(request_id, self._timeline.now())
            return
        self._dropped.append(request_id)
        self._interrupt(self._timeline.now())

    def fetched(self, request_id: str, good: bool) -> None:  # noqa: FBT001 - an event of a timeline
        """The KV cache of a request was read, or not: it goes on with the next step."""
        if self._end is None:
            self.engine.fetched(request_id, good=good)
        else:
            self._fetched.append((request_id, good))
        self._interrupt(self._timeline.now())

    def release(self, lease: str) -> None:
        """Another engine has read a cache: its blocks are free."""
        if self.engine.leases.release(lease):
            self._changed()

    def expire(self) -> None:
        """Free the blocks of leases that are over."""
        if self.alive and self.engine.leases.expire(self._timeline.now()):
            self._changed()

    def _changed(self) -> None:
        self._interrupt(self._timeline.now())

    def crash(self) -> list[str]:
        """Die; return the requests that die with it."""
        self.alive = False
        self._version += 1
        self._end = None
        return list(self.engine.ids())

    def load(self, scraped: float, at: float) -> Load:
        """What a scrape tells that reads at ``scraped`` and arrives at ``at``."""
        seen = self._seen(scraped)
        usage = seen.kv_usage + seen.growth * (scraped - seen.at)
        counts = CacheCounts(float(seen.queries), float(seen.hits), admitted=True)
        return Load(
            at, float(seen.queued), float(seen.running), min(max(usage, 0.0), 1.0),
            self._cache, counts=counts,
        )  # fmt: skip

    def forget_before(self, at: float) -> None:
        """Let go of history that no scrape asks for any more."""
        cut = bisect_right(self._times, at) - 1
        if cut > 0:
            del self._times[:cut], self._history[:cut]

    def _seen(self, at: float) -> Seen:
        return self._history[max(bisect_right(self._times, at) - 1, 0)]

    def _interrupt(self, now: float) -> None:
        """Plan anew after the step under way; at once if there is none."""
        if self._end is None:
            self._end = now
            self._arm(now, self._go)
            return
        if self._end > now:
            end = self.engine.cut(now)
            if end < self._end:
                self._end = end
                self._arm(end, self._finish)

    def _arm(self, when: float, what: Callable[[int], None]) -> None:
        self._version += 1
        self._timeline.at(when, what, self._version)

    def _go(self, version: int) -> None:
        """Begin steps."""
        if version != self._version:
            return
        now = self._timeline.now()
        end = self.engine.plan(now)
        self._end = end
        if end is not None:
            self._arm(end, self._finish)
        for request_id in self.engine.to_fetch():
            self._fetch(request_id)
        self._planned(now)

    def _fetch(self, request_id: str) -> None:
        """Have a request go on once what it waits for is here."""
        ends = self.engine.load_ends(request_id)
        if ends is None:
            self._around.fetch(self, request_id)
        else:
            self._timeline.at(ends, self._loaded, request_id)

    def _loaded(self, request_id: str) -> None:
        if self.alive:
            self.fetched(request_id, good=True)

    def _finish(self, version: int) -> None:
        """End steps, tell what came of them, and go on."""
        if version != self._version:
            return
        now = self._timeline.now()
        news = self.engine.finish(now)
        self._publish(now)
        for request_id in news.first:
            self.backlog -= self._uncached.pop(request_id, 0)
        dropped, self._dropped = self._dropped, []
        for request_id in dropped:
            self.engine.abort(request_id, now)
        fetched, self._fetched = self._fetched, []
        for request_id, good in fetched:
            self.engine.fetched(request_id, good=good)
        self._end = now
        self._arm(now, self._go)
        if news.first or news.finished or self.config.journal:
            self._around.news(self, news)

    def _planned(self, now: float) -> None:
        """Keep who waits while the step is under way, for metrics at its end.

        **Source:** vLLM V1 takes in requests between two steps and writes its metrics at the end
        of each one (vllm/v1/engine/core.py, ``run_busy_loop``; scheduler.py, ``make_stats``): who
        comes during a step that computes a long prompt is in none of them until the next one ends.
        """
        self._queued = self.engine.waiting
        end = self._end
        if end is None:
            self._publish(now)
        elif self.engine.leaps:
            usage = self.engine.kv_usage
            growth = (self.engine.used_at(end) - usage) / (end - now)
            self._keep(Seen(now, self._queued, self.engine.running, usage, growth, *self._told))

    def _publish(self, now: float) -> None:
        """Let metrics say how it is at the end of a step."""
        engine = self.engine
        queued, totals = min(self._queued, engine.waiting), engine.totals
        self._told = (totals.queried_tokens, totals.hit_tokens)
        self._keep(Seen(now, queued, engine.running, engine.kv_usage, 0.0, *self._told))

    def _keep(self, seen: Seen) -> None:
        self._times.append(seen.at)
        self._history.append(seen)
        if len(self._times) > KEPT:
            self.forget_before(seen.at - KEPT_SECONDS)


def config_of(pods: Pods, trace_block: int) -> Config:
    """Return what an engine of ``pods`` is started with, for traffic with blocks of that size.

    Raises:
        ConfigError: there is no such profile, or blocks do not fit into the traffic's, or there is a
            disk without a tier before it.
    """
    profile = by_name(pods.profile)
    block = pods.block_tokens or min(trace_block, LARGEST_BLOCK)
    if trace_block % block:
        raise ConfigError(
            f"blocks of {block} tokens do not divide those of the traffic, which have {trace_block}"
        )
    if pods.kv_disk_tokens and not pods.kv_cpu_tokens:
        raise ConfigError(f"kv_disk_tokens: {pods.kv_disk_tokens} without any kv_cpu_tokens")
    tokens = pods.kv_tokens or profile.kv_tokens
    return Config(
        timing=timing_of(pods, profile),
        kv_blocks=max(tokens // block, 1) + 1,
        block_tokens=block,
        max_num_seqs=pods.max_num_seqs,
        max_num_batched_tokens=pods.max_num_batched_tokens,
        jitter=pods.jitter,
        offload=Offload(
            pods.kv_cpu_tokens // block, pods.kv_disk_tokens // block,
            pods.kv_cpu_rate, pods.kv_disk_rate,
        ),
    )  # fmt: skip


def timing_of(pods: Pods, profile: Profile) -> Timing:
    """Return how long steps take."""
    given = pods.correction
    if given is None:
        return _times(profile.timing(), prefill=1 / pods.speed, decode=1 / pods.speed)
    grid = profile.timing(1.0)
    timing = _times(grid, prefill=given.prefill / pods.speed, decode=given.decode / pods.speed)
    return msgspec.structs.replace(
        timing,
        base=timing.base + given.step_seconds / pods.speed,
        per_decode=timing.per_decode + given.sequence_seconds / pods.speed,
    )


def _times(timing: Timing, *, prefill: float, decode: float) -> Timing:
    return Timing(
        base=timing.base * decode,
        per_decode=timing.per_decode * decode,
        per_context=timing.per_context * decode,
        per_prefill=timing.per_prefill * prefill,
        per_attention=timing.per_attention * prefill,
    )
