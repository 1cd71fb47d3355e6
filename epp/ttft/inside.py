"""What one engine has admitted to its batch and not computed yet, by what it counts of its cache.

Scraped queues tell how many requests wait, not how long the prompt is that is being computed. An
engine counts the tokens of each prompt, and those that its cache held, when it admits it: two scrapes
tell what came between them, whoever sent it. It admits nobody before it is done with all earlier
prompts, so what is left is of the last ones that it admitted, less at least one step: the counts are
told at a step's end.

**Source:** vLLM V1 counts ``vllm:prefix_cache_queries`` and ``_hits`` where a waiting request is
scheduled first (vllm/v1/core/kv_cache_manager.py, ``get_computed_blocks``), and admits waiting
requests with the tokens of a step that running ones leave (vllm/v1/core/sched/scheduler.py).
"""

from __future__ import annotations

from epp.model import CacheCounts, Load
from epp.ttft.backlog import STEP
from epp.ttft.work import weight


class Inside:
    """The prompts in the batch of one engine. Time is an argument."""

    __slots__ = ("_at", "_left", "_told")

    def __init__(self) -> None:
        self._told: CacheCounts | None = None
        self._at = 0.0
        self._left = 0.0

    def see(self, load: Load, per_token: float) -> float | None:
        """Return the work that is left at a new scrape; None if the engine counts no admissions.

        Args:
            load: the scrape.
            per_token: seconds that a token of work takes there.
        """
        counts = load.counts if load.counts is not None and load.counts.admitted else None
        before, self._told = self._told, counts
        done = max(load.at - self._at, 0.0) / per_token
        self._at = load.at
        if counts is None:
            self._left = 0.0
            return None
        if not load.queued and load.running == 0:
            self._left = 0.0
        elif before is not None:
            self._left = self._after(before, counts, done)
        return self._left

    def _after(self, before: CacheCounts, counts: CacheCounts, done: float) -> float:
        """Return what is left of what was left and of what came, where ``done`` could be computed.

        What came did so in the middle of the time that what was there before left.
        """
        prompts = counts.queries - before.queries
        if prompts < 0.0:
            return 0.0  # another process counts from nothing
        if prompts == 0.0:
            return max(self._left - done, 0.0)
        fresh = prompts - (counts.hits - before.hits)
        spare = max(done - self._left, 0.0) / 2.0
        left = max(fresh - max(STEP, spare), 0.0)
        return left * weight(left, prompts)
