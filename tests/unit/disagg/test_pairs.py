"""Whether a prompt is computed elsewhere and by which pair, priced by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from epp.clock import ManualClock
from epp.disagg.pairs.handler import PairProfileHandler
from epp.disagg.pairs.price import Moving, Place, alone, together
from epp.errors import Saturated
from epp.ledger import Ledger
from epp.model import (
    BlockHash,
    Ending,
    Endpoint,
    InferenceRequest,
    Outcome,
    Pick,
    PrefillLeg,
    PrefixMatch,
    Speed,
)
from epp.plugin import ProfileResult
from epp.ttft.forecast import Forecaster
from tests.support import build

MS = Speed(0.001, 0.0, 9)  # a millisecond a token


class Fixed:
    """Profiles that leave these candidates, the first best."""

    def __init__(self, decode: Sequence[Endpoint], prefill: Sequence[Endpoint]) -> None:
        self.names = ("decode", "prefill")
        self._left = {"decode": tuple(decode), "prefill": tuple(prefill)}

    def run(self, name: str, request: InferenceRequest) -> ProfileResult:
        left = self._left[name]
        if not left:
            raise Saturated("no endpoints available for the given request")
        return ProfileResult(left[:1], left, [1.0 / (i + 1) for i in range(len(left))])


def pod(name: str, *, running: float = 0.0, queued: float = 0.0, **labels: str) -> Endpoint:
    keys = {"zone": "topology.kubernetes.io/zone", "model": "llm-d.ai/model"}
    told = {keys[key]: value for key, value in labels.items()}
    load = build.load(running=running, queued=queued)
    return build.endpoint(name, host=f"host-{name}", labels=told, load=load)


def made(**params: Any) -> PairProfileHandler:
    return PairProfileHandler(msgspec.convert(params, PairProfileHandler.Params), build.tools())


def decided(
    handler: PairProfileHandler,
    decode: Sequence[Endpoint],
    prefill: Sequence[Endpoint],
    tokens: int = 16_000,
) -> tuple[str, str, str]:
    pick = handler.handle(build.request(prompt_tokens=tokens), Fixed(decode, prefill))
    return pick.endpoints[0].name, pick.prefill.name if pick.prefill else "", pick.stages


def test_the_price_alone_is_the_queue_twice_the_prompt_and_a_share_of_what_others_wait() -> None:
    place = Place(queued=500, work=2000, running=10, speed=MS)
    assert alone(place, 0.1) == pytest.approx(2 * 0.5 + 2.0 + 0.1 * 10 * 2.0)


def test_the_price_of_a_pair_is_the_longer_queue_and_the_caches_way() -> None:
    prefill = Place(queued=1000, work=2000, speed=MS)
    assert together(prefill, Place(0, 2000, speed=MS), 0.2) == pytest.approx(1.0 + 3.2)
    decoding = Place(queued=1000, work=2000, running=5, speed=MS)
    held_up = 0.1 * 5 * 2.0
    assert together(decoding, Place(0, 2000, speed=MS), 0.2, others=0.1) == pytest.approx(
        1.0 + 3.2 + held_up
    )
    assert together(prefill, Place(5000, 2000, speed=MS), 0.2) == pytest.approx(1.0 + 5.2)


def test_a_long_prompt_leaves_a_busy_endpoint_and_stays_at_an_idle_one() -> None:
    # At 16,000 tokens/s it takes 1 s; beside 20 requests 0.1 * 20 * 1 s more; its way 0.19 s.
    assert decided(made(), [pod("d", running=20)], [pod("p")]) == ("d", "p", "cheaper-elsewhere")
    assert decided(made(), [pod("d")], [pod("p")]) == ("d", "", "cheaper-here")


def test_short_and_cached_prompts_stay() -> None:
    busy, prefill = pod("d", running=50), pod("p")
    assert decided(made(), [busy], [prefill], tokens=255) == ("d", "", "short")
    blocks = tuple(BlockHash(i) for i in range(1000))
    match = PrefixMatch(blocks, 16, {busy.id: 990})  # 160 tokens are left
    long = build.request(prompt_tokens=16_000, prefix={"p": match})
    assert made().handle(long, Fixed([busy], [prefill])).stages == "short"


def test_without_a_prefill_endpoint_it_says_so() -> None:
    assert decided(made(), [pod("d", running=20)], []) == ("d", "", "no-endpoint")


def test_nothing_is_sent_away_where_the_cache_would_wait_too_long() -> None:
    waiting = pod("d", running=20, queued=128)
    assert decided(made(), [waiting], [pod("p")]) == ("d", "", "decode-queue")


def test_the_nearer_of_two_equal_prefill_endpoints_is_chosen_and_the_other_is_next() -> None:
    decode = pod("d", running=20, zone="a")
    far, near = pod("far"), pod("near", zone="a")
    slow = made()
    for _ in range(60):
        slow._moving.learn(None, 16_000, 0.9)
    pick = slow.handle(build.request(prompt_tokens=16_000), Fixed([decode], [far, near]))
    assert pick.prefill == near
    assert pick.prefill_next == (far,)


def test_b143_endpoints_of_two_sets_are_never_a_pair() -> None:
    """Field problem B143: pods of different models were paired (vllm-project/aibrix#2605)."""
    decode, other = pod("d", running=20, model="a"), pod("p", model="b")
    assert decided(made(), [decode], [other]) == ("d", "", "no-endpoint")
    assert decided(made(), [decode], [other, pod("q", model="a")])[1] == "q"


def test_a_pair_stays_until_another_is_cheaper_by_the_margin_and_ends_with_its_endpoint() -> None:
    handler, decode = made(margin=0.5), pod("d", running=60)
    one, other = pod("one"), pod("other")
    assert decided(handler, [decode], [one])[1] == "one"
    assert decided(handler, [decode], [other, one])[1] == "one"
    handler.forget(one.id)  # it has restarted: nothing speaks for it any more
    assert decided(handler, [decode], [other, one])[1] == "other"


def test_what_an_endpoint_did_lately_makes_it_no_better_than_another_one() -> None:
    handler, prefill = made(), pod("p")
    busy, first, second = pod("one", running=50), pod("one"), pod("two")
    assert decided(handler, [busy], [prefill])[2] == "cheaper-elsewhere"
    assert decided(handler, [second], [prefill])[2] == "cheaper-here"
    # Both are idle: 1.28 s alone, and the profile prefers the first, which sent a prompt away.
    assert decided(handler, [first, second], [prefill]) == ("one", "", "cheaper-here")


def test_an_endpoint_that_was_lucky_by_chance_is_not_preferred() -> None:
    forecaster = Forecaster(Ledger(), ManualClock(100.0))
    lent = msgspec.structs.replace(build.tools(), forecaster=forecaster)
    handler = PairProfileHandler(PairProfileHandler.Params(), lent)
    one, two = pod("one"), pod("two")
    for i in range(40):
        for endpoint, seconds in ((one, 1.02), (two, 0.98)):  # more or less, by a tenth
            request = build.request(id=f"{endpoint.name}-{i}", prompt_tokens=16_000, streaming=True)
            expected = forecaster.expect(request, Pick((endpoint,)))
            pick = Pick((endpoint,), expected=expected)
            took = seconds + 0.1 * (-1) ** i
            ending = Ending(
                Outcome.COMPLETED, 100 + took, first_byte_at=100 + took, streamed=True,
                picked_at=100.0,
            )  # fmt: skip
            forecaster.ended(request, pick, ending)
            lucky = forecaster.speed(two.id)
    usual = forecaster.speed(one.id)
    assert usual is not None and lucky is not None and lucky.per_token < usual.per_token
    assert decided(handler, [one, two], [pod("p")])[0] == "one"


def test_where_nothing_is_sent_away_the_decode_profile_has_chosen() -> None:
    """It may know of caches, sessions and adapters; here only queues and batches are known."""
    first, emptier = pod("one", running=3), pod("two")
    assert decided(made(), [first, emptier], [pod("p")]) == ("one", "", "cheaper-here")
    assert decided(made(), [pod("one", running=60), emptier], [pod("p")])[0] == "two"


def test_work_grows_faster_than_tokens() -> None:
    """32,000 tokens cost 1 + 3.5e-5 * 16,000 times as much each as those of a short prompt."""
    handler, beside = made(margin=0, othersWeight=0.1), pod("d", running=1.5)
    # Its way takes 0.35 s. Others would wait 0.15 of 3.12 s; of 2 s it would be less.
    assert decided(handler, [beside], [pod("p")], tokens=32_000)[2] == "cheaper-elsewhere"


def test_how_long_a_cache_takes_is_learned_by_distance() -> None:
    handler, decode, prefill = made(), pod("d", zone="a"), pod("p", zone="a")
    request = build.request(prompt_tokens=1000)
    pick = Pick((decode,), prefill=prefill)
    leg = PrefillLeg(prefill, "", 10.0, 1.0, 1)
    for _ in range(50):
        ending = Ending(Outcome.COMPLETED, 12.0, first_byte_at=10.5, streamed=True, leg=leg)
        handler.ended(request, pick, ending)
    assert handler._moving.seconds("zone", 1000) == pytest.approx(0.5, rel=0.05)
    assert handler._moving.seconds("host", 1000) == Moving().seconds("host", 1000)
