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

from epp.recording.record import Count, Record, check_blocks
from epp.traffic.formats.reading import NESTED, Chains, Found, Source, attempted, numbered
from epp.traffic.trace import Bad

block_tokens = 64

_Seconds = Annotated[float, Meta(ge=0, le=1e14)]


class Call(msgspec.Struct):
    """A request, or a sub-agent that makes some."""

    t: _Seconds
    type: str = "n"
    input: Count | None = msgspec.field(default=None, name="in")
    output: Count | None = msgspec.field(default=None, name="out")
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
    known: set[str] = set()
    if len(lines) > 1 and not _whole(lines[0][1]) and not any(map(_begins, lines[1:])):
        # One object, over many lines.
        lines = [(lines[0][0], "".join(line for _, line in lines))]
    for where, line in lines:
        try:
            session = msgspec.json.decode(line, type=Session)
        except msgspec.DecodeError as error:
            yield Bad(where, str(error))
            continue
        except RecursionError:
            yield Bad(where, NESTED)
            continue
        if session.block_size != source.block_tokens:
            yield Bad(where, f"block_size is {session.block_size}, not {source.block_tokens}")
            continue
        if session.id in known:
            yield Bad(where, f"session {session.id!r} is there twice")
            continue
        known.add(session.id)
        for place, call, agent in _calls(session.requests, "$.requests", ""):
            at = f"{where}: {place}"
            yield attempted(at, _reading(session, call, agent=agent, chains=chains))


def _whole(line: str) -> bool:
    try:
        msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    except RecursionError:
        pass  # `read` says so
    return True


def _begins(line: tuple[str, str]) -> bool:
    """Whether a session is in that line, though it may be broken."""
    return '"requests"' in line[1] and '"id"' in line[1]


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
        if call.input is None or call.output is None:
            raise KeyError("in" if call.input is None else "out")
        check_blocks(len(call.hash_ids), session.block_size, call.input)
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
