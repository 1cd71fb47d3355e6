"""The soak of many engines: what it plays, and what it finds wrong. The whole of it takes a minute."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
import msgspec
import pytest

from epp.local.processes import running
from epp.soak.pods import Pods, options_of
from epp.soak.run import judge, line
from epp.soak.seen import Seen, hit_rate
from epp.traffic.figures import Sample

GOOD = Seen(
    seconds=60.0, requests=100, errors=0, hit_rate=0.875, by_events=1.0, exact=100, engines=100,
    reasons={}, gaps=3, lost=0, replays=103, restarts=0, blocks=9000, megabytes=120.4,
    core_percent=14.6,
)  # fmt: skip


def but(**changes: object) -> list[Seen]:
    return [msgspec.structs.replace(GOOD, **changes)]


def test_pods_are_engines_of_their_own_and_the_mute_tell_nobody_anything(tmp_path: Path) -> None:
    async def run() -> None:
        pods = msgspec.json.encode(Pods(2, mute=1)).decode()
        command = [sys.executable, "-m", "epp.soak.pods", pods]
        async with running(command, tmp_path / "log") as child, aiohttp.ClientSession() as http:
            told = []
            for port in json.loads(child.first_line):
                async with http.get(f"http://127.0.0.1:{port}/kv_event_sources") as answer:
                    told.append((await answer.json())["0"])
        assert [each["replay_endpoint"] is None for each in told] == [True, False]
        assert told[0]["endpoint"] != told[1]["endpoint"]

    asyncio.run(run())
    assert [options_of(Pods(mute=1, drop=0.3), n).kv_events_drop for n in (0, 1)] == [1.0, 0.3]


def test_all_is_well_if_nothing_failed_and_all_that_tell_are_trusted() -> None:
    assert judge(Pods(), [GOOD]) == []
    assert judge(Pods(mute=2), but(exact=98, reasons={"silent": 2})) == []
    assert judge(Pods(restart_seconds=5.0), but(exact=90, errors=3)) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"errors": 2}, "2 requests failed"),
        ({"exact": 99, "reasons": {"no_room": 1}}, "99 of 100 engines are trusted, 0 are mute"),
        ({"by_events": 0.4}, "events told of 40% of the requests only"),
    ],
    ids=["errors", "distrust", "no token ids"],
)
def test_what_should_not_be_is_said(changes: dict[str, object], says: str) -> None:
    assert [each.startswith(says) for each in judge(Pods(), but(**changes))] == [True]


def test_a_moment_is_one_line() -> None:
    said = line(but(reasons={"silent": 2}, exact=98)[0])
    assert said == (
        "    60 s  100 requests, 0 failed, 87.5% cached, 100% by events; 98/100 exact, 2 silent; "
        "3 gaps, 0 lost, 103 replays, 0 restarts; 9000 blocks, 120 MB, 15 % of a core"
    )


def test_the_hit_rate_is_of_tokens_as_engines_count() -> None:
    samples = [Sample(prompt_tokens=100, cached_tokens=50), Sample(prompt_tokens=300)]
    assert hit_rate(samples) == 0.125
    assert hit_rate([]) is None
