"""Simulated engines that hand KV over through real sockets, and fail at it as vLLM's do.

Answers, metrics and failures are those seen at vLLM 0.32 servers with the NIXL connector.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from epp.sim import tokenizer
from epp.sim.asked import Refused
from epp.sim.options import EngineOptions
from epp.sim.server import EngineServer
from tests.support import engine
from tests.support.remote_prefill import until
from tests.support.serving import eventually

PROMPT = tokenizer.text(150)
ASK = {"do_remote_decode": True, "do_remote_prefill": False}
SIM = {"speed": 50.0, "block_size": 32}
#: Leases and time-outs are as long as in life, for slow machines.
PREFILL = EngineOptions(name="p", role="prefill", kv_lease_duration=1500.0, **SIM)
DECODE = EngineOptions(name="d", role="decode", kv_connect_timeout=250.0, **SIM)
IMPATIENT = EngineOptions(name="d", role="decode", kv_connect_timeout=5.0, **SIM)
KEYS = {
    *("do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id"),
    *("remote_request_id", "remote_host", "remote_port", "tp_size", "dcp_size", "pp_size"),
    *("remote_num_tokens", "remote_blocks_expiry_time", "transfer_mode"),
    "remote_prefill_cached_tokens",
}


class Pair:
    """A prefill and a decode engine, and a client."""

    def __init__(
        self, http: aiohttp.ClientSession, engines: list[tuple[EngineServer, int]]
    ) -> None:
        self.http = http
        (self.prefill, self.prefill_port), (self.decode, self.decode_port) = engines

    async def post(self, port: int, params: Any = None, **fields: Any) -> tuple[int, Any]:
        body = {"model": "sim", "prompt": PROMPT, "max_tokens": 8, **fields}
        if params is not None:
            body["kv_transfer_params"] = params
        url = f"http://127.0.0.1:{port}/v1/completions"
        async with self.http.post(url, json=body) as answer:
            return answer.status, json.loads(await answer.read())

    async def prefilled(self, **fields: Any) -> dict[str, Any]:
        """The parameters that a prefill answers."""
        status, answer = await self.post(self.prefill_port, ASK, max_tokens=1, **fields)
        assert status == 200, answer
        told: dict[str, Any] = answer["kv_transfer_params"]
        return told

    async def metric(self, port: int, series: str) -> float:
        async with self.http.get(f"http://127.0.0.1:{port}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        (line,) = [line for line in lines if line.startswith("vllm:" + series)]
        return float(line.rpartition(" ")[2])

    async def local(self) -> str:
        """The answer to the prompt of an engine that computes all of it."""
        status, answer = await self.post(self.prefill_port)
        assert status == 200
        return str(answer["choices"][0]["text"])


def with_pair(
    use: Callable[[Pair], Awaitable[None]],
    prefill: EngineOptions = PREFILL,
    decode: EngineOptions = DECODE,
) -> None:
    async def main() -> None:
        async with engine.served(prefill, decode) as engines, aiohttp.ClientSession() as http:
            await use(Pair(http, engines))

    asyncio.run(main())


def changed(options: EngineOptions, **fields: Any) -> EngineOptions:
    return EngineOptions(
        **{**{f: getattr(options, f) for f in options.__struct_fields__}, **fields}
    )


def test_a_prefill_answers_where_its_blocks_are() -> None:
    async def use(pair: Pair) -> None:
        told = await pair.prefilled()
        assert set(told) == KEYS
        assert told["remote_engine_id"] == pair.prefill.transfers.engine_id
        assert len(told["remote_block_ids"][0]) == 5  # 150 tokens, 32 a block
        assert (told["remote_num_tokens"], told["do_remote_prefill"]) == (150, True)
        # One token was made of it; its own place is in the fifth block.
        assert pair.prefill.engine.cache.used == 5

    with_pair(use)


def test_a_decode_engine_fetches_the_prompt_and_answers_as_if_it_had_computed_it() -> None:
    async def use(pair: Pair) -> None:
        expected = await pair.local()
        told = await pair.prefilled()
        status, answer = await pair.post(pair.decode_port, told)
        assert (status, answer["choices"][0]["text"]) == (200, expected)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        by_source = 'prompt_tokens_by_source_total{engine="0",model_name="sim",source="'
        assert await pair.metric(pair.decode_port, by_source + "external_kv_transfer") == 150
        assert await pair.metric(pair.decode_port, by_source + "local_compute") == 0
        assert await pair.metric(pair.decode_port, "nixl_xfer_time_seconds_count") == 1
        assert pair.prefill.engine.cache.used == 0  # read, so given back

    with_pair(use)


def test_a_lease_ends_unread_and_who_comes_later_answers_something_else() -> None:
    async def use(pair: Pair) -> None:
        expected = await pair.local()
        told = await pair.prefilled()

        async def given_back() -> bool:
            return pair.prefill.engine.cache.used == 0

        await eventually(given_back)
        assert await pair.metric(pair.prefill_port, "nixl_num_kv_expired_reqs_total") == 1
        status, answer = await pair.post(pair.decode_port, told)
        assert status == 200
        assert answer["choices"][0]["text"] != expected
        late = "nixl_num_notifications_after_expiry_total"
        assert await pair.metric(pair.prefill_port, late) == 1

        wrong = answer["choices"][0]["text"]  # stays in the cache under the prompt's name
        _, kept = await pair.post(pair.decode_port)
        assert kept["choices"][0]["text"] == wrong
        _, salted = await pair.post(pair.decode_port, cache_salt="another")
        assert salted["choices"][0]["text"] == expected
        pair.decode.engine.cache.clear()
        _, computed = await pair.post(pair.decode_port)
        assert computed["choices"][0]["text"] == expected

    with_pair(use, changed(PREFILL, kv_lease_duration=5.0))


def test_a_dead_port_is_waited_for_and_then_an_error_or_computed_here() -> None:
    async def fails(pair: Pair) -> None:
        status, _ = await pair.post(pair.decode_port, await pair.prefilled())
        assert status == 500
        assert await pair.metric(pair.decode_port, "nixl_num_failed_transfers_total") == 1
        assert pair.decode.engine.cache.used == 0

    async def recomputes(pair: Pair) -> None:
        expected = await pair.local()
        status, answer = await pair.post(pair.decode_port, await pair.prefilled())
        assert (status, answer["choices"][0]["text"]) == (200, expected)

    prefill = changed(PREFILL, kv_faults=("port-dead",))
    with_pair(fails, prefill, IMPATIENT)
    with_pair(recomputes, prefill, changed(IMPATIENT, kv_load_failure_policy="recompute"))


def test_an_engine_of_another_life_has_nothing() -> None:
    async def use(pair: Pair) -> None:
        told = {**await pair.prefilled(), "remote_engine_id": "another"}
        status, _ = await pair.post(pair.decode_port, told)
        assert status == 500

    with_pair(use)


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({"do_remote_prefill": True}, id="no place"),
        pytest.param("too few", id="fewer blocks than the prompt needs"),
    ],
)
def test_an_engine_dies_of_parameters_that_a_client_made_up(params: Any) -> None:
    async def use(pair: Pair) -> None:
        told = {**await pair.prefilled(), "remote_block_ids": [[1]]}
        status, answer = await pair.post(pair.decode_port, told if params == "too few" else params)
        assert status == 500
        assert "EngineCore encountered an issue" in answer["error"]["message"]
        assert pair.decode.died.is_set()
        with pytest.raises(aiohttp.ClientConnectorError):
            async with aiohttp.ClientSession() as fresh:
                await fresh.get(f"http://127.0.0.1:{pair.decode_port}/health")

    with_pair(use)


def test_what_a_dead_engine_answers_is_kept_by_nobody() -> None:
    async def use(pair: Pair) -> None:
        asked = [
            asyncio.create_task(pair.post(pair.decode_port, max_tokens=4000)) for _ in range(3)
        ]
        await until(lambda: len(pair.decode._slots) == 3)
        status, _ = await pair.post(pair.decode_port, {"do_remote_prefill": True})
        assert [status, *[(await each)[0] for each in asked]] == [500] * 4

    with_pair(use)
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is Refused]


def test_parameters_that_are_no_object_and_those_for_another_role_are_refused() -> None:
    async def use(pair: Pair) -> None:
        assert (await pair.post(pair.decode_port, "x"))[0] == 400
        assert (await pair.post(pair.prefill_port, {"do_remote_prefill": True}))[0] == 500
        status, answer = await pair.post(pair.decode_port, ASK)
        assert (status, answer["kv_transfer_params"]) == (200, None)
        assert not pair.decode.died.is_set()

    with_pair(use)


def test_an_engine_without_a_role_ignores_them() -> None:
    async def use(pair: Pair) -> None:
        status, answer = await pair.post(pair.decode_port, {"do_remote_prefill": True})
        assert (status, answer["kv_transfer_params"]) == (200, None)

    with_pair(use, decode=changed(DECODE, role=""))


def test_kv_of_another_prompt_makes_another_answer() -> None:
    async def use(pair: Pair) -> None:
        expected = await pair.local()
        told = await pair.prefilled(prompt=tokenizer.text(150, seed=1))
        status, answer = await pair.post(pair.decode_port, told)
        assert status == 200
        assert answer["choices"][0]["text"] != expected

    with_pair(use)


def test_b137_an_aborted_decode_gives_back_the_blocks_of_both_engines() -> None:
    """Aborted decode requests held KV blocks for ever: the release never came."""

    async def use(pair: Pair) -> None:
        told = await pair.prefilled()
        asking = asyncio.create_task(pair.post(pair.decode_port, told))

        async def fetching() -> bool:
            return pair.decode.engine.cache.used > 0

        async def all_given_back() -> bool:
            return pair.decode.engine.cache.used == pair.prefill.engine.cache.used == 0

        await eventually(fetching)
        asking.cancel()
        await eventually(all_given_back)
        assert await pair.metric(pair.prefill_port, "nixl_num_kv_expired_reqs_total") == 0

    with_pair(use, changed(PREFILL, speed=1.0), changed(DECODE, kv_transfer_latency=500.0))


def test_a_streamed_prefill_keeps_its_blocks_and_does_not_say_where() -> None:
    async def use(pair: Pair) -> None:
        body = {"model": "sim", "prompt": PROMPT, "max_tokens": 1, "stream": True}
        url = f"http://127.0.0.1:{pair.prefill_port}/v1/completions"
        async with pair.http.post(url, json={**body, "kv_transfer_params": ASK}) as answer:
            assert b"remote_block_ids" not in await answer.read()
        assert pair.prefill.engine.cache.used == 5

    with_pair(use)


def test_a_streamed_answer_whose_kv_cannot_be_fetched_ends_with_an_error_event() -> None:
    async def use(pair: Pair) -> None:
        told = await pair.prefilled()
        body = {"model": "sim", "prompt": PROMPT, "stream": True, "kv_transfer_params": told}
        url = f"http://127.0.0.1:{pair.decode_port}/v1/completions"
        async with pair.http.post(url, json=body) as answer:
            events = (await answer.read()).split(b"\n\n")
        assert answer.status == 200
        assert json.loads(events[0].removeprefix(b"data: "))["error"]["code"] == 500
        assert events[1:] == [b"data: [DONE]", b""]

    with_pair(use, changed(PREFILL, kv_faults=("port-dead",)), IMPATIENT)


def test_faults_are_answered_as_they_are_named() -> None:
    async def use(pair: Pair) -> None:
        faults = pair.prefill.transfers.faults
        faults.kinds = ("error",)
        assert (await pair.post(pair.prefill_port, ASK, max_tokens=1))[0] == 500
        faults.kinds = ("missing",)
        assert await pair.prefilled() is None
        faults.kinds = ("malformed",)
        with pytest.raises(json.JSONDecodeError):
            await pair.prefilled()
        faults.kinds = ("disconnect",)
        with pytest.raises(aiohttp.ClientError):
            await pair.prefilled()
        faults.kinds = ("hang",)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await pair.prefilled()

    with_pair(use)
