from __future__ import annotations

import msgspec
import pytest

from epp.model import BlockHash, EndpointId, InferenceRequest, PrefixMatch
from epp.schedule.scorers.prefix import PrefixCacheScorer
from tests.support import build

ENDPOINTS = [build.endpoint("a"), build.endpoint("b"), build.endpoint("c")]


def request(total: int = 8, *, block_tokens: int = 64, producer: str = "x", **held: int):
    blocks = tuple(BlockHash(i) for i in range(total))
    match = PrefixMatch(blocks, block_tokens, {EndpointId(k): v for k, v in held.items()})
    return build.request(prefix={producer: match})


def scores(asked: InferenceRequest, **params: object) -> list[float]:
    made = msgspec.convert(params, PrefixCacheScorer.Params)
    return PrefixCacheScorer(made, build.tools()).score(asked, ENDPOINTS)


def test_the_score_is_the_matched_fraction():
    assert scores(request(a=8, b=2)) == [1.0, 0.25, 0.0]


@pytest.mark.parametrize("asked", [build.request(), request(0), request(8)])
def test_nothing_known_scores_nothing(asked: InferenceRequest):
    assert scores(asked) == [0.0, 0.0, 0.0]


def test_a_match_counts_by_its_length_where_asked():
    # 128 blocks x 64 = 8192 tokens, the whole scale; 64 blocks are half: squared, a quarter.
    asked = request(256, a=128, b=64)
    assert scores(asked, matchLengthWeight=1.0) == [1.0, 0.25, 0.0]


def test_length_and_fraction_are_mixed_by_weight():
    # a: 0.25 x (512/1024)^2 + 0.75 x 8/16 = 0.0625 + 0.375
    asked = request(16, a=8, b=16)
    mixed = scores(asked, matchLengthWeight=0.25, matchLengthScaleTokens=1024)
    assert mixed == pytest.approx([0.4375, 1.0, 0.0])


def test_a_match_beyond_the_scale_scores_no_more_than_one():
    asked = request(16, a=16)
    assert scores(asked, matchLengthWeight=1.0, matchLengthScaleTokens=64)[0] == 1.0


def test_the_named_producer_is_asked():
    asked = request(8, producer="mine", a=8)
    assert scores(asked, prefixMatchInfoProducerName="mine") == [1.0, 0.0, 0.0]
    assert scores(asked, prefixMatchInfoProducerName="other") == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "params",
    [{"matchLengthWeight": 1.5}, {"matchLengthWeight": -0.1}, {"matchLengthScaleTokens": 0}],
)
def test_parameters_out_of_range_are_refused(params: dict[str, float]):
    with pytest.raises(msgspec.ValidationError, match=next(iter(params))):
        msgspec.convert(params, PrefixCacheScorer.Params)
