"""Many requests of all kinds at once, with every fault there is: nothing is left, and no answer wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import random
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from epp.local.fleet import free_port
from epp.sim import tokenizer
from epp.sim.transfer.faults import FAULTS
from tests.support.engine import expected
from tests.support.serving import eventually
from tests.support.sidecar import DECODE, PREFILL, Bench, changed, with_sidecar

REQUESTS = int(os.environ.get("EPP_CHAOS_REQUESTS", "300"))  #: 2,000 takes half a minute
AT_ONCE = 32
#: A lease that has ended is seen by the engine that reads it, not by who sends it there: see the
#: test of the lease. So no answer here is made from blocks that were given back.
KINDS = tuple(sorted(set(FAULTS) - {"expired"}))


def test_under_chaos_every_answer_is_right_and_nothing_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcomes: Counter[str] = Counter()

    async def use(bench: Bench) -> None:
        dice = random.Random(7)
        dead = f"127.0.0.1:{free_port()}"
        numbers = iter(range(REQUESTS))

        async def client() -> None:
            async with aiohttp.ClientSession() as http:
                for number in numbers:
                    outcomes[await _one(bench, http, number, dice, dead)] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(client())
        for each in bench.prefills:
            each.transfers.expire(math.inf)  # what nobody came for
        await eventually(bench.at_rest)
        ways = ("split", "local", "fallback", "passed")
        counted = {way: bench.count("epp_sidecar_requests_total", way=way) for way in ways}
        assert min(counted.values()) > 5, counted
        assert not bench.decode.died.is_set()

        async def closed() -> bool:
            return not bench.decode._runner.server.connections

        await eventually(closed)  # the legs of the engine; those of prefills are kept for a while

    prefills = [
        changed(PREFILL, kv_faults=KINDS, kv_fault_rate=0.3, seed=0),
        PREFILL,
    ]
    decode = changed(DECODE, kv_connect_timeout=25.0)
    files = _open_files()
    with_sidecar(use, prefills=prefills, decode=decode, prefill_timeout=1.0)
    assert _open_files() <= files
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
    assert set(outcomes) == {"right", "left", "listed"}, outcomes


async def _one(
    bench: Bench, http: aiohttp.ClientSession, number: int, dice: random.Random, dead: str
) -> str:
    """One request of some kind; return how it went."""
    if number % 20 == 0:
        async with http.get(bench.url("/v1/models")) as got:
            return "listed" if got.status == 200 else f"models {got.status}"
    prompt = tokenizer.text(dice.choice((20, 200, 800)), seed=number)
    tokens = dice.choice((1, 8, 40))
    stream, leaves = dice.random() < 0.5, number % 7 == 0
    endpoints = dice.choice(([], bench.addresses, bench.addresses[:1], [dead, bench.addresses[0]]))
    body = {"model": "sim", "prompt": prompt, "max_tokens": tokens, "stream": stream}
    if number % 5 == 0:
        body["kv_transfer_params"] = {"do_remote_prefill": True}
    try:
        async with asyncio.timeout(dice.random() * 0.05 if leaves else 30.0):
            async with http.post(bench.url(), json=body, headers=bench.head(endpoints)) as got:
                raw = await got.read()
    except TimeoutError:
        return "left" if leaves else "no answer"
    if got.status != 200:
        return f"status {got.status}"
    return "right" if _text(raw, stream=stream) == expected(prompt, tokens) else "wrong"


def _text(raw: bytes, *, stream: bool) -> str:
    if not stream:
        return str(json.loads(raw)["choices"][0]["text"])
    events = [json.loads(e[6:]) for e in raw.split(b"\n\n") if e.startswith(b"data: {")]
    return "".join(event["choices"][0]["text"] for event in events)


def _open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))
