"""``expected-ttft-scorer`` alone: what one decision costs it, over a pool that is being scraped."""

from __future__ import annotations

import random
import time

from epp.clock import SystemClock
from epp.ledger import Ledger
from epp.model import CacheInfo, Endpoint, EndpointId, InferenceRequest, Load, Pick, PrefixMatch
from epp.plugin import Tools
from epp.schedule.expected import ExpectedTtftScorer
from epp.traffic.figures import percentile
from epp.ttft.forecast import Forecaster

DECISIONS = 2000
SCRAPED = 3  #: endpoints between two decisions
OPEN = 500  #: requests in flight


def decisions(*, endpoints: int) -> tuple[float, float, float, int]:
    """Time decisions: per second, p50 ms, p99 ms, count. The booking is not part of it."""
    draw, clock, ledger = random.Random(3), SystemClock(), Ledger()
    forecaster = Forecaster(ledger, clock)
    tools = Tools(clock, draw, ledger, forecaster=forecaster)
    scorer = ExpectedTtftScorer(ExpectedTtftScorer.Params(), tools)
    pool = [_endpoint(i, draw, clock.now()) for i in range(endpoints)]
    took, open_ = [], []
    for number in range(DECISIONS):
        for _ in range(SCRAPED):
            place = draw.randrange(endpoints)
            pool[place] = _endpoint(place, draw, clock.now())
        request, snapshot = _request(number, draw, pool), tuple(pool)
        began = time.perf_counter()
        scores = scorer.score(request, snapshot)
        took.append(time.perf_counter() - began)
        endpoint = snapshot[scores.index(max(scores))]
        forecaster.expect(request, Pick((endpoint,)))
        open_.append(ledger.reserve(endpoint, request.prompt_tokens, request=request.id))
        if len(open_) > OPEN:
            open_.pop(0).release()
    whole, ms = sum(took), [each * 1000.0 for each in took]
    return DECISIONS / whole, percentile(ms, 50) or 0.0, percentile(ms, 99) or 0.0, DECISIONS


def _endpoint(place: int, draw: random.Random, now: float) -> Endpoint:
    load = Load(
        at=now, queued=draw.randrange(4), running=draw.randrange(64), kv_usage=draw.random() * 0.8,
        cache=CacheInfo(block_tokens=16, tokens=500_000),
    )  # fmt: skip
    id_ = EndpointId(f"pod-{place}")
    return Endpoint(id_, f"10.0.{place // 250}.{place % 250 + 1}", 8000, id_, load=load)


def _request(number: int, draw: random.Random, pool: list[Endpoint]) -> InferenceRequest:
    """A prompt of 8,000 tokens, parts of which a tenth of the pool holds."""
    holders = draw.sample(pool, max(len(pool) // 10, 1))
    held = {endpoint.id: draw.randrange(1, 125) for endpoint in holders}
    chain = tuple(draw.getrandbits(64) for _ in range(125))
    match = PrefixMatch(chain, 64, held)  # type: ignore[arg-type]
    return InferenceRequest(
        f"r-{number}", {}, b"", prompt_tokens=8000, streaming=True, prefix={"picks": match}
    )
