"""``expected-ttft-scorer``: the endpoint whose first token costs the least, in seconds."""

from epp.schedule.expected.scorer import ExpectedTtftScorer

__all__ = ["ExpectedTtftScorer"]
