"""Who listens besides the plugins, and what is forgotten of an endpoint that is gone."""

from __future__ import annotations

from epp.clock import ManualClock
from epp.ledger import Ledger
from epp.model import Ending, Outcome, Pick
from epp.serve.options import ServeOptions
from epp.serve.watching import Watching
from epp.telemetry.metrics import Metrics
from tests.support import build

A = build.endpoint("a")


def test_what_first_tokens_taught_of_an_endpoint_goes_with_it() -> None:
    clock = ManualClock(1.0)
    watching = Watching(ServeOptions(), Metrics(process=False), ledger=Ledger(), clock=clock)
    request = build.request(prompt_tokens=500, streaming=True)
    pick = Pick((A,), expected=watching.forecaster.expect(request, Pick((A,))))
    ending = Ending(Outcome.COMPLETED, 3.0, 200, first_byte_at=2.0, streamed=True, picked_at=1.0)
    for observer in watching.observers:
        observer.picked(request, pick)
    for observer in watching.observers:
        observer.ended(request, pick, ending)
    learned = watching.forecaster.speed(A.id)
    assert learned is not None
    assert learned.answers == 1
    for forget in watching.forgets:
        forget(A.id)
    left = watching.forecaster.speed(A.id)
    assert left is not None
    assert left.answers == 0
