"""``precise-prefix-cache-producer``: events where they are trusted, own picks where they are not."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from epp.clock import ManualClock
from epp.collect.kv.feed import Feed
from epp.collect.parse.kv_messages import END, Message
from epp.ledger import Ledger
from epp.model import (
    Ending,
    Endpoint,
    EndpointId,
    InferenceRequest,
    Load,
    LoraInfo,
    Outcome,
    Pick,
    Tokens,
    Usage,
)
from epp.plugin import Tools
from epp.prefix.feed.names import Listed
from epp.prefix.feed.trust import Level
from epp.prefix.precise import ExactMatch, PrecisePrefixCacheProducer
from tests.support.kv import packed

A, B = (Endpoint(EndpointId(name), name, 80) for name in "ab")
NAME = "precise-prefix-cache-producer"
IDS = list(range(1000, 1000 + 160))  # ten blocks


class Case:
    """A producer whose clock stands still, with endpoints ``a`` and ``b``."""

    def __init__(self, **params: Any) -> None:
        self.clock, self.ledger = ManualClock(100.0), Ledger()
        self.made = PrecisePrefixCacheProducer(
            msgspec.convert(params, PrecisePrefixCacheProducer.Params),
            Tools(self.clock, random.Random(1), self.ledger),
        )

    def feed(self, endpoint: Endpoint) -> Feed:
        """Let an endpoint's events come in, from its start on."""
        engine = self.made.engines.add(endpoint.id, 0, can_ask=True)
        feed = Feed(engine, self.made.index, self.made.computed)
        feed.connected(100.0)
        feed.answered(Message("", END, b""), 100.0)
        return feed

    def ask(self, ids: list[int] | None = IDS, **more: Any) -> InferenceRequest:
        """Enrich a request whose canonical prompt is twice as long as its tokens."""
        tokens = None if ids is None else Tokens(packed(ids), len(ids), "local")
        request = InferenceRequest(
            "r", {}, b"{}", prompt=b"x" * 1280, prompt_tokens=320, tokens=tokens, **more
        )
        return self.made.enrich(request, (A, B))


def tell(feed: Feed, number: int, blocks: int, medium: str = "GPU") -> None:
    """Have an engine hold the first blocks of `IDS`."""
    event = ["BlockStored", list(range(1, blocks + 1)), None, IDS[: blocks * 16], 16, None, medium]
    payload = msgspec.msgpack.encode([1.0, [event], 0])
    feed.heard(Message("", number, payload), 100.0, 100.0)
    while feed.busy:
        feed.advance()


def held(request: InferenceRequest) -> dict[str, int]:
    return dict(request.prefix[NAME].held)


def test_what_engines_told_is_held_and_tokens_are_counted_exactly() -> None:
    case = Case()
    tell(case.feed(A), 0, 4)
    request = case.ask()
    assert held(request) == {"a": 4}
    assert request.prompt_tokens == 160
    assert request.uncached_tokens(A.id) == 160 - 64
    assert request.prefix[NAME].source == "events"
    assert case.made.sources == {("events", ""): 1}


def test_blocks_in_slower_tiers_are_worth_less() -> None:
    case = Case()
    tell(case.feed(A), 0, 10, medium="CPU")
    assert held(case.ask()) == {"a": 8}  # 0.8 of 10
    other = Case(indexerConfig={"kvCacheBackendConfigs": [{"name": "cpu", "weight": 0.5}]})
    tell(other.feed(A), 0, 10, medium="CPU")
    assert held(other.ask()) == {"a": 5}


def test_blocks_of_a_pick_are_expected_until_their_time_is_over() -> None:
    case = Case()
    case.feed(A)
    request = case.ask()
    case.made.picked(request, Pick((A,)))
    assert held(case.ask()) == {"a": 10}
    case.made.index.expire(100.0 + 1.9)
    assert held(case.ask()) == {"a": 10}
    case.made.index.expire(100.0 + 2.1)
    assert held(case.ask()) == {}


