"""What ``epp traffic mirror`` is told."""

from __future__ import annotations

import msgspec

from epp.traffic.trace import TraceError

EVERY_TENANT = "*"


class MirrorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``epp traffic mirror``; sizes in bytes, times in seconds."""

    to: str  #: URL of the shadow gateway, with no path
    tenants: frozenset[str]  #: whose requests may be copied; `EVERY_TENANT`: everybody's
    share: float = 0.1  #: of conversations
    listen_host: str = "127.0.0.1"
    listen_port: int = 9300
    in_flight: int = 64  #: copies at the shadow gateway; more are dropped
    body_bytes: int = 4 * 2**20  #: of a copy; larger ones are dropped
    timeout: float = 300.0  #: of a copy, its answer included

    def __post_init__(self) -> None:
        """Refuse what would copy nothing, or everything unasked.

        Raises:
            TraceError: names the flag and its value.
        """
        if not self.to.startswith(("http://", "https://")):
            raise TraceError(f"--to {self.to!r} is not the URL of a gateway, such as http://shadow")
        if not self.tenants:
            raise TraceError(f"--tenants names nobody; {EVERY_TENANT!r} stands for everybody")
        if not 0 < self.share <= 1:
            raise TraceError(f"--share {self.share} is not above 0 and at most 1")
        if self.in_flight < 1 or self.body_bytes < 1:
            raise TraceError("--in-flight and --body-bytes must be at least 1")
