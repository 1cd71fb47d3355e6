"""What may be changed on a head, and what a head says about its body."""

from __future__ import annotations

from collections.abc import Mapping

from epp.extproc.messages import NO_HEADERS, Decision, Headers
from epp.headers import CONTROL, DECISION, DESTINATION, NEVER_SET
from epp.model import Pick

_OURS = CONTROL | {DECISION}  #: the latter holds a caller's key, which is for us only


def controls(headers: Headers) -> tuple[str, ...]:
    """The headers that are not to be forwarded, of those a client sent."""
    sent = _OURS.intersection(headers)
    return tuple(sorted(sent)) if sent else ()


def settable(wanted: Headers, present: Headers) -> dict[str, str]:
    """Leave out what must not be set, and what is there already."""
    chosen: dict[str, str] = {}
    for given, value in wanted.items():
        name = given.lower()
        if name in NEVER_SET or name.startswith((":", "x-envoy-")):
            continue  # Envoy ignores these, or they would contradict the message
        if name in CONTROL or present.get(name) != value:
            chosen[name] = value
    return chosen


def upgrades(headers: Headers) -> bool:
    """Whether no body will follow before the response's head: an upgrade, or CONNECT."""
    if headers.get(":method") == "CONNECT":
        return True
    return "upgrade" in headers and headers.get("content-length", "0") == "0"


def decide(pick: Pick, sent: Headers, own: Mapping[str, str] = NO_HEADERS) -> Decision:
    """Return how the head of a request changes on its way to ``pick``.

    Args:
        pick: where it goes; it may want headers of its own set.
        sent: the headers that came.
        own: more that are set whatever they were.
    """
    destination = pick.destination
    changes = {DESTINATION: destination}
    if pick.headers:
        changes.update(settable(pick.headers, sent))
        changes[DESTINATION] = destination
    changes.update(own)
    remove = tuple(name for name in controls(sent) if name not in changes)
    return Decision(destination, changes, remove, pick.scores)
