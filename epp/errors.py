"""Everything that can end a request early, as one tree.

* EppError
  + BadRequest          400  the body cannot be understood
  + UnknownPool         404  it is for a pool that this picker does not serve
  + TooSlow             408  the body did not come to its end in time
  + NoKvCache           412  ``prefer: if-available`` and the endpoint holds none of it
  + TooLarge            413  the body is over the limit
  + Dropped             429  the pool, or this picker, is busy
    - Saturated              and the request may be dropped
  + Unavailable         503  nobody can serve this at the moment
    - NoEndpoints            no endpoint can
    - NoPool                 nobody says for which pool it is
    - Overloaded             this picker's own memory is full
    - ShuttingDown           this picker is going away
  + OutOfOrder          500  Envoy broke the protocol
  + Internal            500  a bug of ours

The class fixes the HTTP status, the OpenAI error ``type`` and the reason sent in
`headers.DROP_REASON`; the raiser says only what happened, and `extproc.session`
alone builds the HTTP answer. No message ever carries a part of a prompt.
"""

from __future__ import annotations

from typing import ClassVar


class EppError(Exception):
    """Base of every error that has an HTTP answer."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "InternalServerError"  #: OpenAI's ``error.type``
    reason: ClassVar[str] = ""  #: `headers.DROP_REASON`; "" sends none
    retry_after: ClassVar[int | None] = None  #: seconds; None sends no ``Retry-After``


class BadRequest(EppError):
    """The body cannot be understood."""

    status = 400
    kind = "BadRequestError"


class UnknownPool(EppError):
    """The gateway names a pool that this picker does not serve."""

    status = 404
    kind = "NotFoundError"
    reason = "rejected-unknown-pool"


class TooSlow(EppError):
    """The body did not come to its end in time."""

    status = 408
    kind = "RequestTimeoutError"


class NoKvCache(EppError):
    """The client wants a cached prompt only, and the chosen endpoint holds nothing of it."""

    status = 412
    kind = "PreconditionFailedError"


class TooLarge(EppError):
    """The body is over the configured limit."""

    status = 413
    kind = "RequestEntityTooLargeError"


class Dropped(EppError):
    """The pool, or this picker, is busy."""

    status = 429
    kind = "RateLimitError"
    reason = "rejected-saturated"
    retry_after = 1


class Saturated(Dropped):
    """The pool is busy and the request's priority allows dropping it."""


class Unavailable(EppError):
    """Nobody can serve this at the moment."""

    status = 503
    kind = "ServiceUnavailableError"
    retry_after = 1


class NoEndpoints(Unavailable):
    """Nothing in the pool can serve this request."""

    reason = "rejected-no-endpoints"


class NoPool(Unavailable):
    """Nobody says which pool the request is for, or the pools are not known yet."""

    reason = "rejected-no-pool"


class Overloaded(Unavailable):
    """The picker holds as many request bytes as it may."""

    reason = "rejected-saturated"


class ShuttingDown(Unavailable):
    """The picker is going away."""

    reason = "rejected-shutting-down"


class OutOfOrder(EppError):
    """Envoy sent a message the protocol does not allow here."""


class Internal(EppError):
    """A bug of ours; the log has the traceback, the client has only this."""


class ConfigError(Exception):
    """The configuration is wrong; the message names where and why. It never meets a client."""
