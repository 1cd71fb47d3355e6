"""What one picker tells another: where it sent requests, and how that went. No content.

Of a prompt only hashes of its blocks are told, as each plugin that learns from picks wants them; of
a session a digest. Times are seconds on the teller's clock; a batch tells what time it is there.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from epp.feedback.entry import Entry
from epp.model import EndpointId


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A request was sent to an endpoint, and is booked there."""

    number: int  #: of the request; its picker never uses it again
    at: float  #: when it was picked
    endpoint: EndpointId
    prompt_tokens: int
    uncached: int  #: prompt tokens that the endpoint has to compute
    prefill: EndpointId = EndpointId("")  #: where the prompt is computed, if elsewhere
    prefill_uncached: int = 0  #: prompt tokens that it has to compute there
    output: int = 0  #: tokens booked for its answer
    streamed: bool = False  #: the first byte of its answer tells when its prompt was computed
    over: bool = False  #: it has been answered: nothing is booked
    facts: Mapping[str, bytes] = {}  #: what plugins learn of it, by their names


class Computed(msgspec.Struct, frozen=True, gc=False):
    """A request's prompt is computed."""

    number: int


class Over(msgspec.Struct, frozen=True, gc=False):
    """A request is over."""

    number: int
    first_seconds: float | None = None  #: from the pick to its first byte, if that tells a speed
    seconds: float = 0.0  #: from the pick until it was over
    completed: bool = False  #: with its last byte
    prompt_tokens: int | None = None  #: as the engine counted
    cached_tokens: int | None = None  #: as the engine counted


class Logged(msgspec.Struct, frozen=True, gc=False):
    """A gateway told the teller how a request of the hearer ended.

    One without a name may be of any picker: its client left before the gateway had the pick.
    """

    entry: Entry  #: with the name that the hearer gave, or none; its id is not told
    request: int | None = None  #: `digest` of the id, if there is no name


Event = Sent | Computed | Over | Logged


class Logs(msgspec.Struct, frozen=True, gc=False):
    """Access logs that gateways opened to a picker."""

    open: int = 0
    lost: int = 0  #: that ended, so far


class Batch(msgspec.Struct, frozen=True):
    """Events in the order in which they happened."""

    now: float  #: on the teller's clock
    events: tuple[Event, ...]
