"""The reflector tells what is there and what changes."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from epp.kube.client import Kube
from epp.kube.identity.credentials import Credential
from tests.support.kube import FakeKube
from tests.support.kube_follow import PODS, QUICK, Followed, following, pod, settled
from tests.support.pages import until


class Moody:
    """Credentials with a bug that shows twice."""

    def __init__(self) -> None:
        self.asked = 0

    async def current(self) -> Credential:
        self.asked += 1
        if self.asked < 3:
            raise KeyError("a bug")
        return Credential()

    def refuse(self, credential: Credential) -> None:
        raise AssertionError("nothing was refused")


def test_it_reads_page_by_page_and_then_follows() -> None:
    async def scenario() -> None:
        async with FakeKube() as server:
            names = [f"pod-{index}" for index in range(8)]
            async with settled(server, *names) as followed:
                assert [each.query.get("limit") for each in server.asked("list")] == ["3"] * 3
                server.put(PODS, pod("new"))
                server.put(PODS, pod("pod-1", labels={"a": "b"}))
                server.remove(PODS, "pod-2")
                await until(lambda: followed.told[8:] == ["+new", "+pod-1", "-pod-2"])
                assert followed.names == {*names, "new"} - {"pod-2"}

    asyncio.run(scenario())


def test_a_watch_begins_at_the_version_of_the_list_and_asks_for_bookmarks() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a"):
            query = server.asked("watch")[0].query
            assert query["resourceVersion"] == str(server.objects.version)
            assert query["allowWatchBookmarks"] == "true"
            assert 5 <= int(query["timeoutSeconds"]) <= 10

    asyncio.run(scenario())


def test_bookmarks_move_the_version_from_which_a_watch_resumes() -> None:
    async def scenario() -> None:
        async with FakeKube(bookmark_seconds=0.05) as server, settled(server, "a") as followed:
            for index in range(5):  # nothing of ours changes
                server.put("/api/v1/namespaces/default/services", pod(f"other-{index}"))
            newest = str(server.objects.version)
            await asyncio.sleep(0.15)
            server.end_watches()
            await until(lambda: len(server.asked("watch")) == 2)
            assert server.asked("watch")[1].query["resourceVersion"] == newest
            assert followed.lists == 1
            assert followed.told == ["+a"]  # a bookmark is no object

    asyncio.run(scenario())


def test_everything_is_read_again_from_time_to_time() -> None:
    async def scenario() -> None:
        pace = msgspec.structs.replace(QUICK, watch=0.5, relist=0.5)
        async with FakeKube() as server, settled(server, "a", "b", pace=pace) as followed:
            lost = server.objects
            lost.collection(PODS).pop("a")  # an event that was never sent
            await until(lambda: followed.names == {"b"})
            assert followed.lists >= 2

    asyncio.run(scenario())


def test_a_server_that_is_down_is_asked_with_growing_pauses() -> None:
    async def scenario() -> None:
        async with FakeKube() as server:
            server.refuse(503, verbs=("list",), times=8)
            async with following(server) as followed:
                await until(lambda: followed.reflector.synced)
                times = [each.at for each in server.asked("list")]
                pauses = [after - before for before, after in pairwise(times)]
                assert 0.01 <= pauses[0] < 0.05  # half to all of 0.02 s
                assert all(0.05 <= pause < 0.2 for pause in pauses[4:])  # half to all of 0.1 s

    asyncio.run(scenario())


def test_only_what_the_selectors_choose_is_followed() -> None:
    async def scenario() -> None:
        async with FakeKube() as server:
            server.put(PODS, pod("a", labels={"app": "vllm"}))
            server.put(PODS, pod("b", labels={"app": "other"}))
            chosen = {"label_selector": "app in (vllm, sglang),!canary"}
            async with following(server, **chosen) as followed:
                await until(lambda: server.watching == 1)
                assert followed.names == {"a"}
                server.put(PODS, pod("a", labels={"app": "vllm", "canary": "yes"}))
                await until(lambda: followed.names == set())
                server.put(PODS, pod("b", labels={"app": "sglang"}))
                await until(lambda: followed.names == {"b"})
            async with following(server, field_selector="metadata.name=a") as followed:
                await until(lambda: followed.names == {"a"})

    asyncio.run(scenario())


@pytest.mark.parametrize("away", [True, False])
def test_b060_a_pod_created_anew_under_its_name_is_another_one(away: bool) -> None:
    """production-stack#471: after delete and create, traffic went to the old address."""

    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a") as followed:
            if away:
                server.cut_watches()
            server.remove(PODS, "a")
            server.put(PODS, pod("a", uid="another"))
            if away:
                server.expire()
            await until(lambda: followed.told == ["+a", "-a", "+a"])
            assert followed.now["a"]["metadata"]["uid"] == "another"

    asyncio.run(scenario())


def test_b058_one_object_that_cannot_be_used_harms_no_other() -> None:
    """production-stack#656: the handling of one pod failed, the table was never updated again."""

    def keep(it: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": it["metadata"], "port": int(it["metadata"].get("port", "1"))}

    async def scenario() -> None:
        async with FakeKube() as server:
            server.put(PODS, pod("bad", port="x"))
            async with following(server, keep=keep) as followed:
                server.put(PODS, pod("a"))
                await until(lambda: followed.names == {"a"})
                server.put(PODS, pod("bad", port="2"))
                await until(lambda: followed.names == {"a", "bad"})
                server.put(PODS, pod("bad", port="y"))  # what it was no longer holds
                server.put(PODS, pod("b"))
                await until(lambda: followed.names == {"a", "b"})

    asyncio.run(scenario())


def test_b058_a_listener_that_fails_ends_nothing() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, settled(server, "a") as followed:
            del followed.now["a"]
            server.remove(PODS, "a")  # its listener raises KeyError
            server.put(PODS, pod("b"))
            await until(lambda: followed.names == {"b"})
            assert followed.lists == 1

    asyncio.run(scenario())


def test_an_object_of_a_megabyte_passes() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, settled(server) as followed:
            server.put(PODS, pod("big", annotations={"text": "ü" * 1_000_000}))
            await until(lambda: followed.names == {"big"})
            assert len(followed.now["big"]["metadata"]["annotations"]["text"]) == 1_000_000
            assert followed.lists == 1

    asyncio.run(scenario())


def test_a_bug_in_what_is_called_ends_no_reflector() -> None:
    async def scenario() -> None:
        async with FakeKube() as server:
            server.put(PODS, pod("a"))
            credentials = Moody()
            access = msgspec.structs.replace(server.access(), credentials=credentials)
            async with Kube(access) as kube:
                followed = Followed(kube)
                task = asyncio.create_task(followed.reflector.run())
                await until(lambda: followed.names == {"a"})
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert credentials.asked > 2

    asyncio.run(scenario())
