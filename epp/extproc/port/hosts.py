"""Which requests are for a host that is ours, where a gateway asks us about others too. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from epp.extproc.messages import Headers

AUTHORITY = ":authority"


def foreign(ours: Sequence[str]) -> Callable[[Headers], bool]:
    """Return what says whether a request is for none of these hosts.

    Args:
        ours: host names without a port; ``*.example.org`` is every name below it; none: all.
    """
    exact = frozenset(name.lower() for name in ours if not name.startswith("*."))
    below = tuple(name[1:].lower() for name in ours if name.startswith("*."))

    def is_foreign(headers: Headers) -> bool:
        host = _without_port(headers.get(AUTHORITY, "")).lower()
        return not (host in exact or host.endswith(below))

    return is_foreign if ours else lambda headers: False


def _without_port(authority: str) -> str:
    host, colon, port = authority.rpartition(":")
    return host if colon and port.isdecimal() and not host.endswith(":") else authority
