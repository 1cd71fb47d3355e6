"""A trace: the records of some time, in order, and the size of their blocks."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from epp.errors import ConfigError
from epp.recording.record import Record, Runs


class Bad(msgspec.Struct, frozen=True):
    """A line that could not be read."""

    where: str  #: ``file:line``
    why: str


class TraceError(ConfigError):
    """A trace cannot be used; the message says where and why."""


class Trace(msgspec.Struct, frozen=True):
    """Records in the order of their arrival; the first one arrives at 0."""

    records: tuple[Record, ...]
    block_tokens: int  #: tokens of each block
    bad: tuple[Bad, ...] = ()  #: lines of its files that are not in it

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.records[-1].at if self.records else 0.0


def trace_of(records: Iterable[Record], block_tokens: int, bad: Iterable[Bad] = ()) -> Trace:
    """Return the records as a trace: in order of arrival, from 0 on."""
    ordered = sorted(records, key=lambda record: record.at)
    if ordered and (began := ordered[0].at):
        ordered = [msgspec.structs.replace(each, at=each.at - began) for each in ordered]
    return Trace(tuple(ordered), block_tokens, tuple(bad))


def full_blocks(record: Record, block_tokens: int) -> tuple[int, ...]:
    """Return the ids of a prompt's full blocks: engines cache no others."""
    return record.hash_ids[: record.input_tokens // block_tokens]


def regrouped(trace: Trace, block_tokens: int) -> Trace:
    """Return the trace with larger blocks: each takes the id of its last small one.

    A block that is not full keeps no id: nobody can tell what would have stood in it.

    Raises:
        TraceError: ``block_tokens`` is no multiple of the trace's.
    """
    times, rest = divmod(block_tokens, trace.block_tokens)
    if rest or not times:
        raise TraceError(f"blocks of {trace.block_tokens} tokens cannot become {block_tokens}")
    if times == 1:
        return trace
    records = tuple(
        msgspec.structs.replace(each, runs=_every(each, times)) for each in trace.records
    )
    return Trace(records, block_tokens, trace.bad)


def _every(record: Record, times: int) -> Runs:
    return tuple((each, 1) for each in record.hash_ids[times - 1 :: times])