def test_what_another_picker_sent_is_expected_until_events_tell() -> None:
    one, other = (Case(tokenProcessorConfig={"hashSeed": "a secret"}) for _ in range(2))
    one.feed(A)
    feed = other.feed(A)
    request, pick = one.ask(), Pick((A,))
    one.made.picked(request, pick)
    other.made.heard(one.made.share(request, pick), A, None)
    assert held(other.ask()) == held(one.ask()) == {"a": 10}
    tell(feed, 0, 4)
    other.made.index.expire(100.0 + 2.1)
    assert held(other.ask()) == {"a": 4}


def test_names_that_only_one_picker_knows_are_not_told() -> None:
    one, other = Case(), Case()
    one.feed(A)
    other.feed(A)
    request, pick = one.ask(), Pick((A,))
    other.made.heard(one.made.share(request, pick), A, None)
    assert other.made.index.figures()["blocks"] == 0
    assert held(other.ask()) == {}


def test_of_engines_without_events_other_pickers_picks_are_believed() -> None:
    one, other = Case(), Case()
    request, pick = one.ask(None), Pick((A,), prefill=B)
    other.made.heard(one.made.share(request, pick), A, B)
    assert held(other.ask(None)) == {"a": 5, "b": 5}


@pytest.mark.parametrize("fact", [b"", b"x", msgspec.msgpack.encode((b"123", []))])
def test_what_no_picker_can_have_told_is_refused(fact: bytes) -> None:
    with pytest.raises(ValueError):
        Case().made.heard(fact, A, None)


def test_tokens_in_flight_end_with_the_event_of_a_prompts_last_block() -> None:
    case = Case()
    feed = case.feed(A)
    request = case.ask()
    case.ledger.reserve(A, request.uncached_tokens(A.id), request=request.id)
    case.made.picked(request, Pick((A,)))
    case.made.index.expire(1000.0)  # it stands in the engine's queue for long
    tell(feed, 0, 9)
    assert case.ledger.get(A.id).tokens == 160
    tell(feed, 1, 10)
    assert (case.ledger.get(A.id).requests, case.ledger.get(A.id).tokens) == (1, 0)
    assert case.made.computed_prompts == 1


def test_a_prompt_told_after_its_answer_ended_changes_nothing() -> None:
    case = Case()
    feed = case.feed(A)
    request = case.ask()
    booked = case.ledger.reserve(A, 160, request=request.id)
    case.made.picked(request, Pick((A,)))
    booked.release()
    case.made.ended(request, Pick((A,)), Ending(Outcome.COMPLETED, 101.0))
    tell(feed, 0, 10)
    assert (case.ledger.get(A.id).requests, case.ledger.get(A.id).tokens) == (0, 0)
    assert case.made.computed_prompts == 0


def test_own_picks_count_for_engines_without_events_only() -> None:
    case = Case()
    case.feed(A)  # which says that it holds nothing
    for endpoint in (A, B):
        case.made.picked(case.ask(), Pick((endpoint,)))
    case.made.index.expire(1000.0)
    request = case.ask()
    assert held(request) == {"b": 10}  # all five blocks of 64 estimated tokens
    assert isinstance(request.prefix[NAME], ExactMatch)
    assert request.prefix[NAME].guessed == {"b"}
    assert case.made.sources["events", "partly_picks"] == 1


def test_without_token_ids_own_picks_count_for_all() -> None:
    case = Case()
    case.feed(A)
    case.made.picked(case.ask(None), Pick((A,)))
    request = case.ask(None, no_tokens="timeout")
    assert held(request) == {"a": 5}
    assert request.prefix[NAME].source == "picks"
    assert case.made.sources == {("picks", "no_tokenizer"): 1, ("picks", "timeout"): 1}


def test_answers_that_disagree_end_the_trust() -> None:
    case = Case()
    tell(case.feed(A), 0, 10)
    assert case.made.trust(A.id).level is Level.EXACT
    ending = Ending(Outcome.COMPLETED, 101.0, usage=Usage(160, 1, 0))
    for _ in range(3):
        case.made.ended(case.ask(), Pick((A,)), ending)
    assert case.made.trust(A.id).reason == "overestimated"


