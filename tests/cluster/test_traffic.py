"""Requests through the gateway while the cluster's objects change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from epp.sim.server import NAME_HEADER
from tests.support.cluster.load import END, complete, load
from tests.support.cluster.sites import Gateway, any_site
from tests.support.serving import eventually

LLM_D = "llm-d.ai/v1alpha2"


async def answered_by(port: int, count: int = 24) -> set[str]:
    """Names of the engines that answered so many requests, one after the other."""
    names = set()
    for number in range(count):
        answer = await complete(port, prompt=f"{number} is new")
        assert answer.status == 200, answer
        names.add(answer.headers[NAME_HEADER])
    return names


def test_every_pod_that_is_there_answers_and_none_that_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with any_site(tmp_path, count=3) as it:
            assert await answered_by(it.port) == set(it.names)
            before = set(it.names)
            await it.scale(1)
            assert await answered_by(it.port) == set(it.names) < before
            await it.scale(3)
            assert await answered_by(it.port) == set(it.names)

    asyncio.run(main())


def test_without_pods_requests_are_refused_until_there_are_some(tmp_path: Path) -> None:
    async def main() -> None:
        async with any_site(tmp_path, count=1) as it:
            await it.scale(0)
            refused = await complete(it.port)
            assert (refused.status, msgspec.json.decode(refused.body)["error"]["code"]) == (
                503,
                503,
            )
            await it.scale(2)
            assert await answered_by(it.port) == set(it.names)

    asyncio.run(main())


def test_a_stream_outlives_the_mark_on_its_pod(tmp_path: Path) -> None:
    async def main() -> None:
        async with any_site(tmp_path, count=2) as it:
            streams = [asyncio.create_task(complete(it.port, tokens=250, stream=True))
                       for _ in range(8)]  # fmt: skip
            await asyncio.sleep(0.4)
            await it.scale(1)
            answers = await asyncio.gather(*streams)
            assert [each.status for each in answers] == [200] * 8
            assert all(END in each.body and b'"abort"' not in each.body for each in answers)
            assert len({each.headers[NAME_HEADER] for each in answers}) == 2

    asyncio.run(main())


def test_a_rewrite_changes_the_model_and_the_answer_tells_the_asked_one(tmp_path: Path) -> None:
    async def rewritten(it: Gateway) -> bool:
        answer = await complete(it.port, model="public", stream=True)
        if answer.status != 200:
            assert answer.status == 404  # no engine has that model
            return False
        assert b'"model":"public"' in answer.body.replace(b'": "', b'":"')
        return b'"small"' not in answer.body

    async def main() -> None:
        async with any_site(tmp_path, count=2) as it:
            match = {"model": {"type": "Exact", "value": "public"}}
            path = await it.release.add({
                "apiVersion": LLM_D, "kind": "InferenceModelRewrite", "metadata": {"name": "names"},
                "spec": {
                    "poolRef": {"group": "inference.networking.k8s.io", "kind": "InferencePool",
                                "name": it.release.pool},
                    "rules": [{"matches": [match], "targets": [{"modelRewrite": "small"}]}],
                },
            })  # fmt: skip
            await eventually(lambda: rewritten(it), bound=20.0)
            await it.release.remove(path)

            async def unknown() -> bool:
                return (await complete(it.port, model="public")).status == 404

            await eventually(unknown, bound=20.0)

    asyncio.run(main())


@pytest.mark.timeout(240)
def test_a_rolling_update_of_50_pods_under_load_fails_no_request(tmp_path: Path) -> None:
    """Each pod: created, ready, used; marked, its hook, SIGTERM, its last answers, gone."""

    async def main() -> None:
        async with any_site(tmp_path, count=50) as it:
            old = set(it.names)
            clock = asyncio.get_running_loop().time
            async with load(it.port, clients=12) as seen:
                await asyncio.sleep(1.0)
                began = clock()
                await it.roll(surge=10)
                rolled = clock()
                await asyncio.sleep(1.0)
            assert seen.failed == []
            assert sum(began < each.began < rolled for each in seen.all) >= 10
            assert old.isdisjoint(it.names)
            assert len(it.names) == len(old)
            assert set(seen.engines(since=rolled)) <= set(it.names)
            assert any(each.streamed and each.ended - each.began > 1.0 for each in seen.all)

    asyncio.run(main())
