from __future__ import annotations

import pytest

from epp.schedule.scorers.running import RunningRequestsScorer
from tests.support import build


@pytest.mark.parametrize(
    ("running", "scores"),
    [
        pytest.param([2, 4, 10], [1.0, 0.75, 0.0], id="linear between fewest and most"),
        pytest.param([3, 3], [1.0, 1.0], id="equal batches have no say"),
        pytest.param([0, 8, None], [1.0, 0.0, 0.0], id="unknown is as many as the most"),
        pytest.param([None], [0.0], id="all unknown"),
    ],
)
def test_smaller_batches_score_higher(running: list[float | None], scores: list[float]):
    endpoints = [
        build.endpoint(str(i), load=build.load(running=count)) for i, count in enumerate(running)
    ]
    scorer = RunningRequestsScorer(RunningRequestsScorer.Params(), build.tools())
    assert scorer.score(build.request(), endpoints) == scores


def test_an_endpoint_never_scraped_counts_as_unknown():
    endpoints = [
        build.endpoint("a", load=build.load(running=1)),
        build.endpoint("b", load=build.load(running=2)),
        build.endpoint("c", queued=None),
    ]
    scorer = RunningRequestsScorer(RunningRequestsScorer.Params(), build.tools())
    assert scorer.score(build.request(), endpoints) == [1.0, 0.0, 0.0]
