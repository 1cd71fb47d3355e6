"""Plays a plan: open loop, where conversations begin at their time, or closed, a number at a time.

Every wait is bounded: a request by its timeout, a think time by the trace.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

import aiohttp
import msgspec

from epp.recording.record import Record
from epp.traffic.replay.ask import Answer, Target, ask, body_of
from epp.traffic.replay.plan import Step, Talk
from epp.traffic.replay.prompts import Prompts


class Sent(msgspec.Struct, frozen=True):
    """A request that was sent, and its answer."""

    step: Step
    at: float  #: seconds after the replay began
    delay: float  #: seconds that it was sent later than planned: the client's own lag
    answer: Answer
    think: float | None = None  #: seconds since the answer before

    def record(self) -> Record:
        """Return it as a record of a trace, to be compared with the one replayed."""
        answer = self.answer
        return msgspec.structs.replace(
            self.step.record,
            at=self.at,
            output_tokens=answer.output_tokens,
            think=self.think,
            ttft=answer.ttft,
            duration=answer.duration,
            counted_tokens=answer.prompt_tokens or None,
            cached_tokens=answer.cached_tokens,
            predicted_tokens=None,
            slot=None,
            reason="",
            outcome="failed" if answer.error else "",
        )


class Player:
    """Plays conversations.

    Args:
        target: where requests go.
        prompts: made up.
        tell: is told of each request when it has ended.
    """

    def __init__(self, target: Target, prompts: Prompts, tell: Callable[[Sent], None]) -> None:
        self.in_flight = 0
        self._target = target
        self._prompts = prompts
        self._tell = tell
        self._began = 0.0

    async def open_loop(self, talks: Sequence[Talk]) -> None:
        """Begin each conversation at its time."""
        async with self._http() as http, asyncio.TaskGroup() as group:
            self._began = time.monotonic()
            for talk in sorted(talks, key=lambda each: each.begins_at):
                await asyncio.sleep(max(talk.begins_at - self._now(), 0.0))
                group.create_task(self._play(http, talk, talk.begins_at), name="talk")

    async def closed_loop(self, talks: Sequence[Talk], at_once: int) -> None:
        """Have ``at_once`` conversations under way, until none is left; their times do not count."""
        left = deque(sorted(talks, key=lambda each: each.begins_at))

        async def worker(http: aiohttp.ClientSession) -> None:
            while left:
                await self._play(http, left.popleft(), self._now())

        async with self._http() as http, asyncio.TaskGroup() as group:
            self._began = time.monotonic()
            for _ in range(at_once):
                group.create_task(worker(http), name="worker")

    def _http(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    def _now(self) -> float:
        return time.monotonic() - self._began

    async def _play(self, http: aiohttp.ClientSession, talk: Talk, due: float) -> None:
        ended: float | None = None
        for i, step in enumerate(talk.steps):
            if i:
                due = self._due(step, sent=due, ended=ended or 0.0)
                await asyncio.sleep(max(due - self._now(), 0.0))
            prompt = self._prompts.of(step.record, step.name)
            body = body_of(self._target, prompt, step.record.output_tokens)
            at = self._now()
            self.in_flight += 1
            try:
                answer = await ask(http, self._target, body)
            finally:
                self.in_flight -= 1
            think = None if ended is None else at - ended
            self._tell(Sent(step, at, max(at - due, 0.0), answer, think))
            due, ended = at, self._now()

    @staticmethod
    def _due(step: Step, *, sent: float, ended: float) -> float:
        """When a later turn is to be sent: after its think time, never before the answer."""
        if step.think is not None:
            return ended + step.think
        return max(ended, sent + step.gap)
