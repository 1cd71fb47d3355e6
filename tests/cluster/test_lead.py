"""Three replicas, of which one leads: it hands over, and another one is killed, under load."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from epp.kube.lease_record import LeaseTimes
from tests.support.cluster.load import Load, load
from tests.support.cluster.replicas import Picker
from tests.support.cluster.site import Site, gateway, site
from tests.support.serving import eventually

VALUES = {"picker": {"replicas": 3, "leaderElection": True}}
LEASE = "epp-{}-pool.llm-d.ai"
TIMES = LeaseTimes()
BUSY_SECONDS = 10.0  #: what a busy machine adds to a takeover
NOTICED_SECONDS = 5.0  #: until a gateway knows that its picker is gone, or that another is there


async def successor(it: Site, *, of: Picker) -> float:
    """Wait until another one is ready; return when."""

    async def another() -> bool:
        return await it.leader() is not of

    await eventually(another, bound=30.0)
    return asyncio.get_running_loop().time()


async def holder(it: Site) -> str:
    at, name = "coordination.k8s.io/v1", LEASE.format(it.release.namespace)
    path = it.release.path(at, "leases", name)
    if path not in it.release.made:
        it.release.made.append(path)
    lease = await it.release.admin.get(path) or {}
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


async def hand_over(it: Site, seen: tuple[Load, Load]) -> None:
    """SIGTERM: no request fails, whatever the gateway would do without a picker."""
    first, held = await it.leader(), await holder(it)
    assert held
    first.child.process.send_signal(signal.SIGTERM)
    await successor(it, of=first)
    assert await holder(it) not in {"", held}
    await first.child.process.wait()
    await asyncio.sleep(1.0)
    assert [each.failed for each in seen] == [[], []]


async def kill(it: Site, *, closed: Load, opened: Load) -> None:
    """SIGKILL: until the Lease is up, what a gateway does without a picker."""
    clock = asyncio.get_running_loop().time
    second = await it.leader()
    began = clock()
    second.child.kill()
    await second.child.process.wait()
    taken = await successor(it, of=second)
    assert taken - began < TIMES.lease + TIMES.retry * 1.2 + BUSY_SECONDS

    async def answered() -> bool:
        late = [[one for one in each.all if one.began > taken + 1.0 and one.status == 200]
                for each in (closed, opened)]  # fmt: skip
        return all(late)

    await eventually(answered, bound=30.0)
    assert all(each.began < began + NOTICED_SECONDS for each in opened.failed)
    assert closed.failed
    over = taken + NOTICED_SECONDS
    assert all(began < each.ended and each.began < over for each in closed.failed)


@pytest.mark.timeout(240)
def test_b171_a_leader_that_ends_hands_over_and_a_killed_one_is_replaced_in_the_lease_time(
    tmp_path: Path,
) -> None:
    """Field problem B171: a standby that answers errors kept gateways from failing open."""

    async def main() -> None:
        async with site(tmp_path, values=VALUES) as it:
            open_way = {"routing": "override-host", "endpoints": it.addresses, "fail_open": True}
            async with (
                gateway(tmp_path, it.service, **open_way) as port,
                load(it.port, clients=4) as closed,
                load(port, clients=4) as opened,
            ):
                await asyncio.sleep(1.0)
                await hand_over(it, (closed, opened))
                await kill(it, closed=closed, opened=opened)

    asyncio.run(main())
