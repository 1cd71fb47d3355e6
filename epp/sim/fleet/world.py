"""The simulation: requests come, pickers choose, engines step, until all is answered."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from epp.disagg.remote.leg import LegFailed
from epp.errors import EppError
from epp.exchange import Exchange
from epp.headers import PREFILLER
from epp.model import Endpoint, EndpointId
from epp.model import Outcome as Ended
from epp.process import garbage
from epp.sim.demand.talks import Talks
from epp.sim.demand.traffic import Demand
from epp.sim.demand.work import Job, Maker
from epp.sim.fleet.begun import begin, begin_task
from epp.sim.fleet.feeds import Publisher
from epp.sim.fleet.leap import News
from epp.sim.fleet.members import Members, configs_of
from epp.sim.fleet.pod import Pod
from epp.sim.fleet.replica import Policy, Replica
from epp.sim.fleet.rumours import Rumours
from epp.sim.fleet.scenario import Scenario
from epp.sim.fleet.story import Moment, Outcome, Story
from epp.sim.fleet.timeline import Timeline, VirtualLoop
from epp.sim.model import Finished, Request
from epp.sim.split.legs import Kept, Legs

SAMPLE_SECONDS = 1.0
TOLD_EVERY = 200  #: requests, between two words on the progress

Tell = Callable[[int, int], None]  #: requests that are over, and all


def _nobody(done: int, of: int) -> None:
    """Tell nobody."""


class _Open(msgspec.Struct, gc=False):
    """A request under way."""

    jobs: list[Job]  #: of its conversation
    job: Job
    story: Story
    request: Request
    replica: Replica
    exchange: Exchange | None = None
    pod: Pod | None = None
    kept: Kept | None = None  #: its prompt, computed elsewhere
    task: asyncio.Task[None] | None = None  #: waits for a prefill, or may


class World:
    """One run. All that is random follows from the seed.

    Args:
        scenario: what is simulated.
        policy: of all pickers.
        demand: what is asked.
        seed: of choices, losses and phases; traffic has been made by then.
        tell: is told of the progress.
    """

    def __init__(
        self,
        scenario: Scenario,
        policy: Policy,
        demand: Demand,
        *,
        seed: int,
        tell: Tell = _nobody,
    ) -> None:
        self.timeline = Timeline()
        self._scenario = scenario
        self._policy = policy
        self._demand = demand
        self._seed = seed
        self._tell = tell
        self._loop = VirtualLoop(self.timeline)
        self._draw = random.Random(f"{seed}/world")
        self._open: dict[str, _Open] = {}
        self._stories: list[Story] = []
        self._moments: list[Moment] = []
        self._seen: set[int] = set()  # blocks that were ever asked for
        self._talks = Talks(
            demand, self.timeline, at_once=scenario.traffic.conversations_at_once, ask=self._ask
        )
        self._broken: BaseException | None = None  # what a task raised
        self._left = sum(len(talk.steps) for talk in demand.talks)
        self._forwarded = 0  # requests that the gateway has under way
        configs = configs_of(scenario, demand.block_tokens)
        policy = policy.for_blocks(configs[0].block_tokens)
        self.replicas = [
            Replica(i, policy, scenario.pickers, timeline=self.timeline, seed=seed)
            for i in range(scenario.pickers.replicas)
        ]
        seconds, tells = scenario.pickers.peers_seconds, self.replicas[0].telling is not None
        self._rumours = (
            Rumours(self.replicas, seconds, self.timeline) if tells and seconds else None
        )
        hear = [replica.feeds for replica in self.replicas if replica.reads_events]
        if hear:
            configs = [msgspec.structs.replace(each, journal=True) for each in configs]
        self.members = Members(
            scenario, configs, self.timeline, self.replicas,
            around=self, seed=seed,
        )  # fmt: skip
        self._legs = Legs(
            scenario.transfers, self.timeline,
            emptied=self.members.emptied, draw=random.Random(f"{seed}/legs"),
        )  # fmt: skip
        block = self.members.block_tokens
        self._maker = Maker(demand.block_tokens, block, with_tokens=bool(hear))
        self._publisher = Publisher(hear, self._maker.tokens)

    def run(self) -> Outcome:
        """Let it all happen."""
        began = time.process_time()
        self.members.start()
        self._see()
        self._talks.begin_all()
        self.timeline.at(0.0, self._sample)
        try:
            with garbage.seldom():
                self._loop.run()
        finally:
            self._loop.close()
        if self._broken is not None:
            raise self._broken
        ends = [story.ended_at or story.at for story in self._stories]
        return Outcome(
            self._policy.name, self._seed, self._stories, self._moments,
            max(ends, default=0.0), self._demand.reachable(self.members.kv_tokens),
            time.process_time() - began,
        )  # fmt: skip

    def engines(self) -> Mapping[EndpointId, Pod]:
        """Return the engines as they really are, for policies that may know it."""
        return self.members.pods

    def asked(self, request_id: str) -> Request:
        """Return what an engine is asked by a request under way."""
        return self._open[request_id].request

    async def prefill(self, endpoint: Endpoint, request: Request) -> Kept:
        """Have the prompt of a request computed.

        Raises:
            LegFailed: it was not.
        """
        kept = await self._legs.prefill(self.members.pods.get(endpoint.id), request)
        opened = self._open.get(request.id)
        if opened is not None:
            opened.kept = kept
        return kept

    def give_up(self, request_id: str) -> None:
        """Have the engine that decodes drop a request whose prompt will not come."""
        self._drop(request_id, "failed")

    def _see(self) -> None:
        """Let policies look that may know everything."""
        for replica in self.replicas:
            for made in replica.plugins.values():
                see = getattr(made, "see", None)
                if see is not None:
                    see(self)

    # --- traffic -------------------------------------------------------------------------

    def _ask(self, jobs: list[Job], turn: int) -> None:
        """Send a request to a picker."""
        now, job = self.timeline.now(), jobs[turn]
        request = self._maker.request(job)
        record = job.record
        story = Story(
            job.id, job.business, record.tenant, job.talk, turn, now, record.input_tokens,
            request.output_tokens, self._ideal(request),
        )  # fmt: skip
        replica = self.replicas[0]
        if len(self.replicas) > 1:
            replica = self._draw.choice(self.replicas)
            story.replica = replica.number
        opened = self._open[job.id] = _Open(jobs, job, story, request, replica)
        self.timeline.at(now + self._scenario.client_timeout_seconds, self._give_up, job.id)
        work = replica.route(self._maker.arrival(job, request, now))
        if replica.runs_prefills:
            opened.task = begin_task(work, self._loop, lambda found: self._routed(opened, found))
            opened.task.add_done_callback(self._noticed)
        else:
            begin(work, self._loop, lambda found: self._routed(opened, found))

    def _ideal(self, request: Request) -> int:
        """Tokens of the prompt that were ever asked for."""
        seen, size, count = self._seen, self.members.block_tokens, 0
        limit = (request.prompt_tokens - 1) // size
        for block in request.blocks[:limit]:
            if block not in seen:
                break
            count += 1
        seen.update(request.blocks)
        return count * size

    def _routed(self, opened: _Open, result: Exchange | Exception) -> None:
        """A picker has chosen, or refused."""
        if isinstance(result, EppError):
            self._over(opened, "shed")
            return
        if isinstance(result, Exception):
            raise result
        opened.exchange = result
        self._notice(opened)
        if opened.job.id not in self._open:
            result.end(Ended.ABANDONED)  # its client left while it waited
            return
        chosen = result.pick.endpoints[0]
        pod = self.members.pods.get(chosen.id)
        story = opened.story
        match = result.request.match()
        if match is not None:
            story.predicted_tokens = match.held.get(chosen.id, 0) * match.block_tokens
        result.forwarded()
        if pod is None or not pod.alive:
            self._over(opened, "failed")
            return
        if self._forwarded >= (self._scenario.gateway_requests or math.inf):
            self._over(opened, "shed")
            return
        opened.pod = pod
        story.pod = pod.number
        pod.sent += 1
        self._forwarded += 1
        self._go_on(opened, result)

    def _notice(self, opened: _Open) -> None:
        """Its picker has something to tell."""
        if self._rumours is not None:
            self._rumours.notice(opened.replica)

    def _go_on(self, opened: _Open, exchange: Exchange) -> None:
        """Have a routed request's prompt computed elsewhere, if it is to be and was not yet."""
        leg, pick = exchange.leg, exchange.pick
        if leg is None and pick.prefill is not None:
            named = [pick.prefill, *pick.prefill_next][: pick.headers[PREFILLER].count(",") + 1]
            opened.task = self._loop.create_task(self._beside(opened, named))
            opened.task.add_done_callback(self._noticed)
            return
        self._send(opened, elsewhere=leg is not None and leg.endpoint is not None)

    def _noticed(self, task: asyncio.Task[None]) -> None:
        """End the run with what a task raised, as an event does."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._broken = error
            self._loop.call_soon(self._loop.stop)

    async def _beside(self, opened: _Open, named: Sequence[Endpoint]) -> None:
        """Do what a sidecar does that is told of the endpoints ``named``."""
        for endpoint in named:
            try:
                await self.prefill(endpoint, opened.request)
            except LegFailed:
                continue
            self._send(opened, elsewhere=True)
            return
        self._send(opened, elsewhere=False)

    def _send(self, opened: _Open, *, elsewhere: bool) -> None:
        if elsewhere and self._legs.comes(opened.job.id):
            opened.request = msgspec.structs.replace(opened.request, fetches=True)
        wait = opened.pod.pods.request_seconds if opened.pod is not None else 0.0
        if wait:
            self.timeline.at(self.timeline.now() + wait, self._submit, opened)
        else:
            self._submit(opened)

    def _submit(self, opened: _Open) -> None:
        pod = opened.pod
        if pod is None or opened.job.id not in self._open:
            return
        if not pod.alive:
            self._over(opened, "failed")
            return
        try:
            pod.submit(opened.request)
        except ValueError:
            self._over(opened, "too_long")

    # --- answers -------------------------------------------------------------------------

    def news(self, pod: Pod, news: News) -> None:
        """An engine ended its steps."""
        now = self.timeline.now()
        for request_id in news.first:
            opened = self._open.get(request_id)
            if opened is not None and opened.exchange is not None:
                opened.story.first_at = now
                opened.replica.first_token(opened.exchange)
                self._notice(opened)
        if pod.config.journal:
            self._publisher.publish(pod)
        for finished in news.finished:
            opened = self._open.get(finished.id)
            if opened is None:
                self._legs.ended(pod, finished)
            elif opened.exchange is not None:
                self._answered(opened, finished)

    def _answered(self, opened: _Open, finished: Finished) -> None:
        story, kept = opened.story, opened.kept
        story.cached_tokens = finished.cached_tokens
        if kept is not None and finished.external_tokens > 0:
            story.cached_tokens, story.prefill_pod = kept.cached, kept.pod.number
        story.preemptions = finished.preemptions
        if opened.exchange is not None:
            opened.replica.finished(opened.exchange, finished)
        self._over(opened, "ok")

    def fetch(self, pod: Pod, request_id: str) -> None:
        """An engine is to read what another one computed."""
        self._legs.fetch(pod, request_id)

    def fail(self, request_id: str) -> None:
        """The engine of a request died."""
        opened = self._open.get(request_id)
        if opened is not None:
            self._over(opened, "failed")
        else:
            self._legs.died(request_id)

    def _give_up(self, request_id: str) -> None:
        """A client has waited too long."""
        opened = self._open.get(request_id)
        if opened is not None and opened.task is not None:
            opened.task.cancel()
        self._drop(request_id, "abandoned")

    def _drop(self, request_id: str, outcome: str) -> None:
        opened = self._open.get(request_id)
        if opened is None:
            return
        if opened.pod is not None and opened.pod.alive:
            opened.pod.drop(request_id)
        self._over(opened, outcome)

    def _over(self, opened: _Open, outcome: str) -> None:
        """A request is over, one way or another; its conversation goes on."""
        now, story = self.timeline.now(), opened.story
        del self._open[opened.job.id]
        self._legs.forget(opened.job.id)
        story.outcome = outcome
        story.ended_at = now
        if opened.exchange is not None and not opened.exchange.ended:
            ended = Ended.ABANDONED if outcome == "abandoned" else Ended.FAILED
            opened.exchange.end(ended, status=None if outcome == "abandoned" else 503)
        self._notice(opened)
        if opened.pod is not None:
            opened.pod.sent -= 1
            self._forwarded -= 1
            self.members.emptied(opened.pod)
        self._stories.append(story)
        self._left -= 1
        if len(self._stories) % TOLD_EVERY == 0 or not self._left:
            self._tell(len(self._stories), len(self._stories) + self._left)
        self._talks.go_on(opened.jobs, opened.job.turn, story.at)

    def _sample(self) -> None:
        """Note how the fleet is, once a second."""
        pods = [pod for pod in self.members.pods.values() if pod.alive]
        now = self.timeline.now()
        self._moments.append(
            Moment(
                now,
                len(pods),
                tuple(pod.sent for pod in pods),
                sum(pod.engine.waiting for pod in pods),
                sum(pod.engine.kv_usage for pod in pods) / max(len(pods), 1),
            )
        )
        if self._left:
            self.timeline.at(now + SAMPLE_SECONDS, self._sample)
