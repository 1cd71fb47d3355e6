"""Elections over the fake API server: never two leaders, and never none for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from epp.kube.client import Kube
from epp.kube.lease import Candidate, Election, Means
from epp.kube.lease_record import LeaseTimes
from tests.support.kube import FakeKube
from tests.support.pages import until

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
TIMES = LeaseTimes(lease=1.0, renew=0.6, retry=0.1)


class Standing:
    """A candidate, its task, and what it was told."""

    def __init__(
        self,
        kube: Kube,
        name: str,
        *,
        behind: timedelta = timedelta(),
        times: LeaseTimes = TIMES,
    ) -> None:
        self.told: list[tuple[bool, float]] = []
        self.election = Election(
            kube,
            Candidate("default", "epp", name, times),
            on_change=lambda leads: self.told.append((leads, time.monotonic())),
            means=Means(wall=lambda: datetime.now(UTC) - behind, random=Random(name)),
        )
        self.task = asyncio.create_task(self.election.run())

    @property
    def leads(self) -> bool:
        return self.election.leads

    async def die(self) -> None:
        """Be gone without a word."""
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@asynccontextmanager
async def standing(server: FakeKube, *names: str, **options: Any) -> AsyncIterator[list[Standing]]:
    async with AsyncExitStack() as stack:
        them = []
        for name in names:
            kube = await stack.enter_async_context(Kube(server.access()))
            them.append(Standing(kube, name, **options))
            stack.push_async_callback(them[-1].die)
        yield them


def spec(server: FakeKube) -> dict[str, object]:
    lease = server.get(LEASES, "epp")
    assert lease is not None
    return lease["spec"]


async def leader(them: list[Standing], seconds: float = 5.0) -> Standing:
    await until(lambda: any(each.leads for each in them), seconds)
    (one,) = (each for each in them if each.leads)
    return one


def test_the_first_candidate_creates_the_lease_and_leads() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, standing(server, "a") as (only,):
            await until(lambda: only.leads)
            assert spec(server)["holderIdentity"] == "a"
            assert spec(server)["leaseDurationSeconds"] == 1
            assert spec(server)["leaseTransitions"] == 0
            assert only.election.holder == "a"
            first = spec(server)
            await until(lambda: spec(server)["renewTime"] != first["renewTime"])
            assert spec(server)["acquireTime"] == first["acquireTime"]
            assert [leads for leads, _ in only.told] == [True]

    asyncio.run(scenario())


def test_of_many_candidates_never_two_lead_whatever_the_server_does() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, standing(server, "a", "b", "c") as them:
            random = Random(7)
            faults = [
                lambda: server.refuse(500, times=4),
                lambda: server.refuse(409, times=2, verbs=("replace",)),
                lambda: server.refuse(429, times=3, retry_after=1),
                lambda: setattr(server.faults, "hang", True),
                lambda: setattr(server.faults, "hang", False),
            ]
            end = time.monotonic() + 6
            leaders = set()
            next_fault = 0.0
            while (now := time.monotonic()) < end:
                leading = [each for each in them if each.leads]
                assert len(leading) <= 1
                leaders |= {them.index(each) for each in leading}
                if now >= next_fault:
                    random.choice(faults)()
                    next_fault = now + random.uniform(0.1, 0.8)
                await asyncio.sleep(0.003)
            server.faults.hang = False
            server.faults.refusals.clear()
            await leader(them)
            assert leaders  # somebody led at all

    asyncio.run(scenario())


def test_when_the_leader_dies_another_leads_after_the_lease_time_and_not_before() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, standing(server, "a", "b") as them:
            first = await leader(them)
            await first.die()
            died = time.monotonic()
            others = [each for each in them if each is not first]
            await leader(others, 3)
            # One second from the last renewal, which is up to 0.12 s old; then a try within 0.12 s.
            assert 0.75 <= time.monotonic() - died <= 1.6
            assert spec(server)["leaseTransitions"] == 1

    asyncio.run(scenario())


def test_a_leader_that_releases_hands_over_at_once() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, standing(server, "a", "b") as them:
            first = await leader(them)
            released = asyncio.create_task(first.election.release())
            await asyncio.sleep(0)
            await released
            assert not first.leads
            began = time.monotonic()
            await leader([each for each in them if each is not first])
            assert time.monotonic() - began < 0.5  # a lease lasts 1 s
            await asyncio.wait_for(first.task, 1)  # it stands no longer
            assert [leads for leads, _ in first.told] == [True, False]

    asyncio.run(scenario())


def test_releasing_leaves_a_lease_as_client_go_does() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, standing(server, "a") as (only,):
            await until(lambda: only.leads)
            await only.election.release()
            assert spec(server)["holderIdentity"] == ""
            assert spec(server)["leaseDurationSeconds"] == 1
            assert spec(server)["leaseTransitions"] == 0

    asyncio.run(scenario())


def test_who_does_not_lead_releases_nothing() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, standing(server, "a", "b") as them:
            first = await leader(them)
            (other,) = (each for each in them if each is not first)
            await other.election.release()
            assert first.leads
            assert spec(server)["holderIdentity"] == first.election.holder

    asyncio.run(scenario())


def test_a_run_that_was_cancelled_can_still_be_released() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, standing(server, "a") as (only,):
            await until(lambda: only.leads)
            await only.die()
            assert not only.leads
            await only.election.release()
            assert spec(server)["holderIdentity"] == ""

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["hang", "stop"])
def test_a_leader_that_cannot_renew_gives_up_before_others_may_take_over(fault: str) -> None:
    async def scenario() -> None:
        async with FakeKube() as server, standing(server, "a") as (only,):
            await until(lambda: only.leads)
            began = time.monotonic()
            if fault == "hang":
                server.faults.hang = True
            else:
                await server.stop()
            await until(lambda: len(only.told) == 2)
            leads, when = only.told[1]
            assert not leads
            assert 0.3 <= when - began <= 0.8  # 0.6 s from the last renewal, 0.12 s old at most
            server.faults.hang = False
            if fault == "stop":
                await server.start()
            await until(lambda: only.leads)  # nobody else took it

    asyncio.run(scenario())


@pytest.mark.parametrize("behind", [timedelta(hours=5), timedelta(hours=-5)])
def test_a_wrong_wall_clock_takes_no_lease_from_its_holder(behind: timedelta) -> None:
    async def scenario() -> None:
        async with FakeKube() as server, standing(server, "a", behind=behind) as (first,):
            await until(lambda: first.leads)
            async with standing(server, "b") as (second,):
                end = time.monotonic() + 1.5
                while time.monotonic() < end:
                    assert first.leads
                    assert not second.leads
                    await asyncio.sleep(0.01)
                assert second.election.holder == "a"

    asyncio.run(scenario())


def test_a_lease_of_client_go_is_respected_and_later_taken_over() -> None:
    theirs = {
        "holderIdentity": "router-0_5f2c",
        "leaseDurationSeconds": 1,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",  # long ago, by whatever clock
        "leaseTransitions": 4,
        "strategy": "OldestEmulationVersion",
    }

    async def scenario() -> None:
        async with FakeKube() as server:
            server.put(LEASES, {"metadata": {"name": "epp"}, "spec": theirs})
            async with standing(server, "a") as (only,):
                began = time.monotonic()
                await until(lambda: only.leads)
                assert 0.9 <= time.monotonic() - began < 1.6
                assert spec(server)["leaseTransitions"] == 5
                assert spec(server)["strategy"] == "OldestEmulationVersion"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "given", [{}, {"spec": {}}, {"spec": None}, {"spec": {"holderIdentity": None}}]
)
def test_a_lease_that_nobody_holds_is_taken_at_once(given: dict[str, object]) -> None:
    async def scenario() -> None:
        async with FakeKube() as server:
            server.put(LEASES, {"metadata": {"name": "epp"}, **given})
            async with standing(server, "a") as (only,):
                began = time.monotonic()
                await until(lambda: only.leads)
                assert time.monotonic() - began < 0.5

    asyncio.run(scenario())


def test_a_lease_deleted_under_its_leader_does_not_make_a_second_one() -> None:
    async def scenario() -> None:
        slow = LeaseTimes(lease=1.0, renew=0.9, retry=0.5)  # the other one notices first
        async with FakeKube() as server, standing(server, "a", times=slow) as (first,):
            await until(lambda: first.leads)
            async with standing(server, "b") as (second,):
                await until(lambda: second.election.holder == "a")
                server.remove(LEASES, "epp")
                end = time.monotonic() + 0.7
                while time.monotonic() < end:
                    assert first.leads
                    assert not second.leads
                    await asyncio.sleep(0.003)
                assert spec(server)["holderIdentity"] == "a"

    asyncio.run(scenario())


def test_a_listener_that_fails_ends_no_election() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, Kube(server.access()) as kube:
            election = Election(
                kube, Candidate("default", "epp", "a", TIMES), on_change=lambda leads: 1 / 0
            )
            task = asyncio.create_task(election.run())
            await until(lambda: election.leads)
            first = spec(server)["renewTime"]
            await until(lambda: spec(server)["renewTime"] != first)
            await election.release()
            await asyncio.wait_for(task, 1)

    asyncio.run(scenario())