def test_answers_of_a_burst_that_found_each_others_blocks_raise_no_doubt() -> None:
    case = Case()
    case.feed(A)
    burst = []
    for _ in range(4):
        burst.append(case.ask())
        case.made.picked(burst[-1], Pick((A,)))
    for cached, request in zip((0, 144, 144, 144), burst, strict=True):
        ending = Ending(Outcome.COMPLETED, 101.0, usage=Usage(160, 1, cached))
        case.made.ended(request, Pick((A,)), ending)
    assert case.made.engines.of(A.id)[0].audit.under == 0


def test_a_decoding_engines_count_and_that_of_many_prompts_are_no_witness() -> None:
    case = Case()
    tell(case.feed(A), 0, 2)
    ending = Ending(Outcome.COMPLETED, 101.0, usage=Usage(160, 1, 144))
    several = Tokens(packed(IDS), 320, "client")
    for _ in range(4):
        case.made.ended(case.ask(), Pick((A,), prefill=B), ending)
        asked = msgspec.structs.replace(case.ask(), tokens=several)
        case.made.ended(asked, Pick((A,)), ending)
    assert case.made.engines.of(A.id)[0].audit.answers == 0


def test_an_engine_that_told_what_it_computed_owes_nothing_when_it_is_idle() -> None:
    case = Case()
    feed = case.feed(A)
    request = case.ask()
    case.made.picked(request, Pick((A,)))
    tell(feed, 0, 10)
    case.made.ended(request, Pick((A,)), Ending(Outcome.COMPLETED, 101.0, picked_at=100.0))
    case.clock.advance(60.0)
    assert case.made.trust(A.id).level is Level.EXACT
    later = case.ask(list(range(160)))
    picked_at = case.clock.now()
    case.made.picked(later, Pick((A,)))
    case.made.ended(later, Pick((A,)), Ending(Outcome.COMPLETED, 161.0, picked_at=picked_at))
    case.clock.advance(10.0)
    assert case.made.trust(A.id).reason == "no_events"


def test_answers_as_foreseen_keep_the_trust() -> None:
    case = Case()
    tell(case.feed(A), 0, 10)
    ending = Ending(Outcome.COMPLETED, 101.0, usage=Usage(160, 1, 144))
    for _ in range(20):
        case.made.ended(case.ask(), Pick((A,)), ending)
    assert case.made.trust(A.id).level is Level.EXACT


def test_a_new_secret_at_the_top_of_the_file_loses_nothing_and_old_prompts_go_on(tmp_path) -> None:
    file = tmp_path / "secrets"
    file.write_text("first\n")
    case = Case(tokenProcessorConfig={"hashSeedFile": str(file)})
    feed = case.feed(A)
    tell(feed, 0, 4)
    assert not case.made.rotate()
    file.write_text("second\nfirst\n\n")
    assert case.made.rotate()
    request = case.ask()
    assert held(request) == {"a": 4}
    case.ledger.reserve(A, 96, request=request.id)
    case.made.picked(request, Pick((A,)))
    assert held(case.ask()) == {"a": 10}  # expected by the names that the engine goes on with
    event = ["BlockStored", [5, 6, 7, 8, 9, 10], 4, IDS[64:], 16]
    payload = msgspec.msgpack.encode([1.0, [event], 0])
    feed.heard(Message("", 1, payload), 100.0, 100.0)
    while feed.busy:
        feed.advance()
    assert case.ledger.get(A.id).tokens == 0
    case.made.index.expire(1000.0)
    assert held(case.ask()) == {"a": 10}
    file.write_text("second\n")
    case.made.rotate()
    assert held(case.ask()) == {}


