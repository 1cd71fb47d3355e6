"""vLLM's MooncakeConnector: both engines are told one transfer's id; the answer says nothing.

vLLM's own example sends both at once. Here the decode leg begins after the prefill leg, which a
prefill engine allows for: it keeps the blocks until they are asked for. So a prefill that fails
never leaves a decode engine waiting.

**Source:** vLLM ``vllm/distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_connector.py``
and its ``mooncake_connector_proxy.py``.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Raw

from epp.disagg.connectors.base import BadAnswer, Mode, Transfer
from epp.disagg.connectors.body import fields_of, limit, written
from epp.disagg.connectors.nixl import PARAMS
from epp.model import join_host_port


class Mooncake:
    """Names one transfer to both engines, and the prefill engine to the decode engine."""

    name: ClassVar[str] = "mooncake"
    mode: ClassVar[Mode] = Mode.SEQUENTIAL
    asks_engine_id: ClassVar[bool] = True

    def prefill_body(self, body: bytes, transfer: Transfer) -> bytes:
        """See `Connector.prefill_body`."""
        fields = fields_of(body)
        limit(fields, transfer.path)
        told = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": _id(transfer)}
        fields[PARAMS] = Raw(msgspec.json.encode(told))
        return written(fields)

    def decode_body(self, body: bytes, answer: bytes, transfer: Transfer) -> bytes:
        """See `Connector.decode_body`."""
        del answer
        if not transfer.engine_id:
            raise BadAnswer("no-engine-id")
        fields = fields_of(body)
        told = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": _id(transfer),
            "remote_engine_id": transfer.engine_id,
            "remote_bootstrap_addr": bootstrap_url(transfer),
        }
        fields[PARAMS] = Raw(msgspec.json.encode(told))
        return written(fields)

    def abort(self, transfer: Transfer) -> tuple[str, bytes] | None:
        """See `Connector.abort`."""
        del transfer
        return None


def bootstrap_url(transfer: Transfer) -> str:
    """Return where a prefill engine tells its ids, below ``/query``."""
    return f"http://{join_host_port(transfer.host, transfer.bootstrap_port)}"


def engine_id_in(page: bytes, rank: int) -> str:
    """Return the engine's id of a data-parallel rank from an answer to ``/query``; "" if none."""
    try:
        told = msgspec.json.decode(page, type=dict[str, dict[str, Raw]])
        return msgspec.json.decode(told[str(rank)]["engine_id"], type=str)
    except (msgspec.DecodeError, KeyError):
        return ""


def _id(transfer: Transfer) -> str:
    return f"xfer-{transfer.id}"
