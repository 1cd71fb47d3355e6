"""Prefills that the picker runs itself, on simulated engines: whatever fails, there is an answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
import pytest
from aiohttp import web

from epp import headers
from epp.local.fleet import free_port
from epp.model import EndpointId, Load, Outcome
from epp.pool import Pool
from tests.support.engine import EngineServer
from tests.support.remote_prefill import (
    BODY,
    PATH,
    PREFILL,
    Case,
    decoded,
    endpoint,
    until,
    with_case,
)
from tests.support.sidecar import recording

Engines = list[EngineServer]


def changed(**fields: Any) -> Any:
    return msgspec.structs.replace(PREFILL, **fields)


async def text(exchange: Any) -> str:
    status, answer = await decoded(exchange)
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


async def local(case: Case) -> str:
    """What the decode engine answers by itself."""
    exchange = await case.route(patient=False)
    try:
        return await text(exchange)
    finally:
        exchange.end(Outcome.COMPLETED)


def test_the_prompt_is_computed_elsewhere_and_the_answer_is_the_same() -> None:
    async def use(case: Case, engines: Engines) -> None:
        exchange = await case.route()
        assert exchange.sent.endpoints[0].name == "d"
        assert headers.PREFILLER not in exchange.sent.headers  # no sidecar does it once more
        params = json.loads(exchange.request.body)["kv_transfer_params"]
        assert params["do_remote_prefill"] is True
        assert exchange.leg is not None
        assert (exchange.leg.endpoint, exchange.leg.reason) == (case.endpoints["p0"], "")
        assert case.booked("p0") == (0, 0)  # freed as soon as it was done
        assert case.booked("d") == (1, 0)  # which does not compute the prompt
        split = await text(exchange)
        exchange.end(Outcome.COMPLETED)
        assert case.idle
        assert case.diary.endings[0].leg is exchange.leg
        assert split == await local(case)

    with_case(use)


FAULTS = {
    "error": "failed",
    "disconnect": "connection",
    "malformed": "malformed",
    "missing": "malformed",
    "hang": "timeout",
}


@pytest.mark.parametrize(("fault", "reason"), FAULTS.items(), ids=FAULTS)
def test_b134_a_failed_prefill_is_computed_where_it_is_decoded(fault: str, reason: str) -> None:
    """Field problem B134: decode waited for a failed prefill (sgl-project/sglang#9726)."""

    async def use(case: Case, engines: Engines) -> None:
        exchange = await case.route()
        assert exchange.leg is not None
        assert (exchange.leg.endpoint, exchange.leg.reason) == (None, reason)
        assert exchange.request.body == json.dumps(BODY).encode()
        requests, tokens = case.booked("d")
        assert requests == 1
        assert tokens > 0  # it computes the prompt after all
        assert await text(exchange) == await local(case)
        exchange.end(Outcome.COMPLETED)

    with_case(use, changed(kv_faults=(fault,)), timeout="400ms")


def test_b144_a_retry_on_another_endpoint_says_nothing_of_the_first() -> None:
    """Field problem B144: the first endpoint's data went to the second (sgl-project/sglang PR 9051)."""

    async def use(case: Case, engines: Engines) -> None:
        dead = endpoint("p0", free_port(), "prefill")
        case.pool.put(dead)
        while (exchange := await case.route()).pick.prefill != dead:
            exchange.end(Outcome.COMPLETED)  # the picker chooses one of equals by chance
        assert exchange.leg is not None
        assert (exchange.leg.reason, exchange.leg.attempts) == ("retried", 2)
        assert 0.0 < exchange.leg.lost < (exchange.leg.seconds or 0.0)
        assert exchange.leg.endpoint == case.endpoints["p1"]
        params = json.loads(exchange.request.body)["kv_transfer_params"]
        assert params["remote_engine_id"] == engines[2].transfers.engine_id
        assert await text(exchange) == await local(case)
        exchange.end(Outcome.COMPLETED)

    with_case(use, PREFILL, PREFILL)


def test_no_other_endpoint_is_asked_once_the_pools_retries_are_used() -> None:
    async def use(case: Case, engines: Engines) -> None:
        while case.client._health.may_retry():
            pass
        exchange = await case.route()
        assert exchange.leg is not None
        assert (exchange.leg.reason, exchange.leg.attempts) == ("failed", 1)
        exchange.end(Outcome.COMPLETED)

    failing = changed(kv_faults=("error",))
    with_case(use, failing, failing)


def test_no_other_endpoint_is_asked_once_half_of_the_time_is_over() -> None:
    async def main() -> None:
        async def fails(request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(0.6)
            return web.Response(status=500)

        async with recording(fails) as server:
            roles = {"d": "decode", "p0": "prefill", "p1": "prefill"}
            known = [endpoint(name, server.port, role) for name, role in roles.items()]
            case = Case(known, timeout="1s")
            exchange = await case.route()
            assert exchange.leg is not None
            assert (exchange.leg.reason, exchange.leg.attempts) == ("failed", 1)
            exchange.end(Outcome.COMPLETED)
            await case.client.close()

    asyncio.run(main())


def test_b139_a_prefill_that_takes_too_long_is_not_repeated_elsewhere() -> None:
    """Field problem B139: repeated prefills filled one pod after another (vllm PR 29906)."""

    async def use(case: Case, engines: Engines) -> None:
        exchange = await case.route()
        assert exchange.leg is not None
        assert (exchange.leg.reason, exchange.leg.attempts) == ("timeout", 1)
        asked = exchange.pick.prefill
        assert asked is not None
        assert case.booked(asked.name)[0] == 1  # it may still compute
        exchange.end(Outcome.COMPLETED)
        assert case.idle

    slow = changed(kv_faults=("hang",))
    with_case(use, slow, slow, timeout="200ms")


def test_no_healthy_prefill_endpoint_is_said_and_nobody_is_asked() -> None:
    async def use(case: Case, engines: Engines) -> None:
        first, second = await case.route(), await case.route()
        assert first.leg is not None
        assert second.leg is not None
        assert (first.leg.reason, second.leg.reason) == ("failed", "no-healthy-endpoint")
        assert (first.leg.attempts, second.leg.attempts) == (1, 0)
        first.end(Outcome.COMPLETED)
        second.end(Outcome.COMPLETED)

    with_case(use, changed(kv_faults=("error",)))


def test_b137_a_client_that_leaves_aborts_the_prefill_and_frees_both() -> None:
    """Field problem B137: requests left behind held KV blocks for ever (vllm-project/vllm#46283)."""

    async def use(case: Case, engines: Engines) -> None:
        asking = asyncio.create_task(case.route())
        await until(lambda: case.client.in_flight == 1)
        assert case.booked("p0")[0] == case.booked("d")[0] == 1
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert case.idle
        assert [ending.outcome for ending in case.diary.endings] == [Outcome.ABANDONED]

    with_case(use, changed(kv_faults=("hang",)))


def test_parameters_older_than_the_lease_are_never_used() -> None:
    async def use(case: Case, engines: Engines) -> None:
        exchange = await case.route()
        assert exchange.leg is not None
        assert exchange.leg.reason == "lease-expired"
        assert b"kv_transfer_params" not in exchange.request.body
        exchange.end(Outcome.COMPLETED)

    with_case(use, lease="0")


def test_an_endpoint_that_restarts_meanwhile_is_not_read_from() -> None:
    async def use(case: Case, engines: Engines) -> None:
        asking = asyncio.create_task(case.route())
        await until(lambda: case.client.in_flight == 1)
        case.client.forget(EndpointId("p0"))
        exchange = await asking
        assert exchange.leg is not None
        assert (exchange.leg.endpoint, exchange.leg.reason) == (None, "restarted")
        exchange.end(Outcome.COMPLETED)

    with_case(use)


def test_a_leg_that_fails_after_its_endpoint_is_gone_leaves_nothing_known_of_it() -> None:
    async def main() -> None:
        goes = asyncio.Event()

        async def fails(request: web.Request) -> web.StreamResponse:
            await goes.wait()
            return web.Response(status=500)

        async with recording(fails) as server:
            roles = {"d": "decode", "p0": "prefill", "p1": "prefill"}
            case = Case([endpoint(name, server.port, role) for name, role in roles.items()])
            asking = asyncio.create_task(case.route())
            await until(lambda: len(server.seen) == 1)
            for name in ("p0", "p1"):  # the one that is asked, and the one that is asked next
                case.pool.remove(EndpointId(name))
            goes.set()
            exchange = await asking
            assert exchange.leg is not None
            assert (exchange.leg.reason, exchange.leg.attempts) == ("failed", 2)
            assert case.client.dump_state()["failedLast"] == 0
            assert not case.client._lives
            exchange.end(Outcome.COMPLETED)
            await case.client.close()

    asyncio.run(main())


def test_a_decode_endpoint_that_goes_away_meanwhile_is_replaced() -> None:
    async def use(case: Case, engines: Engines) -> None:
        other = endpoint("d2", case.endpoints["d"].port, "decode")
        asking = asyncio.create_task(case.route())
        await until(lambda: case.client.in_flight == 1)
        case.pool.put(other)
        case.pool.remove(EndpointId("d"))
        exchange = await asking
        assert exchange.sent.endpoints == (other,)
        assert b"kv_transfer_params" not in exchange.request.body
        exchange.end(Outcome.COMPLETED)
        assert case.idle

    with_case(use)


SILENT: Mapping[str, Callable[[Pool], object]] = {
    "no-longer-heard-of": lambda pool: pool.set_load(EndpointId("d"), None),
    "nothing-listens": lambda pool: pool.set_reachable(EndpointId("d"), reachable=False),
    "asleep": lambda pool: pool.set_load(EndpointId("d"), Load(1.0, asleep=True)),
}


@pytest.mark.parametrize("silent", SILENT)
def test_b138_a_decode_endpoint_that_may_hang_is_handed_no_cache(silent: str) -> None:
    """It would read it after the lease, and keep what it read. Without another one it computes."""
    alone = silent == "no-longer-heard-of"

    async def use(case: Case, engines: Engines) -> None:
        for name in case.endpoints:
            case.pool.set_load(EndpointId(name), Load(1.0))
        asking = asyncio.create_task(case.route())
        await until(lambda: case.client.in_flight == 1)
        if not alone:
            case.pool.put(endpoint("d2", case.endpoints["d"].port, "decode"))
        SILENT[silent](case.pool)
        exchange = await asking
        assert exchange.sent.endpoints[0].name == ("d" if alone else "d2")
        assert exchange.leg is not None
        assert exchange.leg.reason == "decode-silent"
        assert b"kv_transfer_params" not in exchange.request.body
        exchange.end(Outcome.COMPLETED)
        assert case.idle

    with_case(use)


def test_a_gateway_that_does_not_wait_and_a_request_without_time_are_served_at_once() -> None:
    async def use(case: Case, engines: Engines) -> None:
        hasty = await case.route(patient=False)
        assert hasty.leg is not None
        assert hasty.leg.reason == "mode"
        hasty.end(Outcome.COMPLETED)

    with_case(use)


def test_a_time_to_first_token_that_is_asked_for_bounds_the_wait() -> None:
    async def use(case: Case, engines: Engines) -> None:
        exchange = await case.route(x_slo_ttft_ms="100")
        assert exchange.leg is not None
        assert exchange.leg.reason == "timeout"
        assert exchange.leg.seconds < 10.0  # of the 20 that it may take otherwise
        exchange.end(Outcome.COMPLETED)

    with_case(use, changed(kv_faults=("hang",)))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"n": 2}, "choices"), ({"prompt": ["a", "b"]}, "prompts"), ({"echo": True}, "prompt-logprobs")],
)  # fmt: skip
def test_what_two_endpoints_cannot_do_together_is_done_by_one(
    fields: dict[str, Any], reason: str
) -> None:
    async def use(case: Case, engines: Engines) -> None:
        exchange = await case.route({**BODY, **fields})
        assert exchange.leg is not None
        assert (exchange.leg.endpoint, exchange.leg.reason) == (None, reason)
        assert json.loads(exchange.request.body) == {**BODY, **fields}
        exchange.end(Outcome.COMPLETED)

    with_case(use)


