"""The profile handlers: which profiles run, and what pick they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from epp import headers
from epp.errors import BadRequest, Saturated
from epp.formats.reading import NOT_COMPUTED
from epp.model import Endpoint, InferenceRequest, PrefixMatch
from epp.plugin import ProfileResult
from epp.schedule.deciders import (
    AlwaysDisaggMultimodalDecider,
    AlwaysDisaggPdDecider,
    PrefixBasedPdDecider,
)
from epp.schedule.handlers.data_parallel import DataParallelProfileHandler
from epp.schedule.handlers.disagg import DisaggProfileHandler
from epp.schedule.handlers.header import HeaderProfileHandler
from epp.schedule.handlers.pd import PdProfileHandler
from tests.support import build

DECODE = build.endpoint("d", host="10.0.0.1", port=8000)
PREFILL = build.endpoint("p", host="10.0.0.2", port=8200)
ENCODERS = (build.endpoint("e1", host="2001:db8::1"), build.endpoint("e2", host="10.0.0.4"))
ALL = {"decode": [DECODE], "prefill": [PREFILL], "encode": ENCODERS}


class FixedProfiles:
    """Profiles that always choose the same; () leaves nothing. Notes what ran, for which peer."""

    def __init__(self, chosen: Mapping[str, Sequence[Endpoint]]) -> None:
        self.names = tuple(chosen)
        self.ran: list[tuple[str, str | None]] = []
        self._chosen = chosen

    def run(self, name: str, request: InferenceRequest) -> ProfileResult:
        self.ran.append((name, request.peer and request.peer.name))
        chosen = tuple(self._chosen[name])
        if not chosen:
            raise Saturated("no endpoints available for the given request")
        return ProfileResult(chosen, chosen, [1.0] * len(chosen))


def make(cls: type[Any], **params: Any) -> Any:
    tools = build.tools()
    deciders = {
        "always": AlwaysDisaggPdDecider(AlwaysDisaggPdDecider.Params(), tools),
        "media": AlwaysDisaggMultimodalDecider(AlwaysDisaggMultimodalDecider.Params(), tools),
        "prefix-based-pd-decider": PrefixBasedPdDecider(
            PrefixBasedPdDecider.Params(non_cached_tokens=100), tools
        ),
        "not-a-decider": make_other(),
    }
    return cls(msgspec.convert(params, cls.Params), build.tools(plugins=deciders))


def make_other() -> HeaderProfileHandler:
    return HeaderProfileHandler(HeaderProfileHandler.Params(), build.tools())


def test_without_deciders_everything_is_decoded_where_it_arrives() -> None:
    profiles = FixedProfiles(ALL)
    pick = make(DisaggProfileHandler).handle(build.request(multimodal=True), profiles)
    assert profiles.ran == [("decode", None)]
    assert pick.endpoints == (DECODE,)
    assert not pick.headers
    assert pick.prefill is None


def test_decode_runs_first_then_encode_then_prefill_near_it() -> None:
    profiles = FixedProfiles(ALL)
    handler = make(DisaggProfileHandler, deciders={"prefill": "always", "encode": "media"})
    pick = handler.handle(build.request(multimodal=True), profiles)
    assert profiles.ran == [("decode", None), ("encode", "d"), ("prefill", "d")]
    assert pick.endpoints == (DECODE,)
    assert pick.prefill == PREFILL
    assert pick.profile == "decode"


def test_b132_the_prefill_header_names_the_prefill_pods_own_port() -> None:
    """Field problem B132: the header named the decode port, llm-d/llm-d-router PR 329."""
    handler = make(DisaggProfileHandler, deciders={"prefill": "always"})
    pick = handler.handle(build.request(), FixedProfiles(ALL))
    assert pick.headers == {headers.PREFILLER: "10.0.0.2:8200"}


def test_b133_headers_hold_exactly_what_was_chosen_with_ipv6_in_brackets() -> None:
    """Field problem B133: ambiguous prefill headers, ai-dynamo/dynamo#13405."""
    six = build.endpoint("six", host="2001:db8::2", port=8200)
    handler = make(DisaggProfileHandler, deciders={"prefill": "always", "encode": "media"})
    sent = {headers.PREFILLER: "10.9.9.9:1", "X-Prefiller-Host-Port": "10.9.9.9:2"}
    pick = handler.handle(
        build.request(headers=sent, multimodal=True), FixedProfiles({**ALL, "prefill": [six]})
    )
    assert pick.headers == {
        headers.PREFILLER: "[2001:db8::2]:8200",
        headers.ENCODERS: "[2001:db8::1]:8000,10.0.0.4:8000",
    }
    assert {headers.PREFILLER, headers.ENCODERS} <= headers.CONTROL  # the client's are removed


