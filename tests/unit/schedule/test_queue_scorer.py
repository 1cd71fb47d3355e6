from __future__ import annotations

import pytest

from epp.schedule.scorers.queue import QueueScorer
from tests.support import build


@pytest.mark.parametrize(
    ("queues", "scores"),
    [
        pytest.param([0, 5, 10], [1.0, 0.5, 0.0], id="linear between shortest and longest"),
        pytest.param([0, 1], [1.0, 0.0], id="one waiting request is the whole scale"),
        pytest.param([4, 4, 4], [1.0, 1.0, 1.0], id="equal queues have no say"),
        pytest.param([7], [1.0], id="one endpoint"),
        pytest.param([0, 10, None], [1.0, 0.0, 0.0], id="unknown is as long as the longest"),
        pytest.param([3, 3, None], [1.0, 1.0, 1.0], id="unknown equals the only length known"),
        pytest.param([None, None], [0.0, 0.0], id="all unknown have no say"),
    ],
)
def test_shorter_queues_score_higher(queues: list[float | None], scores: list[float]):
    endpoints = [build.endpoint(str(i), queued=queue) for i, queue in enumerate(queues)]
    scorer = QueueScorer(QueueScorer.Params(), build.tools())
    assert scorer.score(build.request(), endpoints) == scores


def test_a_scrape_without_a_queue_counts_as_unknown():
    told = [build.load(queued=0), build.load(queued=8), build.load(queued=None)]
    endpoints = [build.endpoint(str(i), load=load) for i, load in enumerate(told)]
    scorer = QueueScorer(QueueScorer.Params(), build.tools())
    assert scorer.score(build.request(), endpoints) == [1.0, 0.0, 0.0]
