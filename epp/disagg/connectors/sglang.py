"""SGLang: both servers get the same request at once and meet at the prefill server's bootstrap port.

The decode server waits for the prefill server. If that fails, the decode server is told to give the
request up by its id, or it would wait for minutes (sgl-project/sglang#9726).

**Source:** SGLang ``docs/advanced_features/pd_disaggregation.md`` and ``/abort_request``;
``sglang`` of llm-d's sidecar.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Raw

from epp.disagg.connectors.base import Mode, Transfer
from epp.disagg.connectors.body import fields_of, written

ABORT_PATH = "/abort_request"


class Sglang:
    """Names the prefill server's bootstrap port and one room to both."""

    name: ClassVar[str] = "sglang"
    mode: ClassVar[Mode] = Mode.BOTH_AT_ONCE
    asks_engine_id: ClassVar[bool] = False

    def prefill_body(self, body: bytes, transfer: Transfer) -> bytes:
        """See `Connector.prefill_body`."""
        return _met(body, transfer)

    def decode_body(self, body: bytes, answer: bytes, transfer: Transfer) -> bytes:
        """See `Connector.decode_body`."""
        del answer
        return _met(body, transfer)

    def abort(self, transfer: Transfer) -> tuple[str, bytes] | None:
        """See `Connector.abort`."""
        return ABORT_PATH, msgspec.json.encode({"rid": transfer.id})


def _met(body: bytes, transfer: Transfer) -> bytes:
    fields = fields_of(body)
    told = {
        "bootstrap_host": transfer.host,
        "bootstrap_port": transfer.bootstrap_port,
        "bootstrap_room": transfer.room,
        "rid": transfer.id,
    }
    fields |= {name: Raw(msgspec.json.encode(value)) for name, value in told.items()}
    return written(fields)
