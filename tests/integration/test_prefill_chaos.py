"""Many requests whose prefills the picker runs, with all that can go wrong: no answer is wrong, nothing is left."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import random
from collections import Counter
from pathlib import Path

import msgspec

from epp.model import Outcome
from epp.sim import tokenizer
from tests.support.engine import EngineServer, expected
from tests.support.remote_prefill import PREFILL, Case, decoded, until, with_case

REQUESTS = int(os.environ.get("EPP_CHAOS_REQUESTS", "60"))
AT_ONCE = 32
FAULTS = ("error", "disconnect", "malformed", "missing", "hang")
LASTING = msgspec.structs.replace(PREFILL, kv_lease_duration=3000.0)


def test_no_answer_is_wrong_and_nothing_is_left_whatever_happens_meanwhile() -> None:
    seen: Counter[str] = Counter()

    async def use(case: Case, engines: list[EngineServer]) -> None:
        dice, numbers = random.Random(5), iter(range(REQUESTS))

        async def client() -> None:
            for number in numbers:
                _disturb(case, number)
                seen[await _asked(case, number, dice)] += 1

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))
        await until(lambda: case.idle)
        for each in engines:
            each.transfers.expire(math.inf)  # what nobody came for
        await until(lambda: not any(each.engine.cache.used for each in engines))
        assert len(case.diary.endings) == len(case.diary.picks)
        assert not engines[0].died.is_set()
        assert sum(case.client.counts.values()) >= REQUESTS // 2
        assert {"done", "choices"} <= case.client.counts.keys()

    faulty = msgspec.structs.replace(LASTING, kv_faults=FAULTS, kv_fault_rate=0.5)
    gc.collect()
    files = _open_files()
    with_case(use, faulty, LASTING, timeout="300ms")
    gc.collect()
    assert _open_files() <= files
    assert set(seen) == {"right", "left"}, seen


def _disturb(case: Case, number: int) -> None:
    """Now and then an endpoint's process is another one, or the endpoint is gone and back."""
    if number % 9 == 0:
        case.pool.restarted(case.endpoints[f"p{number % 2}"].id)
    if number % 25 == 0:
        case.pool.remove(case.endpoints["p1"].id)
        case.pool.put(case.endpoints["p1"])


async def _asked(case: Case, number: int, dice: random.Random) -> str:
    prompt = tokenizer.text(dice.choice((20, 150, 400)), seed=number)
    body = {"model": "sim", "prompt": prompt, "max_tokens": 8, "n": 2 if number % 11 == 0 else 1}
    if number % 5 == 0:
        body["kv_transfer_params"] = {"do_remote_prefill": True}
    leaves = dice.random() * 0.03 if number % 4 == 0 else None
    try:
        async with asyncio.timeout(leaves):
            exchange = await case.route(body)
    except TimeoutError:
        return "left"
    status, answer = await decoded(exchange)
    exchange.end(Outcome.COMPLETED)
    right = status == 200 and answer["choices"][0]["text"] == expected(prompt, 8)
    return "right" if right else f"wrong: {status}, {exchange.leg}"


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
