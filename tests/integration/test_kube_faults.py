"""The reflector against an API server that fails in every way one is known to fail."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
import uvloop
from aiohttp import web

from tests.support.kube import FakeKube
from tests.support.kube_follow import PODS, QUICK, following, pod, settled
from tests.support.pages import until


def test_b160_a_pod_deleted_while_no_watch_was_open_is_gone() -> None:
    """production-stack#1091: a DELETED event fell into a reconnect gap; served for 22 hours."""

    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a", "b") as followed:
            await server.stop()
            server.remove(PODS, "a")
            server.expire()
            await server.start()
            await until(lambda: followed.names == {"b"}, 5)
            assert followed.told.count("-a") == 1

    asyncio.run(scenario())


def test_b160_the_same_where_the_server_still_knows_the_history() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a", "b") as followed:
            await server.stop()
            server.remove(PODS, "a")
            await server.start()
            await until(lambda: followed.names == {"b"}, 5)
            assert followed.lists == 1  # the watch was resumed

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "fault", ["410 as status", "410 as event", "reset", "reset mid-line", "429", "500"]
)
def test_b169_whatever_ends_a_watch_no_pod_is_lost_or_told_twice(fault: str) -> None:
    """kubernetes-client/python#728: 410 comes in two shapes, and the old version is dead."""

    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a", "b") as followed:
            expired = fault.startswith("410")
            server.faults.expired_as_status = fault == "410 as status"
            if fault in {"429", "500"}:
                server.refuse(int(fault), verbs=("watch",), times=2)
            server.cut_watches(mid_line=fault == "reset mid-line")
            server.remove(PODS, "a")
            server.put(PODS, pod("c"))
            if expired:
                server.expire()
            await until(lambda: followed.names == {"b", "c"}, 5)
            await until(lambda: server.watching == 1)
            assert sorted(followed.told) == ["+a", "+b", "+c", "-a"]
            assert followed.lists == (2 if expired else 1)
            server.put(PODS, pod("d"))  # and it goes on
            await until(lambda: "d" in followed.names)

    asyncio.run(scenario())


def test_b169_a_clean_end_resumes_from_the_last_event() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a") as followed:
            server.put(PODS, pod("b"))
            await until(lambda: "b" in followed.names)
            server.end_watches()
            await until(lambda: len(server.asked("watch")) == 2)
            assert server.asked("watch")[1].query["resourceVersion"] == str(server.objects.version)
            assert followed.told == ["+a", "+b"]

    asyncio.run(scenario())


def test_an_error_event_of_any_code_leads_to_a_list() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a") as followed:
            server.fail_watches(500)
            await until(lambda: followed.lists == 2 and server.watching == 1)
            assert followed.told == ["+a"]

    asyncio.run(scenario())


@pytest.mark.parametrize("rubbish", [b"{not json\n", b'{"type":"ADDED","object":{}}\n', b"\n"])
def test_a_line_that_cannot_be_read_leads_to_a_list(rubbish: bytes) -> None:
    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a") as followed:
            server.say(rubbish)
            await until(lambda: followed.lists == 2 and server.watching == 1)

    asyncio.run(scenario())


def test_a_silent_watch_is_given_up_and_its_changes_are_heard() -> None:
    async def scenario() -> None:
        pace = msgspec.structs.replace(QUICK, watch=0.5, grace=0.2)  # dead after 1.2 s
        async with FakeKube() as server, settled(server, "a", pace=pace) as followed:
            server.faults.silent = True
            await until(lambda: server.watching == 1)
            began = time.monotonic()
            server.put(PODS, pod("b"))
            server.faults.silent = True
            while len(server.asked("watch")) < 2:
                await asyncio.sleep(0.01)
                assert time.monotonic() - began < 2.5
            server.faults.silent = False
            await until(lambda: "b" in followed.names)

    asyncio.run(scenario())


def test_a_server_that_takes_requests_and_never_answers_is_given_up() -> None:
    async def scenario() -> None:
        pace = msgspec.structs.replace(QUICK, call=0.2)
        async with FakeKube() as server:
            server.faults.hang = True
            async with following(server, pace=pace) as followed:
                await until(lambda: len(server.asked("list")) >= 2)
                assert not followed.reflector.synced
                server.faults.hang = False
                await until(lambda: followed.reflector.synced)

    asyncio.run(scenario())


def test_retry_after_is_not_undercut() -> None:
    async def scenario() -> None:
        async with FakeKube() as server:
            server.refuse(429, verbs=("list",), retry_after=1)
            async with following(server) as followed:
                await until(lambda: followed.reflector.synced)
                first, second = server.asked("list")[:2]
                assert 1.0 <= second.at - first.at < 2.0

    asyncio.run(scenario())


def test_a_watch_that_always_ends_at_once_is_no_hot_loop() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a"):
            before = len(server.requests)
            for _ in range(50):
                server.end_watches()
                await asyncio.sleep(0.01)
            assert len(server.requests) - before < 25

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_refuses_us_for_a_moment_is_asked_again(status: int) -> None:
    """One that has just restarted answers 403 to everybody."""

    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a", "b") as followed:
            await server.stop()
            server.remove(PODS, "a")
            server.refuse(status, times=3)
            await server.start()
            await until(lambda: bool(followed.reflector.forbidden))
            assert str(status) in followed.reflector.forbidden
            assert "b" in followed.names  # what we knew stands
            await until(lambda: followed.names == {"b"})
            await until(lambda: followed.reflector.forbidden == "")

    asyncio.run(scenario())


