"""``x-epp-decision``: tells a client in one line why its request went where it went.

It names the pool's addresses, so it is for callers that may know them: all clients of a gateway, or
those whose request has the key of a file in a header of the same name, which ends at the picker.
"""

from __future__ import annotations

from collections.abc import Mapping
from hmac import compare_digest
from pathlib import Path

from epp import headers
from epp.errors import ConfigError
from epp.model import InferenceRequest, Pick
from epp.observe.receipts import Receipts

LEAST_BYTES = 16  #: of a key


class DecisionHeader:
    """Adds it to answers that pass through the picker.

    Args:
        receipts: know why.
        key: callers are told only if they show it; b"" tells all.
    """

    def __init__(self, receipts: Receipts, key: bytes = b"") -> None:
        self._receipts = receipts
        self._key = key

    def answer_headers(
        self, request: InferenceRequest, pick: Pick, served: str
    ) -> Mapping[str, str]:
        """See `plugin.AnswerHeaderAdder.answer_headers`."""
        if self._key and not self._trusts(request):
            return {}
        said = self._receipts.summary(pick)
        return {headers.DECISION: said} if said else {}

    def _trusts(self, request: InferenceRequest) -> bool:
        shown = request.headers.get(headers.DECISION, "")
        return compare_digest(shown.encode("utf-8", "surrogateescape"), self._key)


def key_of(path: str) -> bytes:
    """Read the callers' key.

    Raises:
        ConfigError: there is none, or it is easily guessed.
    """
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"--decision-key-file: {error}") from error
    if len(key) < LEAST_BYTES:
        raise ConfigError(
            f"--decision-key-file: {path}: a key has at least {LEAST_BYTES} bytes, this one {len(key)}"
        )
    return key
