"""Who is ready of several pickers, while the API server comes and goes."""

from __future__ import annotations

import asyncio

from epp.collect.kube.leader import Leadership
from epp.kube.lease import Candidate
from epp.kube.lease_record import LeaseTimes
from tests.support.kube import FakeKube
from tests.support.pages import running, until

TIMES = LeaseTimes(lease=2.0, renew=1.0, retry=0.1)


def leadership(kube: FakeKube, identity: str) -> Leadership:
    return Leadership(kube.access(), Candidate("default", "lease", identity, TIMES))


def test_the_last_leader_stays_ready_while_the_api_server_is_away() -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            one, other = leadership(kube, "one"), leadership(kube, "other")
            assert not one.ready
            async with running(one.run()):
                await until(lambda: one.ready)
                async with running(other.run()):
                    await kube.stop()
                    await until(lambda: not one.leads)
                    assert (one.ready, other.ready) == (True, False)
                    await kube.start()
                    await until(lambda: one.leads or other.leads)
                    await until(lambda: one.ready is not other.ready)

    asyncio.run(main())


def test_release_hands_over_long_before_the_lease_is_up() -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            slow = LeaseTimes(lease=60.0, renew=40.0, retry=0.1)
            one, other = (
                Leadership(kube.access(), Candidate("default", "lease", name, slow))
                for name in ("one", "other")
            )
            async with running(one.run()):
                await until(lambda: one.leads)
                async with running(other.run()):
                    await one.release()
                    await until(lambda: other.leads)
                    assert not one.ready

    asyncio.run(main())
