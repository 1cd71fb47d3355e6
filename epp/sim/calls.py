"""One HTTP request at a model server: its sequences in the engine, until all have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from epp.sim import cache, tokenizer
from epp.sim.asked import NATURAL_TOKENS, Asked, Refused
from epp.sim.cache import Ids
from epp.sim.model import Finished, Request
from epp.sim.openai import Choice, Spent
from epp.sim.transfer.params import NOTHING, Take, Transfer

_SPOILED = 7919  #: added to a choice, so that its answer is another

Event = tuple[int, int, Finished | None]  #: choice, tokens made so far, its end


class Plan:
    """What one sequence will do: decided when it is asked, so that its blocks can be hashed."""

    def __init__(self, request: Request, prompt: Ids, output: Ids) -> None:
        self.request = request
        self.prompt = prompt
        self.output = output
        self.pieces = output.astype("<u4").tobytes()  #: four bytes per token

    def spoil(self) -> None:
        """Answer something else: the KV that the answer is made from is not this prompt's."""
        self.output = tokenizer.answer(self.prompt, len(self.output), choice=_SPOILED)
        self.pieces = self.output.astype("<u4").tobytes()

    def piece(self, token: int) -> bytes:
        """The text of one output token, counted from 0."""
        return self.pieces[token * 4 : token * 4 + 4]


class Room:
    """Limits of a server that a request is checked against."""

    def __init__(
        self, *, max_model_len: int, block_tokens: int, seed: int, tells_tokens: bool = False
    ) -> None:
        self.tells_tokens = tells_tokens  #: to the engine, for its journal
        self.max_model_len = max_model_len
        self.block_tokens = block_tokens
        self.seed = seed

    def check(self, asked: Asked) -> None:
        """Raise `Refused` if prompt or answer are too long for the model."""
        most, limit = self.max_model_len, asked.max_tokens
        if limit is not None and limit > most:
            message = (
                f"max_tokens={limit} cannot be greater than max_model_len={most}. "
                f"Please request fewer output tokens. (parameter=max_tokens, value={limit})"
            )
            raise Refused(400, message, param="max_tokens")
        longest = max(map(len, asked.prompts))
        needed = 1 if limit is None else limit
        if longest + needed > most:
            why = f"and {needed} output tokens were requested."
            if longest > most:
                why = "which exceeds this limit even without any output tokens. "
                why += "Please reduce the length of the input prompt."
            message = (
                f"This model's maximum context length is {most} tokens. However, your prompt "
                f"contains {longest} input tokens, {why} "
                f"(parameter=input_tokens, value={longest})"
            )
            raise Refused(400, message, param="input_tokens")

    def output_tokens(self, asked: Asked, prompt: Ids) -> tuple[int, str]:
        """Return how many tokens the answer has, and why it ends there."""
        room = self.max_model_len - len(prompt)
        if asked.max_tokens is not None:
            return asked.max_tokens, "stop" if asked.api == "embeddings" else "length"
        natural = tokenizer.draw(prompt, *NATURAL_TOKENS, seed=asked.seed)
        if asked.ignore_eos or natural > room:
            return room, "length"
        return natural, "stop"

    def plan(
        self, asked: Asked, names: Sequence[str], adapter: str, transfer: Transfer = NOTHING
    ) -> list[Plan]:
        """Plan all sequences of a request; ``names[i]`` is the id of choice ``i``."""
        chained_on = cache.root(adapter=adapter, salt=asked.salt)
        plans = []
        for index, name in enumerate(names):
            prompt = asked.prompts[index // asked.n]
            tokens, reason = self.output_tokens(asked, prompt)
            output = tokenizer.answer(
                prompt, tokens, seed=self.seed + asked.seed, choice=index % asked.n
            )
            whole = np.concatenate((prompt, output)) if tokens else prompt
            hashes = cache.block_hashes(whole, self.block_tokens, chained_on)
            told = whole.astype("<u4").tobytes() if self.tells_tokens else b""
            request = Request(
                *(name, len(prompt), tokens, hashes, adapter, reason, told, asked.salt),
                fetches=transfer.take is not None,
                keeps=transfer.keeps,
            )
            plans.append(Plan(request, prompt, output))
        return plans


class Call:
    """The sequences of one HTTP request; the engine's results go in, events come out."""

    def __init__(
        self,
        asked: Asked,
        plans: Sequence[Plan],
        *,
        details: bool,
        block_tokens: int,
        take: Take | None = None,
    ) -> None:
        self.asked = asked
        self.take = take
        self.plans = plans
        self.transfer: Mapping[str, Any] | None = None  #: tells where a prefill's KV is
        self.failure: Refused | None = None  #: why it has no answer
        self.open = len(plans)  #: sequences that have not ended
        self._details = details
        self._block_tokens = block_tokens
        self._made = [0] * len(plans)
        self._ends: list[Finished | None] = [None] * len(plans)
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None

    def made(self, index: int) -> int:
        """Tokens of a choice so far."""
        return self._made[index]

    def emitted(self, index: int, end: Finished | None) -> None:
        """Note one more token of a choice, its last one if ``end`` is given."""
        self._made[index] += 1
        if self.asked.stream or end is not None:
            self._note(index, end)

    def ended(self, index: int, end: Finished) -> None:
        """Note the end of a choice without a token."""
        self._note(index, end)

    def fail(self, why: Refused) -> None:
        """End all choices: the call is answered with an error."""
        self.failure, self.open = self.failure or why, 0
        self._wake()

    def _note(self, index: int, end: Finished | None) -> None:
        if end is not None:
            if self._ends[index] is not None:
                return
            self._ends[index] = end
            self.open -= 1
        self._events.append((index, self._made[index], end))
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and self._due():
            self._waiter.set_result(None)

    def _due(self) -> bool:
        return self.open == 0 or (self.asked.stream and bool(self._events))

    async def events(self) -> list[Event]:
        """Wait for what is new; without a stream, until all is there."""
        if not self._due():
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        events, self._events = self._events, []
        return events

    @property
    def cached(self) -> int:
        """Prompt tokens found in the cache, by choices that have ended."""
        firsts = self._ends[:: self.asked.n]
        return sum(end.cached_tokens for end in firsts if end is not None)

    def spent(self) -> Spent:
        """Token counts so far."""
        asked, cached = self.asked, self.cached
        prompt, output = sum(map(len, asked.prompts)), sum(self._made)
        if not self._details:
            return Spent(prompt, output, None)
        if asked.api != "chat":
            return Spent(prompt, output, cached)
        full = prompt // self._block_tokens * self._block_tokens
        return Spent(prompt, output, cached, max(full - cached, 0))

    def choices(self) -> list[Choice]:
        """Return the answers of a call that has ended."""
        return [
            Choice(
                index,
                plan.output[: self._made[index]],
                end.reason if end else "abort",
                self.transfer,
            )
            for index, (plan, end) in enumerate(zip(self.plans, self._ends, strict=True))
        ]