def test_b168_missing_rights_are_told_and_asked_for_again() -> None:
    """gateway-api-inference-extension, istio.io#17528: a role that lacked list rights."""

    async def scenario() -> None:
        async with FakeKube() as server:
            server.refuse(403, times=10_000, path="pods")
            async with following(server) as followed:
                await until(lambda: len(server.asked("list")) >= 4)
                assert "403" in followed.reflector.forbidden
                assert not followed.reflector.synced
                server.faults.refusals.clear()
                await until(lambda: followed.reflector.synced)
                await until(lambda: followed.reflector.forbidden == "")

    asyncio.run(scenario())


def test_rights_to_list_but_not_to_watch_still_notice_changes() -> None:
    async def scenario() -> None:
        async with FakeKube() as server:
            server.put(PODS, pod("a"))
            server.refuse(403, times=10_000, verbs=("watch",))
            async with following(server) as followed:
                await until(lambda: followed.names == {"a"})
                server.remove(PODS, "a")
                await until(lambda: followed.names == set())
                for _ in range(50):  # it does not flicker
                    assert "403" in followed.reflector.forbidden
                    await asyncio.sleep(0.005)

    asyncio.run(scenario())


def test_b168_a_resource_that_is_not_served_is_missing_until_it_is() -> None:
    pools = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"

    async def scenario() -> None:
        async with FakeKube() as server:
            server.faults.missing.add(pools)
            async with following(server, path=pools) as followed:
                await until(lambda: followed.reflector.missing)
                await until(lambda: len(server.asked("list")) >= 2)
                times = [each.at for each in server.asked("list")]
                assert times[1] - times[0] >= 0.1
                assert not followed.reflector.synced
                server.faults.missing.clear()
                server.put(pools, pod("pool"))
                await until(lambda: followed.names == {"pool"})
                assert not followed.reflector.missing

    asyncio.run(scenario())


def test_a_resource_that_is_taken_away_is_gone_but_not_at_once() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a") as followed:
            server.faults.missing.add(PODS)
            server.end_watches()
            await until(lambda: bool(server.asked("list")[1:]))
            assert followed.names == {"a"}  # a server that just started may not know its CRDs
            assert not followed.reflector.missing
            await until(lambda: followed.reflector.missing)
            assert followed.names == set()


def test_a_resource_that_is_missing_for_a_moment_keeps_its_objects() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a") as followed:
            server.refuse(404, times=2)
            server.end_watches()
            await until(lambda: not server.faults.refusals and server.watching == 1)
            assert followed.told == ["+a"]

    asyncio.run(scenario())


def test_an_expired_page_begins_the_list_anew() -> None:
    async def scenario() -> None:
        async with FakeKube() as server:
            server.faults.expired_pages = 1
            names = [f"pod-{index}" for index in range(7)]
            async with settled(server, *names) as followed:
                assert sorted(followed.told) == [f"+{name}" for name in names]
                starts = [each for each in server.asked("list") if "continue" not in each.query]
                assert len(starts) == 2

    asyncio.run(scenario())


class Stuck(FakeKube):
    """Its lists never end: each page names itself as the next one."""

    stuck = True

    def _list(self, request: web.Request, collection: str) -> web.Response:
        if not self.stuck:
            return super()._list(request, collection)
        about = {"resourceVersion": "7", "continue": "again"}
        return web.json_response({"kind": "List", "metadata": about, "items": []})


def test_a_list_whose_pages_never_end_is_no_hot_loop() -> None:
    async def scenario() -> None:
        async with Stuck() as server:
            server.put(PODS, pod("a"))
            async with following(server) as followed:
                await until(lambda: len(server.asked("list")) >= 6)
                times = [each.at for each in server.asked("list")]
                assert times[4] - times[0] >= 0.01  # two lists of two pages, and pauses between
                assert not followed.reflector.synced
                server.stuck = False
                await until(lambda: followed.names == {"a"})

    asyncio.run(scenario())


def test_a_watch_whose_answer_does_not_begin_is_given_up_early() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a", seconds=0.3) as followed:
            server.faults.hang = True
            server.cut_watches()
            server.put(PODS, pod("b"))
            began = time.monotonic()
            await until(lambda: len(server.asked("watch")) >= 3)  # each one is bounded by 5.2 s
            assert time.monotonic() - began < 3
            server.faults.hang = False
            await until(lambda: followed.names == {"a", "b"})

    asyncio.run(scenario())


def test_the_faults_are_survived_on_uvloop_too() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a", "b") as followed:
            server.cut_watches(mid_line=True)
            server.remove(PODS, "a")
            await until(lambda: followed.names == {"b"}, 5)
            await until(lambda: server.watching == 1)
            server.fail_watches(410)
            server.put(PODS, pod("c"))
            await until(lambda: followed.names == {"b", "c"}, 5)
            await server.stop()
            server.remove(PODS, "b")
            server.expire()
            await server.start()
            await until(lambda: followed.names == {"c"}, 5)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
