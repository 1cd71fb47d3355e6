"""What an API server's refusal looks like to callers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

SHORTEST_REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 410: "Expired"}
MAX_MESSAGE = 500  #: characters of a server's message that are kept


class KubeError(Exception):
    """An answer that is not 2xx, or none at all.

    Attributes:
        status: of HTTP, or the code of a watch's ERROR event; 0: there was no answer.
        reason: Kubernetes' word for it (``Expired``, ``AlreadyExists``); with status 0 one of
            ``timeout``, ``tls``, ``connection``, ``credentials``, and ``answer`` for one that
            cannot be read.
        retry_after: seconds that the server asks for; 0: it asks for none.
    """

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", retry_after: float = 0.0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class _Details(msgspec.Struct):
    retry_after: int = msgspec.field(name="retryAfterSeconds", default=0)


class Status(msgspec.Struct):
    """The API's ``Status`` object, as far as it is used."""

    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: _Details | None = None


def decode_status(body: bytes | msgspec.Raw) -> Status:
    """What ``body`` says; an empty `Status` if it is something else, a proxy's page for instance."""
    try:
        return msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Status()


def error_of(what: str, status: int, body: bytes, headers: Mapping[str, str]) -> KubeError:
    """The error for the answer to ``what`` (``GET /api/v1/pods``)."""
    said = decode_status(body)
    reason = said.reason or SHORTEST_REASONS.get(status, "")
    message = (said.message or "").strip()[:MAX_MESSAGE] or reason or "no message"
    return KubeError(
        f"{what}: {status} {message}",
        status=status,
        reason=reason,
        retry_after=_retry_after(said, headers.get("Retry-After", "")),
    )


def error_of_event(what: str, event: msgspec.Raw) -> KubeError:
    """The error that a watch's ERROR event tells."""
    said = decode_status(event)
    return KubeError(
        f"{what}: {said.code or 500} {(said.message or 'no message')[:MAX_MESSAGE]}",
        status=said.code or 500,
        reason=said.reason or "",
        retry_after=_retry_after(said, ""),
    )


def _retry_after(said: Status, header: str) -> float:
    if header.isascii() and header.isdigit():
        return float(header)
    return float(max(said.details.retry_after, 0)) if said.details else 0.0
