"""Who may lead, by a Lease object; pure.

**Source:** ``coordination.k8s.io/v1`` Lease and the rules of client-go's ``leaderelection``: the two
may stand for the same Lease.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from epp.errors import ConfigError


class LeaseTimes(msgspec.Struct, frozen=True):
    """Seconds; client-go's defaults. Every candidate of a Lease should use the same ones.

    ``lease`` > ``renew`` is what keeps two from leading at once: a leader that cannot renew gives
    up before others may take over. The gap also has to cover a slow clock.
    """

    lease: float = 15.0  #: others wait that long after the last renewal they saw
    renew: float = 10.0  #: a leader that could not renew for that long gives up
    retry: float = 2.0  #: between two tries

    def check(self) -> None:
        """Raise `ConfigError` if nobody could lead by these times, or two could."""
        if self.lease < 1 or self.lease != int(self.lease):
            raise ConfigError(f"lease duration must be whole seconds, not {self.lease}")
        if not self.lease > self.renew > self.retry > 0:
            raise ConfigError(
                f"lease duration {self.lease} s must be longer than the renew deadline"
                f" {self.renew} s, and that longer than the retry period {self.retry} s"
            )


class Seen(msgspec.Struct, frozen=True):
    """A Lease as it was last found, and since when it is so by our own clock.

    The times inside it are another machine's: they are compared, never trusted.
    """

    holder: str  #: "": nobody
    duration: float  #: seconds
    renewed: str
    since: float  #: our clock's seconds

    def expired(self, now: float) -> bool:
        """Whether the holder had its time without a sign of life."""
        return now >= self.since + self.duration


def see(lease: Mapping[str, Any], before: Seen | None, now: float, *, default: float) -> Seen:
    """Note what was found; the time runs on if nothing changed since ``before``."""
    spec = lease.get("spec") or {}
    duration = spec.get("leaseDurationSeconds")
    seen = Seen(
        holder=spec.get("holderIdentity") or "",
        duration=float(duration) if duration else default,
        renewed=spec.get("renewTime") or "",
        since=now,
    )
    if before is not None and msgspec.structs.replace(seen, since=before.since) == before:
        return before
    return seen


def may_take(seen: Seen, me: str, now: float) -> bool:
    """Whether ``me`` may write itself into the Lease: it holds it, nobody does, or time is up."""
    return seen.holder in {"", me} or seen.expired(now)


def new_lease(name: str, me: str, times: LeaseTimes, wall: datetime) -> dict[str, Any]:
    """The Lease that the first candidate creates."""
    spec = {
        "holderIdentity": me,
        "leaseDurationSeconds": int(times.lease),
        "acquireTime": micro_time(wall),
        "renewTime": micro_time(wall),
        "leaseTransitions": 0,
    }
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


def taken(lease: Mapping[str, Any], me: str, times: LeaseTimes, wall: datetime) -> dict[str, Any]:
    """The Lease with ``me`` as its holder; what else it holds stays, its version above all."""
    changed = copy.deepcopy(dict(lease))
    spec = changed["spec"] = changed.get("spec") or {}
    if spec.get("holderIdentity") != me:
        spec["acquireTime"] = micro_time(wall)
        spec["leaseTransitions"] = (spec.get("leaseTransitions") or 0) + 1
    spec["holderIdentity"] = me
    spec["leaseDurationSeconds"] = int(times.lease)
    spec["renewTime"] = micro_time(wall)
    return changed


def released(lease: Mapping[str, Any], wall: datetime) -> dict[str, Any]:
    """The Lease without a holder; the API allows no duration of 0."""
    changed = copy.deepcopy(dict(lease))
    changed["spec"] |= {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": micro_time(wall),
        "renewTime": micro_time(wall),
    }
    return changed


def micro_time(wall: datetime) -> str:
    """``wall`` as MicroTime: UTC, exactly six digits after the point."""
    return wall.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
