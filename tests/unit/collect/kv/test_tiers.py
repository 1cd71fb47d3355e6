"""Engines with lower tiers: what they told of these is what they load, and it is worth less."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from epp.model import Endpoint, InferenceRequest, Tokens
from epp.prefix.exact.events import Tier
from epp.prefix.exact.index import Known
from epp.prefix.exact.keys import Prompt
from epp.prefix.precise import PrecisePrefixCacheProducer
from epp.sim import tokenizer
from epp.sim.options import EngineOptions
from epp.sim.tokenizer import text
from tests.support.engine import served
from tests.support.kv_feeds import PUBLISHING, asked, endpoint, exact, producer, subscribed, until

SMALL = structs.replace(PUBLISHING, kv_blocks=21)  # twenty blocks of 16 tokens
TEXTS = [text(200, seed=seed) for seed in range(3)]  # 12 whole blocks each


def ids(prompt: str) -> bytes:
    return tokenizer.encode(prompt.encode()).astype("<u4").tobytes()


def known(made: PrecisePrefixCacheProducer, prompt: str) -> Known:
    return made.index.look_up(Prompt(ids(prompt), ""))


def told(made: PrecisePrefixCacheProducer, port: int, prompt: str) -> tuple[int, ...]:
    """Return the blocks of a prompt that an engine holds, by their fastest tier."""
    found, at = known(made, prompt), endpoint(port).id
    blocks = found.blocks.get(at, 0)
    return tuple(found.lower.get(at, (blocks, 0, 0, 0, 0)))


async def asked_all(made: PrecisePrefixCacheProducer, port: int) -> None:
    """Ask an engine for every text, and wait until the last one's blocks are known."""
    await exact(made, port)
    for prompt in TEXTS:
        await asked(port, prompt)
    await until(lambda: told(made, port, TEXTS[2])[Tier.GPU] == 12, "the last blocks")


@asynccontextmanager
async def all_asked(
    options: EngineOptions,
) -> AsyncIterator[tuple[PrecisePrefixCacheProducer, int]]:
    """Serve one engine that was asked for every text, and who follows its events."""
    async with served(options) as [(_, port)]:
        made = producer()
        async with subscribed(made, endpoint(port)):
            await asked_all(made, port)
            yield made, port


@pytest.mark.parametrize("layout", ["map", "array"])
def test_what_is_told_of_lower_tiers_is_what_is_loaded(layout: str) -> None:
    async def run() -> None:
        options = structs.replace(
            SMALL, kv_cpu_blocks=20, kv_disk_blocks=100, kv_events_layout=layout
        )
        async with all_asked(options) as (made, port):
            for prompt in TEXTS[:2]:
                await until(lambda p=prompt: sum(told(made, port, p)) == 12, "all tiers")
            before = [told(made, port, prompt) for prompt in TEXTS]
            assert before[0][Tier.DISK] == 12  # the CPU has room for the other two, almost
            assert before[1][Tier.GPU] + before[1][Tier.CPU] + before[1][Tier.DISK] == 12
            assert before[1][Tier.CPU] > 0
            assert [await asked(port, prompt) for prompt in TEXTS[:2]] == [192, 192]
            await until(lambda: told(made, port, TEXTS[1])[Tier.GPU] == 12, "the blocks loaded")
            assert made.trust(endpoint(port).id).reason == ""

    asyncio.run(run())


def test_the_index_prices_a_block_by_the_fastest_tier_that_holds_it() -> None:
    async def run() -> None:
        lower = structs.replace(SMALL, kv_cpu_blocks=100)
        async with served(PUBLISHING, lower, SMALL) as [(_, gpu), (_, cpu), (_, none)]:
            made = producer()
            pods = [endpoint(port) for port in (gpu, cpu, none)]
            async with subscribed(made, *pods):
                for port in (gpu, cpu, none):
                    await asked_all(made, port)
                await until(lambda: told(made, cpu, TEXTS[0])[Tier.CPU] == 12, "those on the CPU")
                await until(lambda: told(made, gpu, TEXTS[0])[Tier.GPU] == 12, "those on the GPU")
                assert held(made, pods) == {pods[0].id: 12, pods[1].id: int(0.8 * 12)}

    asyncio.run(run())


def held(made: PrecisePrefixCacheProducer, pods: list[Endpoint]) -> dict[str, int]:
    """Return what a request for the first text is told that endpoints hold."""
    packed = ids(TEXTS[0])
    tokens = Tokens(packed, len(packed) // 4, "local")
    request = InferenceRequest("r", {}, b"{}", prompt=TEXTS[0].encode(), tokens=tokens)
    match = made.enrich(request, pods).prefix["precise-prefix-cache-producer"]
    return {name: blocks for name, blocks in match.held.items() if blocks}


def test_a_block_that_the_last_tier_gave_up_is_known_to_be_gone() -> None:
    async def run() -> None:
        async with all_asked(structs.replace(SMALL, kv_cpu_blocks=14)) as (made, port):
            await until(lambda: sum(told(made, port, TEXTS[0])) == 0, "an end of the first")
            assert await asked(port, TEXTS[0]) == 0

    asyncio.run(run())
