"""When an engine's cache is doubted, and which answers with it. Times are real and generous."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from msgspec import Raw

from epp.sidecar.legs.trust import Trust, salted
from epp.sidecar.metrics import Metrics
from tests.support.serving import eventually

STREAM, WHOLE = b'{"model":"m","stream":true}', b'{"model":"m"}'
LONG, SHORT = 60.0, 0.05  #: seconds until a lease ends

Answers = Callable[[Raw], Awaitable[None]]


async def at_once(model: Raw) -> None:
    """An engine that serves."""
    assert bytes(model) == b'"m"'


async def never(model: Raw) -> None:
    """An engine that hangs."""
    del model
    await asyncio.Event().wait()


def ends_in(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def with_trust(use: Callable[[Trust, Metrics], Awaitable[None]], answers: Answers = never) -> None:
    async def main() -> None:
        metrics = Metrics()
        trust = Trust(answers, metrics)
        await use(trust, metrics)
        await trust.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def doubts(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("epp_sidecar_cache_doubts_total") or 0.0


async def over(metrics: Metrics, count: int = 1) -> None:
    async def doubted() -> bool:
        return doubts(metrics) == count

    await eventually(doubted)


def test_a_read_that_is_proven_in_time_is_trusted() -> None:
    async def use(trust: Trust, metrics: Metrics) -> None:
        sent = trust.sent()
        with trust.reading(STREAM, ends_in(LONG)) as proven:
            proven()
        await asyncio.sleep(0)
        assert trust.holds(sent)
        assert (trust.sent().salt, doubts(metrics)) == ("", 0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with_trust(use)


@pytest.mark.parametrize("body", [STREAM, WHOLE])
def test_without_proof_what_was_sent_since_is_doubted_and_what_follows_has_a_salt(
    body: bytes,
) -> None:
    async def use(trust: Trust, metrics: Metrics) -> None:
        before = trust.sent()
        await asyncio.sleep(0.001)
        with trust.reading(body, ends_in(SHORT)):
            since = trust.sent()
            await over(metrics)
        after = trust.sent()
        assert [trust.holds(each) for each in (before, since, after)] == [True, False, True]
        assert after.salt

    with_trust(use)


def test_a_proof_that_comes_late_is_none_even_if_the_timer_is_later() -> None:
    """All processes of a machine may have been stopped together."""

    async def use(trust: Trust, metrics: Metrics) -> None:
        with trust.reading(STREAM, ends_in(0.0)) as proven:
            sent = trust.sent()
            proven()
            assert not trust.holds(sent)
            assert doubts(metrics) == 1

    with_trust(use)


def test_an_answer_in_one_piece_is_proven_by_a_later_request() -> None:
    async def use(trust: Trust, metrics: Metrics) -> None:
        with trust.reading(WHOLE, ends_in(4.0)) as proven:  # asked after a quarter of it
            sent = trust.sent()

            async def watched() -> bool:
                return len(asyncio.all_tasks()) > 1

            assert await watched()
            while await watched():
                await asyncio.sleep(0.01)
            proven()
            assert trust.holds(sent)
        assert doubts(metrics) == 0

    with_trust(use, at_once)


@pytest.mark.parametrize(("answers", "count"), [(at_once, 0), (never, 1)])
def test_a_client_that_leaves_does_not_take_the_proof_with_it(answers: Answers, count: int) -> None:
    async def use(trust: Trust, metrics: Metrics) -> None:
        with trust.reading(STREAM, ends_in(LONG if not count else SHORT)):
            pass

        async def decided() -> bool:
            return len(asyncio.all_tasks()) == 1

        await eventually(decided)
        assert doubts(metrics) == count

    with_trust(use, answers)


def test_an_engine_that_takes_no_connection_is_asked_again() -> None:
    asked: list[Raw] = []

    async def at_last(model: Raw) -> None:
        asked.append(model)
        if len(asked) < 2:
            raise TimeoutError

    async def use(trust: Trust, metrics: Metrics) -> None:
        with trust.reading(STREAM, ends_in(LONG)):
            pass

        async def decided() -> bool:
            return len(asyncio.all_tasks()) == 1

        await eventually(decided)
        assert (len(asked), doubts(metrics)) == (2, 0)

    with_trust(use, at_last)


def test_reads_that_overlap_are_one_doubt_and_those_after_another() -> None:
    async def use(trust: Trust, metrics: Metrics) -> None:
        with trust.reading(STREAM, ends_in(SHORT)), trust.reading(STREAM, ends_in(SHORT)):
            await over(metrics)
        first = trust.sent()
        with trust.reading(STREAM, ends_in(SHORT)):
            await over(metrics, 2)
        assert trust.sent().salt not in ("", first.salt)

    with_trust(use)


def test_the_cache_of_an_engine_that_ended_is_doubted_no_longer() -> None:
    async def use(trust: Trust, metrics: Metrics) -> None:
        with trust.reading(STREAM, ends_in(SHORT)):
            await over(metrics)
        trust.renew()
        sent = trust.sent()
        assert sent.salt == ""
        assert trust.holds(sent)

    with_trust(use)


def test_a_salt_is_added_to_the_clients_own() -> None:
    def salt_of(body: bytes, salt: str = "s") -> str:
        fields = msgspec.json.decode(salted(body, salt), type=dict[str, Raw])
        assert bytes(fields.pop("model")) == b'"m"'
        return msgspec.json.decode(fields.pop("cache_salt"), type=str)

    plain = salt_of(b'{"model":"m"}')
    assert plain == salt_of(b'{"model":"m","cache_salt":null}')
    told = {plain, salt_of(b'{"model":"m","cache_salt":"a"}'), salt_of(b'{"model":"m"}', "t")}
    assert len(told) == 3
    assert all(len(each) == 32 and each.isalnum() for each in told)  # as vLLM takes it


@pytest.mark.parametrize("body", [b"", b"[]", b'{"cache_salt":1}', b"{" * 5000])
def test_what_no_engine_takes_is_left_as_it_is(body: bytes) -> None:
    assert salted(body, "s") is body
