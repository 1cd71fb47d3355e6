"""What happens between two simulated engines: a prefill, the cache's way, and what goes wrong.

A prefill is a request for one token whose blocks stay on a lease. The engine that decodes takes
blocks of its own first, then reads: caches leave an engine one after another over its own link,
whose speed depends on how far they go. Who comes before the prefill is done waits for it. Who comes
after the lease's end, or to an engine that died, computes the prompt itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import msgspec

from epp.disagg.remote.leg import LegFailed
from epp.schedule.topology import nearness
from epp.sim.fleet.pod import Pod
from epp.sim.fleet.scenario import Transfers
from epp.sim.fleet.timeline import Timeline
from epp.sim.model import Finished, Request


class Kept(msgspec.Struct, frozen=True):
    """A cache that waits to be read."""

    pod: Pod
    lease: str  #: id of the request that left it there
    tokens: int  #: of the prompt
    cached: int  #: of them, found cached by the engine that computed it


class Legs:
    """All prefills and transfers of a run.

    Args:
        transfers: how long caches take and last, and how many prefills fail.
        emptied: is told of each engine that is done with a prefill.
        draw: which fail.
    """

    def __init__(
        self,
        transfers: Transfers,
        timeline: Timeline,
        *,
        emptied: Callable[[Pod], None],
        draw: random.Random,
    ) -> None:
        self._transfers = transfers
        self._timeline = timeline
        self._emptied = emptied
        self._draw = draw
        self._made = 0
        self._answers: dict[str, asyncio.Future[Finished]] = {}  # by id of a prefill under way
        self._kept: dict[str, Kept] = {}  # by id of the request that will read it
        self._under_way: set[str] = set()  # requests whose prompt is being computed
        self._readers: dict[str, Pod] = {}  # by id of a request that waits for its prefill
        self._link_free_at: dict[int, float] = {}  # by number of the engine that gives

    async def prefill(self, pod: Pod | None, request: Request) -> Kept:
        """Have ``pod`` compute the prompt of ``request``; `fetch` will find it.

        Raises:
            LegFailed: as over HTTP.
        """
        if pod is None or not pod.alive:
            raise LegFailed("connection")
        if self._transfers.failures and self._draw.random() < self._transfers.failures:
            raise LegFailed("failed")
        self._made += 1
        lease = f"{request.id}/prefill-{self._made}"
        pod.sent += 1
        self._under_way.add(request.id)
        try:
            story = await self._computed(pod, _for_prefill(request, lease, pod.config.block_tokens))
        finally:
            self._under_way.discard(request.id)
            pod.sent -= 1
            self._emptied(pod)
        kept = Kept(pod, lease, story.prompt_tokens, story.cached_tokens)
        self._kept[request.id] = kept
        if (reader := self._readers.pop(request.id, None)) is not None:
            self.fetch(reader, request.id)
        return kept

    async def _computed(self, pod: Pod, request: Request) -> Finished:
        answer: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
        self._answers[request.id] = answer
        try:
            await asyncio.sleep(pod.pods.request_seconds)
            if not pod.alive:
                raise LegFailed("connection")
            pod.submit(request)
            return await answer
        except ValueError:
            raise LegFailed("refused", again=False, blame=False) from None
        except asyncio.CancelledError:
            if pod.alive:
                pod.drop(request.id)
            raise
        finally:
            del self._answers[request.id]

    def ended(self, pod: Pod, story: Finished) -> None:
        """A prefill is done, if it is one; its lease runs from this moment."""
        answer = self._answers.get(story.id)
        if answer is not None and not answer.done():
            answer.set_result(story)
        self._timeline.at(self._timeline.now() + pod.config.lease_seconds, pod.expire)

    def died(self, request_id: str) -> None:
        """The engine of a prefill died, if it is one."""
        answer = self._answers.get(request_id)
        if answer is not None and not answer.done():
            answer.set_exception(LegFailed("connection"))

    def comes(self, request_id: str) -> bool:
        """Say whether the prompt of a request is computed elsewhere, or is being computed."""
        return request_id in self._kept or request_id in self._under_way

    def forget(self, request_id: str) -> None:
        """A request is over: what nobody has read stays on its lease."""
        self._kept.pop(request_id, None)
        self._readers.pop(request_id, None)

    def fetch(self, pod: Pod, request_id: str) -> None:
        """Have ``pod`` read what waits for a request; it has the blocks for it."""
        now = self._timeline.now()
        if request_id in self._under_way:
            self._readers[request_id] = pod
            return
        kept = self._kept.pop(request_id, None)
        if kept is None or not _there(kept):
            self._timeline.at(now, pod.fetched, request_id, False)
            return
        free = max(now, self._link_free_at.get(kept.pod.number, 0.0))
        free += self._on_the_wire(kept, pod)
        self._link_free_at[kept.pod.number] = free
        self._timeline.at(free + self._transfers.latency_seconds, self._read, pod, request_id, kept)

    def _on_the_wire(self, kept: Kept, to: Pod) -> float:
        """Seconds."""
        (level,) = nearness(kept.pod.endpoint, [to.endpoint])
        size = kept.tokens * self._transfers.bytes_per_token
        return size / self._transfers.bytes_per_second(level)

    @staticmethod
    def _read(pod: Pod, request_id: str, kept: Kept) -> None:
        good = _there(kept)
        if good:
            kept.pod.release(kept.lease)
        if pod.alive:
            pod.fetched(request_id, good)


def _there(kept: Kept) -> bool:
    return kept.pod.alive and kept.lease in kept.pod.engine.leases


def _for_prefill(request: Request, lease: str, block_tokens: int) -> Request:
    blocks = request.blocks[: request.prompt_tokens // block_tokens]
    return msgspec.structs.replace(request, id=lease, output_tokens=1, blocks=blocks, keeps=True)
