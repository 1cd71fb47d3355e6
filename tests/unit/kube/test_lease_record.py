"""Who may take a Lease, by the clock of the one who looks."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from epp.errors import ConfigError
from epp.kube.lease_record import (
    LeaseTimes,
    Seen,
    may_take,
    micro_time,
    new_lease,
    released,
    see,
    taken,
)

TIMES = LeaseTimes()
WALL = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def lease(holder: str = "b", renewed: str = "r1", **spec: object) -> dict[str, object]:
    return {
        "metadata": {"name": "epp", "resourceVersion": "7"},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "renewTime": renewed,
            "acquireTime": "a1",
            "leaseTransitions": 2,
            **spec,
        },
    }


def test_a_foreign_lease_may_be_taken_when_it_was_unchanged_for_its_duration() -> None:
    first = see(lease(), None, 100.0, default=15.0)
    later = see(lease(), first, 114.9, default=15.0)
    assert not may_take(later, "a", 114.9)
    assert may_take(later, "a", 115.0)


def test_every_renewal_starts_the_time_anew() -> None:
    first = see(lease(renewed="r1"), None, 100.0, default=15.0)
    renewed = see(lease(renewed="r2"), first, 110.0, default=15.0)
    assert not may_take(renewed, "a", 124.9)
    assert may_take(renewed, "a", 125.0)


def test_a_change_of_metadata_is_no_sign_of_life() -> None:
    first = see(lease(), None, 100.0, default=15.0)
    annotated = lease() | {"metadata": {"name": "epp", "resourceVersion": "8"}}
    assert see(annotated, first, 110.0, default=15.0).since == 100.0


def test_the_duration_is_the_holders_and_ours_if_it_tells_none() -> None:
    theirs = see(lease(leaseDurationSeconds=60), None, 0.0, default=15.0)
    assert not may_take(theirs, "a", 59.9)
    assert see(lease(leaseDurationSeconds=None), None, 0.0, default=15.0).duration == 15.0


@pytest.mark.parametrize("holder", ["", "a"])
def test_our_own_and_a_free_lease_may_be_taken_at_once(holder: str) -> None:
    assert may_take(Seen(holder, 15.0, "r", since=100.0), "a", 100.0)


def test_taking_over_counts_a_transition_and_renewing_does_not() -> None:
    over = taken(lease(holder="b"), "a", TIMES, WALL)["spec"]
    assert over == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-02T03:04:05.000000Z",
        "renewTime": "2026-01-02T03:04:05.000000Z",
        "leaseTransitions": 3,
    }
    renewed = taken(lease(holder="a"), "a", TIMES, WALL)["spec"]
    assert renewed["leaseTransitions"] == 2
    assert renewed["acquireTime"] == "a1"
    assert renewed["renewTime"] == "2026-01-02T03:04:05.000000Z"


def test_what_is_written_carries_the_version_that_was_read() -> None:
    assert taken(lease(), "a", TIMES, WALL)["metadata"]["resourceVersion"] == "7"
    assert released(lease(), WALL)["metadata"]["resourceVersion"] == "7"


def test_taking_changes_nothing_of_what_was_read() -> None:
    found = lease()
    taken(found, "a", TIMES, WALL)
    released(found, WALL)
    assert found == lease()


def test_a_released_lease_has_no_holder_and_lasts_a_second() -> None:
    spec = released(lease(holder="a"), WALL)["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("", 1)
    assert spec["leaseTransitions"] == 2


def test_a_new_lease_is_whole() -> None:
    made = new_lease("epp", "a", TIMES, WALL)
    assert made["kind"] == "Lease"
    assert made["metadata"] == {"name": "epp"}
    assert made["spec"]["leaseTransitions"] == 0


@pytest.mark.parametrize("hours", [-5, 0, 5])
def test_times_are_written_in_utc_with_six_digits(hours: int) -> None:
    wall = WALL.astimezone(timezone(timedelta(hours=hours)))
    assert micro_time(wall) == "2026-01-02T03:04:05.000000Z"
    assert re.fullmatch(r"\S{19}\.000042Z", micro_time(WALL + timedelta(microseconds=42)))


def test_the_default_times_are_client_gos() -> None:
    assert (TIMES.lease, TIMES.renew, TIMES.retry) == (15.0, 10.0, 2.0)
    TIMES.check()


@pytest.mark.parametrize(
    "times",
    [LeaseTimes(lease=10), LeaseTimes(renew=2), LeaseTimes(retry=0), LeaseTimes(lease=15.5)],
)
def test_times_by_which_two_could_lead_are_refused(times: LeaseTimes) -> None:
    with pytest.raises(ConfigError, match="lease duration"):
        times.check()
