"""What a picker shows of its knowledge, of its memory and of its work."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from epp.local import fleet
from epp.local.processes import resident_bytes
from epp.traffic.figures import Sample

PAGE = "/debug/plugins/state"
PRODUCER = "precise-prefix-cache-producer"
SECONDS = 10.0  #: that the page may take


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A moment. Counts are since the start, unless said otherwise."""

    seconds: float  #: since the start
    requests: int  #: since the last moment
    errors: int
    hit_rate: float | None  #: since the last moment, as engines count
    by_events: float | None  #: share of requests whose prefix events told
    exact: int  #: engines that are trusted wholly
    engines: int
    reasons: dict[str, int]  #: of the others
    gaps: int
    lost: int  #: messages
    replays: int
    restarts: int
    blocks: int
    megabytes: float  #: of the picker
    core_percent: float  #: of the picker, since the last moment


class Watch:
    """Looks at a picker now and then.

    Args:
        picker: the one.
        samples: answers, as they come.
    """

    def __init__(self, picker: fleet.Picker, samples: Sequence[Sample]) -> None:
        self._picker = picker
        self._samples = samples
        self._read = 0  # samples
        self._began = asyncio.get_running_loop().time()
        self._looked, self._cpu = self._began, fleet.cpu_seconds(picker.child.pid)

    async def look(self) -> Seen:
        """Return what there is to see.

        Raises:
            RuntimeError: the picker does not answer.
        """
        state = await self._state()
        fresh = self._samples[self._read :]
        self._read += len(fresh)
        now, cpu = asyncio.get_running_loop().time(), fleet.cpu_seconds(self._picker.child.pid)
        spent = (cpu - self._cpu) / max(now - self._looked, 1e-9)
        self._looked, self._cpu = now, cpu
        engines = state["engines"]
        known: Counter[str] = Counter()
        for name, count in state["requests"].items():
            known[name.split()[0]] += count
        return Seen(
            seconds=now - self._began,
            requests=len(fresh),
            errors=sum(bool(each.error) for each in self._samples),
            hit_rate=hit_rate(fresh),
            by_events=known["events"] / known.total() if known.total() else None,
            exact=sum(each["trust"] == "exact" for each in engines),
            engines=len(engines),
            reasons=dict(Counter(each["reason"] for each in engines if each["reason"])),
            gaps=sum(each["gaps"] for each in engines),
            lost=sum(each["lost"] for each in engines),
            replays=sum(each["replays"] for each in engines),
            restarts=sum(each["restarts"] for each in engines),
            blocks=state["index"]["blocks"],
            megabytes=resident_bytes(self._picker.child.pid) / 1e6,
            core_percent=spent * 100,
        )

    async def _state(self) -> Any:
        url = f"http://127.0.0.1:{self._picker.ports.admin}{PAGE}"
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as http, http.get(url) as answer:
                page = await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RuntimeError(f"the picker does not answer: {type(error).__name__}") from error
        return page[PRODUCER]


def hit_rate(samples: Sequence[Sample]) -> float | None:
    """Return the share of prompts' tokens that engines found cached; None if there are none."""
    prompt = sum(each.prompt_tokens for each in samples)
    return sum(each.cached_tokens for each in samples) / prompt if prompt else None
