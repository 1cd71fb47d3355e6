"""WEKA's agent traces: one JSON object per session, with its requests and those of sub-agents.

A file may hold one session, or one per line. Block ids of a session mean nothing in another one.

**Source:** callanjfox/kv-cache-tester and aiperf's ``weka_trace``: ``id``, ``block_size``,
``hash_id_scope`` "local", ``requests`` with ``t`` in seconds since the session began, ``type``
``n`` or ``s`` (streamed) or ``subagent``, ``in``, ``out``, ``hash_ids``, ``think_time``,
``api_time``, ``ttft`` in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from epp.recording.record import Record
from epp.traffic.formats.reading import Chains, Found, Source, attempted, numbered
from epp.traffic.trace import Bad

block_tokens = 64

_Count = Annotated[int, Meta(ge=0)]
_Seconds = Annotated[float, Meta(ge=0)]


class Call(msgspec.Struct):
    """A request, or a sub-agent that makes some."""

    t: _Seconds
    type: str = "n"
    input: _Count = msgspec.field(default=0, name="in")
    output: _Count = msgspec.field(default=0, name="out")
    hash_ids: tuple[int, ...] = ()
    think_time: _Seconds | None = None
    api_time: _Seconds | None = None
    ttft: _Seconds | None = None
    agent_id: str = ""
    requests: tuple[Call, ...] = ()


class Session(msgspec.Struct):
    """A session."""

    id: str
    requests: tuple[Call, ...]
    block_size: Annotated[int, Meta(gt=0)] = block_tokens
    hash_id_scope: str = "local"


def read(source: Source) -> Found:
    """See `reading.Reader.read`."""
    chains = Chains()
    lines = list(numbered(source))
    if len(lines) > 1 and not _whole(lines[0][1]):  # one object, over many lines
        lines = [(lines[0][0], "".join(line for _, line in lines))]
    for where, line in lines:
        try:
            session = msgspec.json.decode(line, type=Session)
        except msgspec.DecodeError as error:
            yield Bad(where, str(error))
            continue
        if session.block_size != source.block_tokens:
            yield Bad(where, f"block_size is {session.block_size}, not {source.block_tokens}")
            continue
        for place, call, agent in _calls(session.requests, "$.requests", ""):
            at = f"{where}: {place}"
            yield attempted(at, _reading(session, call, agent=agent, chains=chains))


def _whole(line: str) -> bool:
    try:
        msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return True


def _calls(calls: tuple[Call, ...], path: str, agent: str) -> Iterator[tuple[str, Call, str]]:
    """All requests with their place, those of sub-agents too."""
    for i, call in enumerate(calls):
        place = f"{path}[{i}]"
        if call.type == "subagent":
            inner = call.agent_id or f"{agent}{i}"
            yield from _calls(call.requests, f"{place}.requests", inner)
        else:
            yield place, call, agent


def _reading(session: Session, call: Call, *, agent: str, chains: Chains) -> Callable[[], Record]:
    def reading() -> Record:
        most = -(-call.input // session.block_size)
        if len(call.hash_ids) > most:
            raise ValueError(f"{len(call.hash_ids)} blocks for {call.input} input tokens")
        scope = session.id if session.hash_id_scope == "local" else ""
        return Record(
            at=call.t,
            input_tokens=call.input,
            output_tokens=call.output,
            runs=chains.runs(scope, call.hash_ids),
            session=f"{session.id}/{agent}" if agent else session.id,
            think=call.think_time,
            ttft=call.ttft,
            duration=call.api_time,
        )

    return reading