def test_the_prefill_header_names_the_next_best_in_order_each_with_its_own_port() -> None:
    six = build.endpoint("six", host="2001:db8::2", port=8201)
    next_ = build.endpoint("next", host="10.0.0.5", port=8202)
    last = build.endpoint("last", host="10.0.0.6")
    both = {"p": (PREFILL, 0.9), "d": (DECODE, 0.8), "n": (next_, 0.7), "s": (six, 0.4)}

    class Scored(FixedProfiles):
        def run(self, name: str, request: InferenceRequest) -> ProfileResult:
            if name != "prefill":
                return super().run(name, request)
            found, scores = zip(*both.values(), (last, 0.1), strict=True)
            return ProfileResult((PREFILL,), found, scores)

    def named(fallbacks: int) -> str:
        deciders = {"prefill": "always"}
        handler = make(DisaggProfileHandler, deciders=deciders, prefillFallbacks=fallbacks)
        return str(handler.handle(build.request(), Scored(ALL)).headers[headers.PREFILLER])

    first, second, third = "10.0.0.2:8200", "10.0.0.5:8202", "[2001:db8::2]:8201"
    assert named(0) == first
    assert named(1) == f"{first},{second}"
    assert named(2) == f"{first},{second},{third}"  # the endpoint that decodes is none of them
    assert named(8) == f"{first},{second},{third},10.0.0.6:8000"


@pytest.mark.parametrize("queued", [128, 500])
def test_b138_no_prefill_starts_while_the_decode_queue_is_over_the_limit(queued: int) -> None:
    """Field problem B138: answers from KV blocks already freed, vllm-project/vllm#21570."""
    profiles = FixedProfiles({**ALL, "decode": [build.endpoint("d", queued=queued)]})
    handler = make(DisaggProfileHandler, deciders={"prefill": "always"})
    assert handler.handle(build.request(), profiles).prefill is None
    assert profiles.ran == [("decode", None)]
    first = make(DisaggProfileHandler, stageOrder="prefill-first")
    assert not first.handle(build.request(), profiles).headers


@pytest.mark.parametrize(
    ("limit", "decode"),
    [
        pytest.param(128, build.endpoint("d", queued=127), id="below the limit"),
        pytest.param(128, build.endpoint("d", queued=None), id="queue unknown"),
        pytest.param(None, build.endpoint("d", queued=9999), id="no limit"),
    ],
)
def test_prefill_goes_elsewhere_while_the_decode_queue_allows(
    limit: int | None, decode: Endpoint
) -> None:
    handler = make(DisaggProfileHandler, deciders={"prefill": "always"}, maxDecodeQueue=limit)
    pick = handler.handle(build.request(), FixedProfiles({**ALL, "decode": [decode]}))
    assert pick.prefill == PREFILL


@pytest.mark.parametrize(
    "prefill",
    [
        pytest.param([], id="no endpoint left"),
        pytest.param([DECODE], id="the decode endpoint itself"),
        pytest.param(None, id="no such profile"),
    ],
)
def test_without_another_prefill_endpoint_decode_does_it(prefill: list[Endpoint] | None) -> None:
    chosen = {"decode": [DECODE]} if prefill is None else {"decode": [DECODE], "prefill": prefill}
    handler = make(DisaggProfileHandler, deciders={"prefill": "always"})
    pick = handler.handle(build.request(), FixedProfiles(chosen))
    assert pick.endpoints == (DECODE,)
    assert not pick.headers
    assert pick.prefill is None


