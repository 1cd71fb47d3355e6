"""One request of a trace, without its content: when, how long, what it shares, how it went.

The line format is Mooncake's, the one that most tools read, with more fields beside its own:
who asked (class, tenant, session, parent), how the answer went, and `hash_rle`, the block ids as
runs of consecutive numbers. Ids of a prompt that nobody sent before are consecutive, so runs are
short where lists are long: a trace of coding agents shrinks to a four-hundredth.

**Source:** Mooncake's FAST'25 traces: ``timestamp`` in milliseconds, ``input_length`` and
``output_length`` in tokens, ``hash_ids`` of 512 tokens each where equal ids mean equal prefixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Annotated, Any

import msgspec
from msgspec import Meta

MOONCAKE_BLOCK = 512  #: tokens per block where a line does not say

MOST_BLOCKS = 2**22  #: of a prompt: all ids of a longer one would take a gigabyte
LARGEST_NUMBER = 2**62  #: of a block, written in a run: what is counted with fits 64 bits

Runs = tuple[tuple[int, int], ...]
"""First id and count of each run of consecutive ids."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Times in seconds, lengths in tokens; None and "" are "not told"."""

    at: float  #: when it arrived, since the trace began
    input_tokens: int
    output_tokens: int
    runs: Runs = ()  #: ids of its blocks, in order; equal ids mean equal whole prefixes
    id: str = ""  #: within the trace
    parent: str = ""  #: `id` of the request that it continues
    session: str = ""  #: a pseudonym
    business: str = ""  #: class of business
    tenant: str = ""  #: a pseudonym
    family: str = ""  #: a pseudonym of the prefix it shares with other sessions
    think: float | None = None  #: from the end of its parent's answer until it arrived
    ttft: float | None = None  #: from its arrival
    duration: float | None = None  #: until the answer's end, from its arrival
    counted_tokens: int | None = None  #: prompt tokens as the engine counted them
    cached_tokens: int | None = None  #: of these, as the engine reported
    predicted_tokens: int | None = None  #: believed cached when it was sent there
    slot: int | None = None  #: which pod served it, by a number that the pod keeps
    reason: str = ""  #: why there, a fixed word
    outcome: str = ""  #: a fixed word; "" if it is not told, or was completed

    @property
    def hash_ids(self) -> tuple[int, ...]:
        """Its blocks, one id each."""
        return expanded(self.runs)


Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Milliseconds = Annotated[float, Meta(ge=0, le=1e17)]
Name = str | int


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A record as it is written: one JSON object per line."""

    timestamp: Milliseconds
    input_length: Count
    output_length: Count
    hash_ids: Sequence[int] = ()
    hash_rle: Runs = ()  #: instead of `hash_ids`
    block_size: Annotated[int, Meta(gt=0)] = MOONCAKE_BLOCK
    id: Name = ""
    parent: Name = ""
    session_id: Name = ""
    business: str = msgspec.field(default="", name="class")
    tenant: Name = ""
    family: str = ""
    think_ms: Milliseconds | None = None
    ttft_ms: Milliseconds | None = None
    e2e_ms: Milliseconds | None = None
    counted_tokens: Count | None = None
    cached_tokens: Count | None = None
    predicted_tokens: Count | None = None
    slot: Count | None = None
    reason: str = ""
    outcome: str = ""


def record_of(line: Line) -> Record:
    """Read a line's values.

    Raises:
        ValueError: the block ids do not fit the prompt.
    """
    runs = line.hash_rle or shortened(line.hash_ids)
    blocks = sum(count for _, count in runs)
    if any(count < 1 for _, count in runs):
        raise ValueError("a run of block ids has at least one")
    if any(not 0 <= first < LARGEST_NUMBER for first, _ in line.hash_rle):
        raise ValueError("hash_rle has numbers from 0 to 2**62")
    check_blocks(blocks, line.block_size, line.input_length)
    return Record(
        at=line.timestamp / 1000,
        input_tokens=line.input_length,
        output_tokens=line.output_length,
        runs=runs,
        id=str(line.id),
        parent=str(line.parent),
        session=str(line.session_id),
        business=line.business,
        tenant=str(line.tenant),
        family=line.family,
        think=_seconds(line.think_ms),
        ttft=_seconds(line.ttft_ms),
        duration=_seconds(line.e2e_ms),
        counted_tokens=line.counted_tokens,
        cached_tokens=line.cached_tokens,
        predicted_tokens=line.predicted_tokens,
        slot=line.slot,
        reason=line.reason,
        outcome=line.outcome,
    )


def check_blocks(blocks: int, of: int, tokens: int) -> None:
    """Refuse more ``blocks`` than a prompt has.

    Raises:
        ValueError: they do not fit.
    """
    if blocks > MOST_BLOCKS:
        raise ValueError(f"{blocks} blocks in one prompt")
    if blocks > -(-tokens // of):
        raise ValueError(
            f"{blocks} blocks of {of} tokens for {tokens} input tokens (--block-tokens N says their "
            "size where the file does not)"
        )


def line_of(record: Record, block_tokens: int, *, runs: bool = True) -> Line:
    """Return what is written of ``record``; ``runs`` writes `Line.hash_rle`, not `hash_ids`."""
    ids: dict[str, Any] = {"hash_rle": record.runs} if runs else {"hash_ids": record.hash_ids}
    return Line(
        timestamp=_milliseconds(record.at) or 0.0,
        input_length=record.input_tokens,
        output_length=record.output_tokens,
        block_size=block_tokens,
        id=record.id,
        parent=record.parent,
        session_id=record.session,
        business=record.business,
        tenant=record.tenant,
        family=record.family,
        think_ms=_milliseconds(record.think),
        ttft_ms=_milliseconds(record.ttft),
        e2e_ms=_milliseconds(record.duration),
        counted_tokens=record.counted_tokens,
        cached_tokens=record.cached_tokens,
        predicted_tokens=record.predicted_tokens,
        slot=record.slot,
        reason=record.reason,
        outcome=record.outcome,
        **ids,
    )


def shortened(ids: Iterable[int]) -> Runs:
    """Return ``ids`` as runs of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    first, count = 0, 0
    for each in ids:
        if count and each == first + count:
            count += 1
            continue
        if count:
            runs.append((first, count))
        first, count = each, 1
    if count:
        runs.append((first, count))
    return tuple(runs)


def expanded(runs: Runs) -> tuple[int, ...]:
    """Return the ids that ``runs`` stand for."""
    return tuple(chain.from_iterable([range(first, first + count) for first, count in runs]))


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
