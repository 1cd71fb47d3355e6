"""What a request's span says when the request is over."""

from __future__ import annotations

from epp.model import Ending, Expected, Outcome, Pick, Speed
from epp.observe.spans import SpanObserver, Value
from tests.support import build

A = build.endpoint("a")


class Noted:
    """A span that keeps what it is told."""

    def __init__(self) -> None:
        self.found: dict[str, Value] = {}
        self.ended = 0

    def set(self, name: str, value: Value) -> None:
        self.found[name] = value

    def fail(self, kind: str, said: str = "") -> None:
        self.found["failed"] = kind

    def end(self) -> None:
        self.ended += 1


def span_of(pick: Pick, ending: Ending) -> dict[str, Value]:
    span = Noted()
    request = build.request(arrived_at=10.0, waited=1.5, prompt_tokens=500, streaming=True)
    SpanObserver(span).ended(request, pick, ending)
    assert span.ended == 1
    return span.found


def test_a_span_has_the_parts_of_the_first_token_expected_and_measured() -> None:
    # 1,000 tokens a second and 20 ms besides; 300 tokens are before the 500 of the request.
    pick = Pick((A,), expected=Expected(300.0, 500.0, Speed(0.001, 0.02, 9)))
    ending = Ending(
        Outcome.COMPLETED, 20.0, 200, first_byte_at=12.75, streamed=True, picked_at=11.75
    )
    found = span_of(pick, ending)
    parts = {
        name.removeprefix("llm_d.epp."): value
        for name, value in found.items()
        if "ttft" in name and isinstance(value, float)
    }
    assert {name: round(value, 6) for name, value in parts.items()} == {
        "expected_ttft.total_seconds": 2.57,
        "expected_ttft.wait_seconds": 1.5,
        "expected_ttft.decision_seconds": 0.25,
        "expected_ttft.engine_seconds": 0.82,
        "expected_ttft.queue_seconds": 0.3,
        "expected_ttft.prefill_seconds": 0.5,
        "expected_ttft.rest_seconds": 0.02,
        "ttft.total_seconds": 2.75,
        "ttft.wait_seconds": 1.5,
        "ttft.decision_seconds": 0.25,
        "ttft.engine_seconds": 1.0,
        "ttft.queue_seconds": 0.3,
        "ttft.prefill_seconds": 0.5,
        "ttft.rest_seconds": 0.2,
    }
    assert found["llm_d.epp.time_to_first_byte_seconds"] == 2.75


def test_what_is_not_known_is_no_attribute() -> None:
    found = span_of(Pick((A,)), Ending(Outcome.FAILED, 20.0, None))
    assert not [name for name in found if "ttft" in name or "first_byte" in name]
    assert "http.response.status_code" not in found
    assert found["failed"] == "failed"
