"""Pickers that tell each other, over real sockets. In: what each books and believes. Out: how a
picker as a process is wired, which `test_peers_processes` has."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc
import pytest

from epp.local.fleet import free_port
from epp.model import EndpointId, InferenceRequest, Pick
from epp.peers import circle, follower, link, wire
from epp.peers.news import Sent
from epp.prefix.approx import ApproxPrefixCacheProducer
from tests.support.peers import NAMES, Picker, following, pickers, until


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_pick_is_booked_at_the_other_until_it_ends_and_what_it_cached_is_known_there() -> None:
    async def main() -> None:
        async with pickers() as (one, other):
            exchange = await one.lane.send()
            target = exchange.pick.endpoints[0].id
            took = await until(lambda: other.lane.booked() == {target: (1, 640)})
            assert took < 2.0  # 25 ms and the way; much more only on a busy machine
            exchange.response_head(200, streamed=True)
            exchange.response_piece(1)
            await until(lambda: other.lane.booked() == {target: (1, 0)})
            exchange.complete()
            await until(lambda: other.lane.booked() == {})
            assert (await other.lane.held())[target] == 10
            assert len(other.circle.hearing) == 0
            assert one.circle.counts.told_events == other.circle.counts.heard_events >= 3

    run(main())


def test_of_three_each_knows_what_all_have_under_way() -> None:
    async def main() -> None:
        async with pickers(3) as all_of_them:
            exchanges = [await each.lane.send() for each in all_of_them for _ in range(4)]
            for each in all_of_them:
                await until(lambda each=each: sum(n for n, _ in each.lane.booked().values()) == 12)
            for exchange in exchanges:
                exchange.complete()
            for each in all_of_them:
                await until(lambda each=each: not each.lane.booked())

    run(main())


def test_what_a_lost_picker_had_under_way_is_dropped_and_heard_again_when_it_is_back() -> None:
    async def main() -> None:
        async with pickers() as (one, other):
            exchange = await one.lane.send()
            await until(lambda: bool(other.lane.booked()))
            await one.stop()
            await until(lambda: not other.lane.booked() and not other.circle.followed)
            await one.start()  # the same picker: the line was cut
            await until(lambda: sum(n for n, _ in other.lane.booked().values()) == 1)
            exchange.complete()
            await until(lambda: not other.lane.booked())
            await one.stop()
            again = Picker(one.port, (one.port, other.port))  # a new process in its place
            await again.start()
            try:
                await other.hears(again)
                await again.hears(other)
                exchange = await again.lane.send()
                await until(lambda: sum(n for n, _ in other.lane.booked().values()) == 1)
                exchange.complete()
                await until(lambda: not other.lane.booked())
            finally:
                await again.stop()

    run(main())


def test_a_new_picker_begins_with_what_the_others_know() -> None:
    async def main() -> None:
        ports = [free_port() for _ in range(2)]
        old, new = (Picker(port, ports) for port in ports)
        await old.start()
        try:
            for number in range(200):
                (await old.lane.send(f"{number:04d}" * 640)).complete()
            under_way = await old.lane.send()
            await new.start()
            await new.hears(old)
            await until(lambda: sum(n for n, _ in new.lane.booked().values()) == 1)
            await until(lambda: new.circle.followed[old.sharing.instance].caught_up)
            for number in (0, 100, 199):
                assert sum((await new.lane.held(f"{number:04d}" * 640)).values()) >= 10
            under_way.complete()
            await until(lambda: not new.lane.booked())
        finally:
            await new.stop()
            await old.stop()

    run(main())


def test_what_was_heard_is_not_told_again_after_a_cut() -> None:
    async def main() -> None:
        async with pickers() as (one, other):
            await until(lambda: other.circle.followed[one.sharing.instance].caught_up)
            for number in range(50):
                (await one.lane.send(f"{number:04d}" * 64)).complete()
            await until(lambda: other.circle.counts.heard_events >= 100)
            await one.stop()
            await until(lambda: not other.circle.followed)
            (await one.lane.send()).complete()  # meanwhile
            before = other.circle.counts.heard_events
            await one.start()
            await until(lambda: bool(other.circle.followed))
            await until(lambda: other.circle.followed[one.sharing.instance].caught_up)
            assert other.circle.counts.heard_events - before <= 3
            assert sum((await other.lane.held()).values()) >= 10

    run(main())


def test_lines_that_are_cut_under_load_leave_no_booking() -> None:
    async def main() -> None:
        async with pickers(3) as (one, other, third):
            stopping = asyncio.Event()

            async def traffic(picker: Picker) -> None:
                number = 0
                while not stopping.is_set():
                    number += 1
                    exchanges = [await picker.lane.send(f"{number % 7:04d}" * 64) for _ in range(8)]
                    await asyncio.sleep(0.01)
                    for exchange in exchanges:
                        exchange.complete()

            async with asyncio.TaskGroup() as group:
                for each in (one, other, third):
                    group.create_task(traffic(each))
                for _ in range(3):
                    heard = third.circle.counts.heard_events
                    await until(lambda heard=heard: third.circle.counts.heard_events > heard + 50)
                    await one.stop()
                    await until(lambda: one.sharing.instance not in third.circle.followed)
                    await one.start()
                    await third.hears(one, other)
                stopping.set()
            for each in (one, other, third):
                await until(lambda each=each: not each.lane.booked() and not each.circle.hearing)

    run(main())


def test_a_follower_that_does_not_read_is_cut_off_and_others_hear_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower, "MOST_WAITING", 100_000)

    async def main() -> None:
        async with pickers() as (one, other):
            asked = wire.Asked("slow", "p")
            async with following(one.port, asked) as call:
                first = wire.unpack(await call.read())
                assert first.instance == one.sharing.instance
                await until(lambda: len(one.circle.followers) == 2)
                number = 0
                while one.circle.counts.cut_off == 0:
                    number += 1
                    assert number < 20_000
                    (await one.lane.send(f"{number:04d}" * 64 * 200)).complete()
                    await asyncio.sleep(0)
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    while True:
                        await call.read()
                assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            exchange = await one.lane.send()
            await until(lambda: bool(other.lane.booked()))
            exchange.complete()
            await until(lambda: not other.lane.booked())

    run(main())


def test_a_silent_picker_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with pickers() as (one, other):
            await one.lane.send()
            await until(lambda: bool(other.lane.booked()))
            monkeypatch.setattr(circle, "HEARTBEAT", 1e9)  # it lives and says nothing any more
            took = await until(lambda: not other.lane.booked())
            assert took < 10.0

    run(main())


def test_pools_are_told_apart_and_one_that_is_not_served_yet_is_heard_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        ports = [free_port() for _ in range(2)]
        one, other = Picker(ports[0], ports, ("p", "q")), Picker(ports[1], ports, ("p",))
        await one.start()
        await other.start()
        try:
            await until(lambda: bool(one.lanes["p"].circle.followed))
            assert not one.lanes["q"].circle.followed
            exchange = await one.lanes["p"].send()
            await until(lambda: bool(other.lanes["p"].booked()))
            assert not one.lanes["q"].booked()
            exchange.complete()
            late = Picker(free_port(), ports, ("q",))
            await late.start()
            try:
                await until(lambda: bool(late.lanes["q"].circle.followed))
                exchange = await one.lanes["q"].send()
                await until(lambda: bool(late.lanes["q"].booked()))
                assert not other.lanes["p"].booked()
                one._tasks[-1].cancel()  # q is not served there any more
                took = await until(lambda: not late.lanes["q"].booked())
                assert took < link.SILENT_SECONDS
                exchange.complete()
            finally:
                await late.stop()
        finally:
            await other.stop()
            await one.stop()

    run(main())
    declined = [each.message for each in caplog.records if "tells nothing" in each.message]
    assert any("pool q is not served here" in each for each in declined)
    assert len(declined) <= 2  # once for each picker that asked


def test_nothing_is_heard_before_the_endpoints_are_known() -> None:
    """What is told of endpoints that are not known is lost, and would not be told again."""

    async def main() -> None:
        ports = [free_port() for _ in range(2)]
        old, new = (Picker(port, ports, ("p", "q")) for port in ports)
        late, other = new.lanes["p"], new.lanes["q"]
        late.pool.synced = False
        for name in NAMES:
            late.pool.remove(EndpointId(name))
        await old.start()
        await new.start()
        try:
            exchanges = [await each.send() for each in old.lanes.values()]
            await until(lambda: bool(other.booked()))
            assert not late.circle.followed
            late.sync()
            await until(lambda: bool(late.booked()))
            for exchange in exchanges:
                exchange.complete()
        finally:
            await new.stop()
            await old.stop()

    run(main())


def test_a_channel_that_is_closed_for_another_pool_is_opened_again() -> None:
    """As with certificates that have changed: gRPC says of the calls that they were cancelled."""

    async def main() -> None:
        async with pickers() as (one, other):
            exchange = await one.lane.send()
            await until(lambda: bool(other.lane.booked()))
            for place in other.sharing._places.values():
                await place.close()
            await until(lambda: not other.circle.followed)
            await until(lambda: bool(other.lane.booked()))
            exchange.complete()

    run(main())


def test_a_picker_of_two_addresses_is_heard_once() -> None:
    async def main() -> None:
        ports = [free_port() for _ in range(2)]
        one = Picker(ports[0], ports, hosts=("127.0.0.1", "127.0.0.2"))
        other = Picker(ports[1], ports, hosts=("127.0.0.1", "127.0.0.2"))
        await one.start()
        await other.start()
        try:
            exchange = await other.lane.send()
            await until(lambda: bool(one.lane.booked()))
            places = one.sharing._places.values()
            await until(lambda: sum(place._channel is not None for place in places) == 4)
            assert sum(n for n, _ in one.lane.booked().values()) == 1
            for each in (one, other):  # both addresses may answer at once, and one is hung up on
                await until(lambda each=each: len(each.circle.followers) == 1)
            exchange.complete()
            await until(lambda: not one.lane.booked())
        finally:
            await other.stop()
            await one.stop()

    run(main())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"", grpc.StatusCode.INVALID_ARGUMENT),
        (b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (wire.pack_request(wire.Asked("x", "other")), grpc.StatusCode.NOT_FOUND),
    ],
    ids=["nothing", "garbage", "a pool that is not served"],
)
def test_what_is_no_request_is_refused(request_: bytes, code: grpc.StatusCode) -> None:
    async def main() -> None:
        async with pickers(1) as (one,):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{one.port}") as channel:
                call = channel.unary_stream(wire.FOLLOW)(request_)
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call.read()
                assert error.value.code() is code
            asked = wire.Asked(one.sharing.instance, "p")
            async with following(one.port, asked) as call:  # itself
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call.read()
                assert error.value.code() is grpc.StatusCode.ALREADY_EXISTS
            assert not one.circle.followers
            assert not one.circle.followed

    run(main())


def test_a_fact_that_is_larger_than_a_message_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would cut off all followers, and again as often as they came for it."""
    share = ApproxPrefixCacheProducer.share

    def much(self: ApproxPrefixCacheProducer, request: InferenceRequest, pick: Pick) -> bytes:
        return bytes(5 * 2**20) if request.id == "much" else share(self, request, pick)

    monkeypatch.setattr(ApproxPrefixCacheProducer, "share", much)

    async def main() -> None:
        async with pickers() as (one, other):
            exchange = await one.lane.send(id="much")
            await until(lambda: bool(other.lane.booked()))
            exchange.complete()
            await until(lambda: not other.lane.booked())
            assert sum((await other.lane.held()).values()) == 0
            (await one.lane.send()).complete()  # of the next one all is told
            await until(lambda: other.circle.counts.heard_events >= 4)
            assert sum((await other.lane.held()).values()) >= 10

    run(main())


def test_the_past_is_told_no_faster_than_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new picker would be cut off, and again as often as it came, and never know it."""
    monkeypatch.setattr(follower, "MOST_WAITING", 2 * 2**20)

    async def main() -> None:
        async with pickers(1) as (one,):
            facts = {"prefix": bytes(16_384)}  # of a prompt of 2,048 blocks
            for number in range(1, 601):
                past = Sent(number, 1.0, EndpointId("a"), 131_072, 0, over=True, facts=facts)
                one.circle.telling._keep(past)
            async with following(one.port, wire.Asked("slow", "p")) as call:
                told = 0
                while not (news := wire.unpack(await call.read())).past_told:
                    told += len(news)
                    await asyncio.sleep(0.005)  # to learn it
            assert told + len(news) == 600
            assert one.circle.counts.cut_off == 0

    run(main())