@pytest.mark.parametrize("order", ["decode-first", "prefill-first"])
def test_without_a_decode_endpoint_the_request_fails(order: str) -> None:
    with pytest.raises(Saturated):
        make(DisaggProfileHandler, stageOrder=order).handle(
            build.request(), FixedProfiles({**ALL, "decode": []})
        )


def test_prefill_first_always_prefills_and_decodes_near_it() -> None:
    profiles = FixedProfiles(ALL)
    handler = make(DisaggProfileHandler, stageOrder="prefill-first", deciders={"encode": "media"})
    pick = handler.handle(build.request(multimodal=True), profiles)
    assert profiles.ran == [("prefill", None), ("encode", "p"), ("decode", "p")]
    assert pick.endpoints == (DECODE,)
    assert pick.prefill == PREFILL


def test_prefill_first_falls_back_to_decode_only() -> None:
    handler = make(DisaggProfileHandler, stageOrder="prefill-first")
    pick = handler.handle(build.request(), FixedProfiles({**ALL, "prefill": []}))
    assert pick.endpoints == (DECODE,)
    assert not pick.headers


WHOLE = (
    "embeddings", "rerank", "score", "images", "conversations", "multipart", "count-tokens",
    "chat-render", "completions-render",
)  # fmt: skip


@pytest.mark.parametrize("format", WHOLE)
@pytest.mark.parametrize(
    ("cls", "params"),
    [
        pytest.param(
            DisaggProfileHandler,
            {"deciders": {"prefill": "always", "encode": "always"}},
            id="decode first",
        ),
        pytest.param(DisaggProfileHandler, {"stageOrder": "prefill-first"}, id="prefill first"),
        pytest.param(PdProfileHandler, {"deciderPluginName": "always"}, id="pd"),
        pytest.param(PdProfileHandler, {"threshold": 0}, id="pd of old"),
    ],
)
def test_a_request_that_sidecars_pass_on_whole_has_no_other_stage(
    cls: type[Any], params: dict[str, Any], format: str
) -> None:
    profiles = FixedProfiles(ALL)
    computed = format not in NOT_COMPUTED
    asked = build.request(format=format, prompt_tokens=1000, multimodal=True, computed=computed)
    pick = make(cls, **params).handle(asked, profiles)
    assert (pick.endpoints, pick.prefill, pick.headers) == ((DECODE,), None, {})
    assert profiles.ran == [("decode", None)]


@pytest.mark.parametrize("format", ["completions", "chat", "responses", "messages", "generate"])
def test_what_generates_is_prefilled_elsewhere(format: str) -> None:
    pick = make(DisaggProfileHandler, deciders={"prefill": "always"}).handle(
        build.request(format=format, prompt_tokens=1000), FixedProfiles(ALL)
    )
    assert pick.prefill == PREFILL


def test_the_flat_spelling_means_the_same() -> None:
    chosen = {"D": [DECODE], "P": [PREFILL]}
    handler = make(
        DisaggProfileHandler, decodeProfile="D", prefillProfile="P", deciderPluginName="always"
    )
    assert handler.handle(build.request(), FixedProfiles(chosen)).prefill == PREFILL


