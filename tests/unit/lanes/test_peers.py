"""A lane with other pickers: what its configuration and its pool's life change. Out: sockets."""

from __future__ import annotations

import asyncio

from epp.catalog import Catalog
from epp.clock import ManualClock
from epp.collect.kube.configs import NONE, Config
from epp.collect.parse.inference_pools import PoolSpec
from epp.lanes.lane import Lane, Shared
from epp.lanes.many import Many
from epp.model import EndpointId
from epp.peers.news import Sent
from epp.peers.sharing import Settings, Sharing
from epp.serve.options import ServeOptions
from epp.telemetry.log import Seldom
from epp.telemetry.metrics import Metrics
from tests.support import build
from tests.support.pages import running, until

A = EndpointId("a")
BOOKS = "plugins: [{type: inflight-load-producer}, {type: random-picker}]"
DOES_NOT = (
    "plugins: [{type: inflight-load-producer, parameters: {syncCrossReplicaState: false}}, "
    "{type: random-picker}]"
)


def shared(*, peers: bool = True, many: bool = False) -> Shared:
    clock = ManualClock(1.0)
    options = ServeOptions(all_pools=many, pool_namespace="models", endpoints="x:1")
    sharing = Sharing(Settings(()), clock) if peers else None
    return Shared(options, clock, Catalog(()), Seldom(clock, print), peers=sharing)


def test_without_other_pickers_there_is_no_circle() -> None:
    lane = Lane("p", shared(peers=False), Metrics(process=False), lambda: (None, ""))
    assert lane.circle is None
    work = lane.work()
    assert "peers" not in work
    for each in work.values():
        each.close()


def test_what_others_have_under_way_is_booked_unless_the_configuration_says_no() -> None:
    text = [BOOKS]
    lane = Lane("p", shared(), Metrics(process=False), lambda: (text[0], ""))
    lane.pool.put(build.endpoint("a"))
    assert lane.circle is not None
    hearing = lane.circle.hearing
    hearing.hear("other", [Sent(1, 1.0, A, 100, 100)], 0.0)
    assert lane.ledger.get(A).requests == 1
    text[0] = DOES_NOT
    lane.reload(lambda: (text[0], ""), "a test")
    hearing.hear("other", [Sent(2, 1.0, A, 100, 100)], 0.0)
    assert (lane.ledger.get(A).requests, len(hearing)) == (1, 2)
    hearing.lost("other")
    assert (lane.ledger.get(A).requests, lane.ledger.get(A).tokens) == (0, 0)


def test_a_pool_is_told_of_as_long_as_it_is_served() -> None:
    async def main() -> None:
        told = shared(many=True)
        peers = told.peers
        assert peers is not None
        many = Many(told, Metrics(process=False), lambda: (None, ""))
        assert not peers.circles  # the one that only tries the configuration is none
        async with running(many._run()):
            await asyncio.sleep(0)
            for name in ("chat", "code"):
                many.open(PoolSpec((8000,), {"app": name}, name=name), NONE)
            await until(lambda: set(peers.circles) == {"chat", "code"})
            assert peers.circles["chat"] is many.lanes["chat"].circle
            many.close("code")
            await until(lambda: set(peers.circles) == {"chat"})
            scraped = Config(
                "plugins: [{type: metrics-data-source, parameters: {path: /m}}, "
                "{type: random-picker}]", "ConfigMap x/y",
            )  # fmt: skip
            many.change(PoolSpec((8000,), {"app": "chat"}, name="chat"), scraped)
            for _ in range(20):  # its work ends and begins again
                await asyncio.sleep(0)
            assert peers.circles["chat"] is many.lanes["chat"].circle

    asyncio.run(main())
