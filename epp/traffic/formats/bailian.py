"""Alibaba's Bailian traces: JSON lines with chats that name their parent.

Block ids are of 16 tokens and name a block's own content, so they are chained here.

**Source:** qwen-bailian-usagetraces-anon: ``chat_id``, ``parent_chat_id`` (-1 for the first turn),
``timestamp`` in seconds, ``input_length``, ``output_length``, ``type``, ``turn``, ``hash_ids``.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from epp.recording.record import Count, Record, check_blocks
from epp.traffic.formats.reading import Chains, Found, Row, Source, objects

block_tokens = 16

_ROOT = -1


class Chat(msgspec.Struct):
    """One line."""

    chat_id: int
    timestamp: Annotated[float, Meta(ge=0, le=1e14)]  #: seconds
    input_length: Count
    output_length: Count
    parent_chat_id: int = _ROOT
    type: str = ""
    turn: int = 1
    hash_ids: tuple[int, ...] = ()


def read(source: Source) -> Found:
    """See `reading.Reader.read`."""
    chains = Chains()
    sessions: dict[int, str] = {}

    def record(row: Row) -> Record:
        chat = msgspec.convert(row, Chat, strict=False)
        check_blocks(len(chat.hash_ids), block_tokens, chat.input_length)
        root = chat.parent_chat_id == _ROOT
        # A parent of before the trace began still tells its children apart from others.
        session = str(chat.chat_id) if root else _session(sessions, chat.parent_chat_id)
        sessions[chat.chat_id] = session
        return Record(
            at=chat.timestamp,
            input_tokens=chat.input_length,
            output_tokens=chat.output_length,
            runs=chains.runs("", chat.hash_ids),
            id=str(chat.chat_id),
            parent="" if root else str(chat.parent_chat_id),
            session=session,
            business=chat.type,
        )

    return objects(source, record)


def _session(sessions: dict[int, str], parent: int) -> str:
    return sessions.get(parent, str(parent))