@pytest.mark.parametrize(
    ("params", "says"),
    [
        pytest.param(
            {"decodeProfile": "D", "deciders": {}}, "decodeProfile cannot be mixed", id="mixed"
        ),
        pytest.param(
            {"deciders": {"prefill": "gone"}}, "'gone' is not configured", id="no such decider"
        ),
        pytest.param(
            {"deciders": {"encode": "not-a-decider"}},
            "is a header-profile-handler, not a decider",
            id="not a decider",
        ),
        pytest.param(
            {"stageOrder": "prefill-first", "deciders": {"prefill": "always"}},
            "remove the prefill decider 'always'",
            id="prefill-first with a decider",
        ),
    ],
)
def test_a_wrong_configuration_is_refused(params: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make(DisaggProfileHandler, **params)


def test_handlers_say_which_plugins_they_need() -> None:
    def refs(cls: Any, **params: Any) -> list[str]:
        return list(cls.refs(msgspec.convert(params, cls.Params)))

    assert refs(DisaggProfileHandler) == []
    assert refs(DisaggProfileHandler, deciders={"prefill": "a", "encode": "b"}) == ["a", "b"]
    assert refs(DisaggProfileHandler, prefillDeciderPluginName="a") == ["a"]
    assert refs(PdProfileHandler) == ["prefix-based-pd-decider"]
    assert refs(PdProfileHandler, threshold=100) == []
    assert refs(PdProfileHandler, threshold=100, deciderPluginName="a") == ["a"]


@pytest.mark.parametrize(("held", "elsewhere"), [(0, True), (1, True), (2, False)])
def test_pd_handler_asks_its_default_decider(held: int, elsewhere: bool) -> None:
    match = PrefixMatch((1, 2), 64, {DECODE.id: held})
    asked = build.request(prompt_tokens=164, prefix={"approx": match})
    pick = make(PdProfileHandler).handle(asked, FixedProfiles(ALL))
    assert (pick.prefill == PREFILL) is elsewhere


@pytest.mark.parametrize(
    ("threshold", "held", "elsewhere"),
    [
        pytest.param(0, 4, True, id="0 always"),
        pytest.param(300, 1, True, id="300 of 400 bytes uncached"),
        pytest.param(301, 1, False, id="one byte too few"),
        pytest.param(400, 0, True, id="all uncached"),
    ],
)
def test_pd_handler_of_old_compares_uncached_bytes(
    threshold: int, held: int, elsewhere: bool
) -> None:
    match = PrefixMatch((1, 2, 3, 4), 16, {DECODE.id: held})
    asked = build.request(prompt=b"x" * 400, prefix={"approx": match})
    pick = make(PdProfileHandler, threshold=threshold).handle(asked, FixedProfiles(ALL))
    assert (pick.prefill is not None) is elsewhere


def test_pd_handler_with_a_primary_port_sends_the_rank_by_header() -> None:
    ranks = [build.endpoint("d1", host="10.0.0.1", port=8001), build.endpoint("d2", host="::2")]
    handler = make(PdProfileHandler, threshold=0, primaryPort=8000)
    pick = handler.handle(build.request(), FixedProfiles({**ALL, "decode": ranks}))
    assert pick.headers == {
        headers.PREFILLER: "10.0.0.2:8200",
        headers.DATA_PARALLEL: "10.0.0.1:8001",
    }
    assert pick.destination == "10.0.0.1:8000,[::2]:8000"


def test_data_parallel_handler_rewrites_the_port_and_tells_the_rank() -> None:
    profiles = FixedProfiles({"default": [build.endpoint("r3", host="10.0.0.1", port=8003)]})
    pick = make(DataParallelProfileHandler).handle(build.request(), profiles)
    assert pick.destination == "10.0.0.1:8000"
    assert pick.headers == {headers.DATA_PARALLEL: "10.0.0.1:8003"}
    assert pick.profile == "default"


@pytest.mark.parametrize(
    ("sent", "ran"),
    [
        pytest.param({"epp-profile": "prefill"}, "prefill", id="named"),
        pytest.param({}, "decode", id="no header"),
        pytest.param({"epp-profile": "  "}, "decode", id="blank"),
    ],
)
def test_header_handler_runs_the_named_profile(sent: dict[str, str], ran: str) -> None:
    profiles = FixedProfiles(ALL)
    pick = make(HeaderProfileHandler).handle(build.request(headers=sent), profiles)
    assert profiles.ran == [(ran, None)]
    assert pick.profile == ran


def test_header_handler_with_one_profile_runs_it_whatever_the_header() -> None:
    profiles = FixedProfiles({"only": [DECODE]})
    asked = build.request(headers={"epp-profile": "other"})
    assert make(HeaderProfileHandler).handle(asked, profiles).profile == "only"


def test_header_handler_answers_400_to_an_unknown_profile() -> None:
    asked = build.request(headers={"x-stage": "nope"})
    with pytest.raises(BadRequest, match=r"x-stage: no profile 'nope'; there are: decode, "):
        make(HeaderProfileHandler, headerName="X-Stage").handle(asked, FixedProfiles(ALL))
