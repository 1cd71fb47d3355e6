"""Why prompts are computed where they are, and what prefills that we ran took."""

from __future__ import annotations

import pytest

from epp.model import Ending, Expected, Outcome, Pick, PrefillLeg, Speed
from epp.observe.legs import LegsObserver, seconds_of, stranded
from epp.telemetry.metrics import Metrics
from tests.support import build

D, P = build.endpoint("d"), build.endpoint("p", host="10.0.0.2")
PICK = Pick((D,), prefill=P, stages="decider", expected=Expected(1000, 500, Speed(0.001, 0.1, 9)))


def ending(outcome: Outcome = Outcome.COMPLETED, **facts: object) -> Ending:
    return Ending(outcome, 20.0, **facts)  # type: ignore[arg-type]


def test_what_another_endpoint_lost_is_no_part_of_what_the_prefill_took() -> None:
    leg = PrefillLeg(build.endpoint("other"), "retried", 12.0, 1.6, 2, 1.1)
    assert seconds_of(leg, PICK, ending()) == {"queue": 0.0, "compute": pytest.approx(0.5)}


def test_queue_and_computing_are_told_apart_by_the_speed_learned() -> None:
    leg = PrefillLeg(P, "", 12.0, 1.6, 1)
    told = ending(streamed=True, first_byte_at=12.25)
    assert seconds_of(leg, PICK, told) == {
        "queue": pytest.approx(1.0),  # 1000 tokens at 1 ms
        "compute": pytest.approx(0.6),
        "transfer": pytest.approx(0.25),
    }


def test_of_a_leg_that_went_on_beside_only_the_first_byte_is_known() -> None:
    leg = PrefillLeg(P, "", 12.0, None, 1)
    assert seconds_of(leg, PICK, ending(streamed=True, first_byte_at=13.0)) == {"transfer": 1.0}
    assert seconds_of(leg, PICK, ending()) == {}


@pytest.mark.parametrize(
    ("told", "lost"),
    [
        pytest.param(ending(Outcome.ABANDONED), True, id="the client left before a first byte"),
        pytest.param(ending(Outcome.ABANDONED, first_byte_at=13.0), False, id="it left later"),
        pytest.param(ending(Outcome.FAILED, status=503), True, id="decode failed"),
        pytest.param(ending(Outcome.FAILED, status=400), True, id="decode refused it"),
        pytest.param(ending(Outcome.FAILED, status=200), False, id="it broke off later"),
        pytest.param(ending(), False, id="all went well"),
    ],
)
def test_a_cache_that_nobody_read_is_stranded(told: Ending, lost: bool) -> None:
    assert stranded(told) is lost


def test_decisions_and_legs_are_counted_with_their_reasons() -> None:
    metrics = Metrics(process=False)
    observer, request = LegsObserver(metrics), build.request()
    observer.picked(request, PICK)
    observer.picked(request, Pick((D,)))  # by a handler that gives no reasons
    observer.ended(request, PICK, ending(leg=PrefillLeg(P, "retried", 12.0, 1.0, 2)))
    observer.ended(request, PICK, ending(leg=PrefillLeg(None, "timeout", 12.0, 1.0, 1)))
    observer.ended(request, PICK, ending(Outcome.ABANDONED, leg=PrefillLeg(P, "", 12.0, 1.0, 1)))
    observer.ended(request, PICK, ending())
    page = metrics.store
    assert page["epp_stages_total"].number("prefill-decode", "decider").value == 1
    for reason in ("retried", "timeout", "done"):
        assert page["epp_prefill_legs_total"].number(reason).value == 1
    assert page["epp_prefill_stranded_total"].number().value == 1