@pytest.mark.parametrize("text", ["", "\n\n", "a\nb\nc\nd\ne\n"], ids=["none", "blank", "five"])
def test_a_file_of_secrets_that_cannot_be_used_is_refused_and_changes_nothing(
    tmp_path, text: str
) -> None:
    file = tmp_path / "secrets"
    file.write_text(text)
    with pytest.raises(ValueError, match="secrets': 1 to 4 secrets are needed"):
        Case(tokenProcessorConfig={"hashSeedFile": str(file)})
    file.write_text("good")
    case = Case(tokenProcessorConfig={"hashSeedFile": str(file)})
    tell(case.feed(A), 0, 4)
    file.unlink()
    with pytest.raises(ValueError, match="No such file"):
        case.made.rotate()
    assert held(case.ask()) == {"a": 4}


def test_an_adapter_is_told_apart_once_an_engine_named_it() -> None:
    case = Case()
    feed = case.feed(A)
    event = {
        "type": "BlockStored", "block_hashes": [1], "parent_block_hash": None,
        "token_ids": IDS[:16], "block_size": 16, "lora_name": "lora",
    }  # fmt: skip
    feed.heard(Message("", 0, msgspec.msgpack.encode([1.0, [event], 0])), 100.0, 100.0)
    while feed.busy:
        feed.advance()
    assert held(case.ask(target_model="lora")) == {"a": 1}
    assert held(case.ask(target_model="any-name-of-the-base-model")) == {}


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"tokenizersPoolConfig": {"a": 1}}, "use a token-producer"),
        ({"indexerConfig": {"kvBlockIndexConfig": {"redisConfig": {"address": "x"}}}}, "redisConfig"),
        ({"indexerConfig": {"kvCacheBackendConfigs": [{"name": "tape"}]}}, "'tape' is none of"),
        (
            {"tokenProcessorConfig": {"hashSeed": "a", "hashSeedFile": "/b"}},
            "two sources of secrets",
        ),
        ({"speculativeTTL": "soon"}, "'soon' is not a duration"),
        (
            {"kvEventsConfig": {"curve": dict.fromkeys(
                ("serverKeyFile", "publicKeyFile", "secretKeyFile"), "/none"
            )}},
            "there is no file '/none'",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(params: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Case(**params)


def test_what_is_shown_holds_no_token_ids() -> None:
    case = Case()
    tell(case.feed(A), 0, 4)
    case.ask()
    shown = msgspec.json.encode(case.made.dump_state()).decode()
    assert '"trust":"exact"' in shown
    assert not any(str(each) in shown for each in IDS[:64])


def test_the_first_request_of_an_adapter_gets_no_credit_of_its_base_model() -> None:
    case = Case()
    tell(case.feed(A), 0, 4)
    case.made.names.told(A.id, Listed(frozenset({"base"}), frozenset({"lora"})))
    assert held(case.ask(target_model="base")) == {"a": 4}
    assert held(case.ask(target_model="lora")) == {}
    assert case.made.sources == {("events", ""): 2}


def test_a_model_that_no_engine_lists_gets_what_own_picks_say_and_the_reason_is_counted() -> None:
    case = Case()
    tell(case.feed(A), 0, 4)
    case.made.names.told(A.id, Listed(frozenset({"base"})))
    request = case.ask(target_model="loaded just now")
    assert (request.prefix[NAME].source, held(request)) == ("picks", {})
    assert request.prompt_tokens == 160
    assert case.made.sources == {("picks", "unknown_model"): 1}


def test_an_adapter_that_only_an_engines_metrics_name_is_told_apart() -> None:
    case = Case()
    tell(case.feed(A), 0, 4)
    running = LoraInfo(frozenset({"lora"}), frozenset(), 4)
    busy = msgspec.structs.replace(A, load=Load(at=100.0, lora=running))
    tokens = Tokens(packed(IDS), len(IDS), "local")
    request = InferenceRequest("r", {}, b"{}", prompt=b"x", target_model="lora", tokens=tokens)
    assert held(case.made.enrich(request, (busy,))) == {}
    assert case.made.sources == {("events", ""): 1}
