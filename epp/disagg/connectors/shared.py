"""vLLM's ExampleConnector, once SharedStorageConnector: caches meet in a folder that both see.

The engines find a prompt by itself, so nothing is told to either.

**Source:** vLLM ``vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py``;
``shared-storage`` of llm-d's sidecar.
"""

from __future__ import annotations

from typing import ClassVar

from epp.disagg.connectors.base import Mode, Transfer
from epp.disagg.connectors.body import fields_of, limit, written


class SharedStorage:
    """Has the prompt computed once, then sends the request as it is."""

    name: ClassVar[str] = "shared-storage"
    mode: ClassVar[Mode] = Mode.SEQUENTIAL
    asks_engine_id: ClassVar[bool] = False

    def prefill_body(self, body: bytes, transfer: Transfer) -> bytes:
        """See `Connector.prefill_body`."""
        fields = fields_of(body)
        limit(fields, transfer.path)
        return written(fields)

    def decode_body(self, body: bytes, answer: bytes, transfer: Transfer) -> bytes:
        """See `Connector.decode_body`."""
        del answer, transfer
        return body

    def abort(self, transfer: Transfer) -> tuple[str, bytes] | None:
        """See `Connector.abort`."""
        del transfer
        return None
