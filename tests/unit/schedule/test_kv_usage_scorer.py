from __future__ import annotations

import pytest

from epp.schedule.scorers.kv_usage import KvCacheUtilizationScorer
from tests.support import build


@pytest.mark.parametrize(
    ("usages", "scores"),
    [
        pytest.param([0.0, 0.25, 1.0], [1.0, 0.75, 0.0], id="the free fraction"),
        pytest.param([0.25, 0.5, None], [0.75, 0.5, 0.5], id="unknown is as full as the fullest"),
        pytest.param([None, None], [0.0, 0.0], id="all unknown have no say"),
    ],
)
def test_free_cache_scores_higher(usages: list[float | None], scores: list[float]):
    endpoints = [
        build.endpoint(str(i), load=build.load(kv_usage=usage)) for i, usage in enumerate(usages)
    ]
    scorer = KvCacheUtilizationScorer(KvCacheUtilizationScorer.Params(), build.tools())
    assert scorer.score(build.request(), endpoints) == scores


def test_an_endpoint_never_scraped_counts_as_unknown():
    endpoints = [
        build.endpoint("a", load=build.load(kv_usage=0.75)),
        build.endpoint("b", queued=None),
    ]
    scorer = KvCacheUtilizationScorer(KvCacheUtilizationScorer.Params(), build.tools())
    assert scorer.score(build.request(), endpoints) == [0.25, 0.25]
