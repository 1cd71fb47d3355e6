"""``kv_transfer_params`` of a request and of its answer, as vLLM's NIXL connector has them; pure.

**Source:** bodies, answers and crashes of vLLM 0.32 servers with ``NixlConnector``, as observed.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from epp.sim.asked import Refused

Role = Literal["", "prefill", "decode", "both"]  #: "" has no connector
ROLES = ("", "prefill", "decode", "both")


class Crashed(Exception):
    """The engine dies of this request, as vLLM's does by an assertion."""


class Take(msgspec.Struct, frozen=True):
    """The prompt's KV is to be fetched from another engine."""

    blocks: tuple[int, ...]  #: of that engine
    engine_id: str
    request_id: str  #: of the prefill there; told when its blocks are not needed any more
    host: str
    port: int


class _Told(msgspec.Struct):
    remote_block_ids: list[list[int]]
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int


class Transfer(msgspec.Struct, frozen=True):
    """What a request's parameters ask for; at most one of both."""

    keeps: bool = False  #: another engine will fetch the prompt's KV (``do_remote_decode``)
    take: Take | None = None


NOTHING = Transfer()


def read(value: Any, role: str) -> Transfer:
    """Understand the parameters sent to an engine with this role.

    Raises:
        Refused: they are no object, or a prefill engine is asked to fetch.
        Crashed: they say that there is KV to fetch, and not where.
    """
    if value is None:
        return NOTHING
    if not isinstance(value, dict):
        message = "1 validation error:\n  {'type': 'dict_type', 'loc': 'body.kv_transfer_params'}"
        raise Refused(400, message, kind="Bad Request", param="body.kv_transfer_params")
    if not role:
        return NOTHING
    if value.get("do_remote_prefill"):
        if role == "prefill":
            raise Refused(500, "Internal server error", kind="InternalServerError")
        return Transfer(take=_take(value))
    return Transfer(keeps=bool(value.get("do_remote_decode")) and role != "decode")


def _take(value: dict[str, Any]) -> Take:
    try:
        told = msgspec.convert(value, _Told)
    except msgspec.ValidationError as error:
        raise Crashed(f"do_remote_prefill without what it needs: {error}") from None
    blocks = tuple(block for group in told.remote_block_ids for block in group)
    place = (told.remote_host, told.remote_port)
    return Take(blocks, told.remote_engine_id, told.remote_request_id, *place)


def answer(take: Take, tokens: int, cached: int) -> dict[str, Any]:
    """Return what a prefill engine answers: where ``tokens`` of KV are."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(take.blocks)],
        "remote_engine_id": take.engine_id,
        "remote_request_id": take.request_id,
        "remote_host": take.host,
        "remote_port": take.port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": cached,
    }
