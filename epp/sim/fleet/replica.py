"""One picker of a simulated fleet: the router, pipeline, ledger and pool of production."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec

from epp.build import Parts, configure
from epp.catalog import Catalog
from epp.exchange import Exchange, Told
from epp.ledger import Ledger
from epp.model import Arrival, Outcome, Usage
from epp.peers.hearing import Hearing
from epp.peers.telling import Telling
from epp.pipeline import retire
from epp.plugin import Observer
from epp.pool import Pool
from epp.prefix.precise import PrecisePrefixCacheProducer
from epp.router import Router
from epp.rules import RuleBook
from epp.sim.fleet.feeds import Feeds
from epp.sim.fleet.pod import Pod
from epp.sim.fleet.scenario import Pickers
from epp.sim.fleet.timeline import Timeline
from epp.sim.model import Finished
from epp.ttft.forecast import Forecaster

REFUSED = 2  #: scrapes in vain, after which nothing counts as listening there


BLOCK_TOKENS = "${blockTokens}"  #: in a configuration's text, stands for the engines' block size


class Policy(msgspec.Struct, frozen=True):
    """A configuration, and the plugin types that it may name."""

    name: str
    text: str
    catalog: Catalog
    alone: bool = False  #: its replicas tell each other nothing

    def for_blocks(self, tokens: int) -> Policy:
        """Return it for engines whose blocks have so many tokens."""
        return msgspec.structs.replace(self, text=self.text.replace(BLOCK_TOKENS, str(tokens)))


class Replica:
    """A picker.

    Args:
        number: among the pickers.
        policy: its configuration.
        pickers: how it hears of the engines.
        seed: of all that it draws.
    """

    def __init__(
        self, number: int, policy: Policy, pickers: Pickers, *, timeline: Timeline, seed: int
    ) -> None:
        self.number = number
        self.pool = Pool("sim")
        self.ledger = Ledger()
        self._pickers = pickers
        self._timeline = timeline
        self._draw = random.Random(f"{seed}/picker/{number}")
        self._scraped: dict[int, tuple[Pod, float, float]] = {}  # by pod: phase, last scrape
        forecaster = Forecaster(self.ledger, timeline)
        self.telling: Telling | None = None
        tells = pickers.peers_seconds is not None and not policy.alone
        if tells and pickers.replicas > 1:
            self.telling = Telling(self.ledger, lambda: self.pipeline, timeline)
        self.hearing = Hearing(self.pool, self.ledger, forecaster, lambda: self.plugins, timeline)
        observers = (forecaster,) if self.telling is None else (forecaster, self.telling)
        parts = Parts(
            clock=timeline,
            random=random.Random(f"{seed}/choices/{number}"),
            ledger=self.ledger,
            pool=self.pool,
            catalog=policy.catalog,
            book=RuleBook(),
            allow_experimental=True,
            extra_observers=observers,
            forecaster=forecaster,
        )
        _, self.pipeline = configure(policy.text, parts, source=policy.name)
        self.router = Router(
            self.pool, self.pipeline, self.ledger, clock=timeline, on_observer_error=_raise
        )
        retire(None, self.pipeline, self.pool)
        self.pool.on_forget(self.ledger.forget)
        self.pool.on_forget(forecaster.forget)
        exact = [
            each
            for each in self.pipeline.plugins.values()
            if isinstance(each, PrecisePrefixCacheProducer)
        ]
        self.feeds = Feeds(exact, pickers.events, clock=timeline, draw=self._draw)
        self.reads_events = bool(exact)
        self.runs_prefills = self.pipeline.prefiller is not None

    @property
    def plugins(self) -> Mapping[str, Any]:
        """Those of its configuration, by name."""
        return self.pipeline.plugins

    def join(self, pod: Pod) -> None:
        """An engine is ready."""
        phase = self._draw.random() * self._pickers.scrape_seconds
        self._scraped[pod.number] = (pod, phase, -1.0)
        self.pool.put(pod.endpoint)
        self.feeds.join(pod.endpoint.id)

    def drain(self, pod: Pod) -> None:
        """An engine is to get nothing more."""
        known = self.pool.get(pod.endpoint.id)
        if known is not None:
            self.pool.put(msgspec.structs.replace(known, draining=True))

    def leave(self, pod: Pod) -> None:
        """An engine is gone."""
        self._scraped.pop(pod.number, None)
        self.pool.remove(pod.endpoint.id)
        self.feeds.leave(pod.endpoint.id)

    def unreachable(self, pod: Pod) -> None:
        """Nothing listens there."""
        self.pool.set_reachable(pod.endpoint.id, reachable=False)

    def route(self, arrival: Arrival) -> Coroutine[Any, Any, Exchange]:
        """Begin to route, knowing all that has come by now."""
        self._scrape()
        if self.reads_events:
            self.feeds.take_in()
        return self.router.route(arrival)

    def first_token(self, exchange: Exchange) -> None:
        """The answer begins."""
        if self._pickers.feedback == "stock":
            exchange.response_head(200, streamed=True)
            exchange.response_piece(1)

    def finished(self, exchange: Exchange, story: Finished) -> None:
        """The answer is over."""
        usage = Usage(story.prompt_tokens, story.output_tokens, story.cached_tokens)
        if self._pickers.feedback == "stock":
            exchange.usage = usage
            exchange.complete()
            return
        arrived, first = exchange.request.arrived_at, story.first_token_at
        exchange.told(
            Told(
                usage=usage,
                first_byte_seconds=None if first is None else first - arrived,
                seconds=story.ended_at - arrived,
                streamed=True,
            )
        )
        exchange.end(Outcome.COMPLETED, status=200)

    def _scrape(self) -> None:
        """Put the last scrape of each engine into the pool, as of this moment."""
        pickers, now = self._pickers, self._timeline.now()
        interval, delay = pickers.scrape_seconds, pickers.scrape_delay_seconds
        for number, (pod, phase, last) in self._scraped.items():
            if not pod.alive:
                continue
            at = ((now - delay - phase) // interval) * interval + phase
            if at > last and at >= pod.ready_at:
                self._scraped[number] = (pod, phase, at)
                self.pool.set_load(pod.endpoint_id, pod.load(at, at + delay))


def _raise(observer: Observer, error: Exception) -> None:
    raise error