def test_b134_sglangs_legs_run_at_once_and_a_failed_one_ends_the_other() -> None:
    """Field problem B134, where decode waits for prefill (sgl-project/sglang#9726)."""

    async def main() -> None:
        async with both() as (asked, case):
            exchange = await case.route()
            await until(lambda: len(asked["/v1/completions"]) > 0)
            (body,) = asked["/v1/completions"]
            assert body == json.loads(exchange.request.body)  # both get the same
            assert body["bootstrap_host"] == "127.0.0.1"
            assert case.booked("p0")[0] == 1  # it is under way
            asked["go"].append(200)
            await until(lambda: case.booked("p0") == (0, 0))
            assert exchange.leg is not None
            assert exchange.leg.seconds is not None
            exchange.end(Outcome.COMPLETED)
            failing = await case.route()
            asked["go"].append(500)
            await until(lambda: len(asked["/abort_request"]) == 1)
            assert asked["/abort_request"][0]["rid"] == json.loads(failing.request.body)["rid"]
            assert case.booked("p0") == (0, 0)
            failing.end(Outcome.FAILED)
            assert [(each.leg.endpoint, each.leg.reason) for each in case.diary.endings] == [
                (case.endpoints["p0"], ""),
                (None, "failed"),
            ]
            await until(lambda: case.idle)

    asyncio.run(main())


