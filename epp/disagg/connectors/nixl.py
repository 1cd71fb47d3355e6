"""vLLM's NixlConnector: the prefill engine keeps the blocks and says where they are.

**Source:** vLLM ``docs/features/nixl_connector_usage.md``; bodies and answers captured from two
vLLM 0.32 servers; ``nixlv2`` of llm-d's sidecar.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from epp.disagg.connectors.base import BadAnswer, Mode, Transfer
from epp.disagg.connectors.body import fields_of, limit, written

PARAMS = "kv_transfer_params"
_ASK = Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)


Said = Annotated[str, Meta(min_length=1)]
Block = Annotated[int, Meta(ge=0)]
Ranks = Annotated[int, Meta(ge=1)]


class _Told(msgspec.Struct):
    """What a decode engine needs; without one of these a vLLM server stops altogether."""

    do_remote_prefill: bool
    remote_engine_id: Said
    remote_host: Said
    remote_port: Annotated[int, Meta(ge=1, le=65535)]
    remote_block_ids: Annotated[list[list[Block] | Block], Meta(min_length=1)]
    """Of each group of layers; of older engines those of the only one."""
    remote_request_id: Said | UnsetType = UNSET
    """Told since before there were groups. Without it such an engine never begins to decode."""
    do_remote_decode: bool | None = None  #: then the engine that decodes would keep its blocks, too
    tp_size: Ranks = 1
    dcp_size: Ranks = 1
    pp_size: Ranks = 1
    remote_num_tokens: Block | None = None
    remote_block_size: Ranks | None = None
    remote_blocks_expiry_time: float | None = None


class _Answer(msgspec.Struct):
    kv_transfer_params: Raw = Raw(b"null")


_answer = msgspec.json.Decoder(_Answer).decode
_told = msgspec.json.Decoder(_Told).decode


class Nixl:
    """Asks the prefill engine to keep the cache, and hands its answer on as it is."""

    name: ClassVar[str] = "nixlv2"
    mode: ClassVar[Mode] = Mode.SEQUENTIAL
    asks_engine_id: ClassVar[bool] = False

    def prefill_body(self, body: bytes, transfer: Transfer) -> bytes:
        """See `Connector.prefill_body`."""
        fields = fields_of(body)
        limit(fields, transfer.path)
        fields[PARAMS] = _ASK
        return written(fields)

    def decode_body(self, body: bytes, answer: bytes, transfer: Transfer) -> bytes:
        """See `Connector.decode_body`."""
        del transfer
        fields = fields_of(body)
        fields[PARAMS] = params_in(answer)
        return written(fields)

    def abort(self, transfer: Transfer) -> tuple[str, bytes] | None:
        """See `Connector.abort`."""
        del transfer
        return None


def params_in(answer: bytes) -> Raw:
    """Return the transfer parameters of a prefill's answer, as they are written.

    Raises:
        BadAnswer: there are none, or not all that a decode engine needs.
    """
    try:
        raw = _answer(answer).kv_transfer_params
    except (msgspec.DecodeError, RecursionError):
        raise BadAnswer("not-an-object") from None
    if bytes(raw) == b"null":
        raise BadAnswer("no-parameters")
    try:
        told = _told(raw)
    except msgspec.DecodeError:
        raise BadAnswer("incomplete-parameters") from None
    if not told.do_remote_prefill or told.do_remote_decode or not any(told.remote_block_ids):
        raise BadAnswer("incomplete-parameters")
    grouped = any(isinstance(each, list) for each in told.remote_block_ids)
    if grouped and told.remote_request_id is UNSET:
        raise BadAnswer("incomplete-parameters")
    return raw
