"""What a trace's requests are to engines and pickers: block hashes for the one, bytes for the other.

A block of the trace is cut into an engine's smaller ones, each named by a number. The token ids of a
block are that number, over and over, so equal blocks are equal to whatever reads a prompt, and
prompts are made at the speed of a copy. The full blocks of an answer are those with which the next
turn of the conversation goes on, where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from epp.headers import SESSION_ID
from epp.model import Arrival, InferenceRequest, Tokens
from epp.recording.record import Record
from epp.sim.model import Request
from epp.traffic.replay.plan import Step, Talk

PATH = "/v1/completions"
MODEL = "sim"
_UNSHARED = 1 << 48  #: names of blocks that only one request has start here
_WORD = 2  #: tokens that one name of a block fills


class Job(msgspec.Struct, gc=False):
    """One request of the scenario, with where it stands in its conversation."""

    id: str
    record: Record
    talk: int  #: position of its conversation
    turn: int
    following: Record | None = None  #: the next turn

    @property
    def business(self) -> str:
        """Its class; "all" if the trace names none."""
        return self.record.business or "all"


def jobs_of(talk: Talk, position: int) -> list[Job]:
    """Return the requests of a conversation, in order."""
    steps: Sequence[Step] = talk.steps
    after = [step.record for step in steps[1:]] + [None]
    return [
        Job(f"{position}-{turn}", step.record, position, turn, following)
        for turn, (step, following) in enumerate(zip(steps, after, strict=True))
    ]


class Maker:
    """Makes what engines and pickers see of jobs.

    Args:
        trace_block: tokens of a block of the trace.
        block_tokens: tokens of an engine's block; divides the former.
        with_tokens: tell pickers token ids, as an exact index needs.
    """

    def __init__(self, trace_block: int, block_tokens: int, *, with_tokens: bool) -> None:
        self._trace_block = trace_block
        self._block = block_tokens
        self._parts = trace_block // block_tokens
        self._with_tokens = with_tokens
        self._next = _UNSHARED

    def request(self, job: Job) -> Request:
        """Return what an engine is asked: prompt and answer as blocks."""
        record = job.record
        output = max(record.output_tokens, 1)
        full = (record.input_tokens + output) // self._block
        blocks = self._known(record, record.input_tokens // self._block)
        if len(blocks) < full and job.following is not None:
            blocks += self._continued(job, blocks, full)
        blocks += self._novel(full - len(blocks))
        return Request(job.id, record.input_tokens, output, blocks)

    def arrival(self, job: Job, request: Request, now: float) -> Arrival:
        """Return what a picker is asked, understood."""
        record = job.record
        prompt = self.tokens(request.blocks[: record.input_tokens // self._block])
        prompt += self.tokens([self._next])[: (record.input_tokens * 4) - len(prompt)]
        session = record.session or str(job.talk)
        headers = {SESSION_ID: session}
        known = Tokens(prompt, record.input_tokens, "client") if self._with_tokens else None
        understood = InferenceRequest(
            id=job.id,
            headers=headers,
            body=b"",
            path=PATH,
            format="completions",
            model=MODEL,
            target_model=MODEL,
            prompt=prompt,
            prompt_tokens=record.input_tokens,
            tokens=known,
            streaming=True,
            objective=record.business,
            flow=record.tenant,
            arrived_at=now,
            session=session,
        )
        return Arrival(job.id, headers, understood=understood)

    def tokens(self, blocks: Sequence[int]) -> bytes:
        """Return the token ids of engine blocks, four bytes each."""
        names = np.array(blocks, dtype=np.uint64)
        return np.repeat(names, self._block // _WORD).tobytes()

    def _known(self, record: Record, most: int) -> list[int]:
        """Names of the blocks that the trace tells, at most so many."""
        found: list[int] = []
        parts = self._parts
        for first, count in record.runs:
            found.extend(range(first * parts, (first + count) * parts))
        return found[:most]

    def _continued(self, job: Job, blocks: Sequence[int], full: int) -> list[int]:
        """Names that the next turn gives to the blocks of this answer."""
        if job.following is None:
            return []
        length = min(full, job.following.input_tokens // self._block)
        after = self._known(job.following, length)
        shared = len(blocks) // self._parts * self._parts
        if after[:shared] != list(blocks[:shared]):
            return []
        return after[len(blocks) :]

    def _novel(self, count: int) -> list[int]:
        """Names that nothing else has."""
        first = self._next
        self._next += count + 1
        return list(range(first, first + count))