def test_a_leg_that_runs_beside_goes_on_though_its_client_is_replaced() -> None:
    """As when the configuration changes meanwhile."""

    async def main() -> None:
        async with both() as (asked, case):
            routing = asyncio.create_task(case.route())
            await until(lambda: case.client.in_flight > 0)
            await case.client.close()
            exchange = await routing
            asked["go"].append(200)
            await until(lambda: case.client.counts.total() > 0)
            assert case.client.counts == {"done": 1}
            exchange.end(Outcome.COMPLETED)
            await until(lambda: case.idle)

    asyncio.run(main())


def test_a_request_that_is_wrong_lets_no_endpoint_rest_whose_leg_runs_beside_it() -> None:
    async def main() -> None:
        async with both() as (asked, case):
            for _ in range(2):
                exchange = await case.route()
                assert exchange.leg is not None
                assert exchange.leg.endpoint == case.endpoints["p0"]
                aborted = len(asked["/abort_request"])
                asked["go"].append(400)
                await until(lambda count=aborted: len(asked["/abort_request"]) > count)
                exchange.end(Outcome.COMPLETED)
                await until(lambda: case.idle)
            assert case.client.counts == {"refused": 2}

    asyncio.run(main())


@contextlib.asynccontextmanager
async def both() -> AsyncIterator[tuple[dict[str, list[Any]], Case]]:
    """A server that is both engines: its prefills are answered once ``go`` says with what."""
    asked: dict[str, list[Any]] = {"/v1/completions": [], "/abort_request": [], "go": []}

    async def answer(request: web.Request) -> web.Response:
        asked[request.path].append(await request.json())
        if request.path != "/abort_request":
            await until(lambda: bool(asked["go"]))
            return web.Response(status=asked["go"].pop())
        return web.Response()

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    case = Case(
        [endpoint("d", port, "decode"), endpoint("p0", port, "prefill")], connector="sglang"
    )
    try:
        yield asked, case
    finally:
        await case.client.close()
        await runner.cleanup()


