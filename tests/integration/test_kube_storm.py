"""Whatever an API server does, in any order: in the end the copy is what the server has."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.kube import FakeKube
from tests.support.kube_follow import PODS, Followed, following, pod
from tests.support.pages import until

STEPS = 120


def change(server: FakeKube, chance: random.Random) -> None:
    """Create, change, delete or create anew one of a few pods."""
    name = f"pod-{chance.randrange(8)}"
    if server.get(PODS, name) is not None and chance.random() < 0.4:
        server.remove(PODS, name)
        if chance.random() < 0.5:
            return
    server.put(PODS, pod(name, labels={"n": str(chance.random())}))


def break_something(server: FakeKube, chance: random.Random) -> None:
    """One of the ways in which an API server fails."""
    faults = (
        server.end_watches,
        server.expire,
        lambda: server.cut_watches(mid_line=chance.random() < 0.5),
        lambda: server.fail_watches(chance.choice((410, 500, 504))),
        lambda: server.say(b"{rubbish\n"),
        lambda: server.refuse(chance.choice((401, 403, 404, 410, 429, 500, 503)), times=2),
        lambda: setattr(server.faults, "expired_as_status", chance.random() < 0.5),
        lambda: setattr(server.faults, "expired_pages", chance.randrange(2)),
    )
    chance.choice(faults)()


def heal(server: FakeKube) -> None:
    server.faults.refusals.clear()
    server.faults.expired_pages = 0


def check_told(followed: Followed) -> None:
    """Nothing is told gone that was not put, and of each name one object is there at most."""
    there: set[str] = set()
    for sign, name in ((each[0], each[1:]) for each in followed.told):
        assert sign == "+" or name in there
        there = there | {name} if sign == "+" else there - {name}
    assert there == followed.names


@pytest.mark.parametrize("seed", range(6))
def test_in_the_end_the_copy_is_what_the_server_has(seed: int) -> None:
    chance = random.Random(seed)

    async def scenario() -> None:
        async with FakeKube() as server, following(server) as followed:
            for _ in range(STEPS):
                change(server, chance)
                if chance.random() < 0.3:
                    break_something(server, chance)
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 0.03)
            heal(server)
            change(server, chance)
            await until(lambda: followed.now == server.objects.collection(PODS), 5)
            check_told(followed)

    asyncio.run(scenario())
