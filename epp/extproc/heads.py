"""What may be changed on a head, and what a head says about its body."""

from __future__ import annotations

from epp.extproc.messages import Headers
from epp.headers import CONTROL, NEVER_SET


def controls(headers: Headers) -> tuple[str, ...]:
    """The headers that only we may set, of those a client sent."""
    sent = CONTROL.intersection(headers)
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