def test_mooncakes_engine_is_asked_who_it_is_once_until_it_restarts() -> None:
    async def main() -> None:
        async def tells(request: web.Request) -> web.StreamResponse:
            told = {"0": {"engine_id": f"e-{len(server.seen)}"}} if request.path == "/query" else {}
            return web.json_response(told)

        async with recording(tells) as server:
            known = [endpoint("d", server.port, "decode"), endpoint("p0", server.port, "prefill")]
            case = Case(known, connector="mooncake", bootstrapPort=server.port)
            ids = []
            for _ in range(3):
                exchange = await case.route()
                params = json.loads(exchange.request.body)["kv_transfer_params"]
                ids.append(params["remote_engine_id"])
                exchange.end(Outcome.COMPLETED)
                if len(ids) == 2:
                    case.client.forget(EndpointId("p0"))
            assert [path for path, _, _ in server.seen] == [
                "/query", PATH, PATH, "/query", PATH
            ]  # fmt: skip
            assert ids[0] == ids[1] != ids[2]
            await case.client.close()

    asyncio.run(main())


def test_what_is_known_of_endpoints_ends_with_them() -> None:
    async def use(case: Case, engines: Engines) -> None:
        for number in range(5):
            case.pool.put(endpoint(f"gone{number}", free_port(), "prefill"))
            case.pool.remove(EndpointId(f"gone{number}"))
        (await case.route()).end(Outcome.COMPLETED)
        assert case.client._lives.keys() == {EndpointId("p0")}

    with_case(use)
