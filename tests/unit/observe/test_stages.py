"""Which stages of disaggregated requests ran elsewhere, as counted."""

from __future__ import annotations

import msgspec
import pytest

from epp import headers
from epp.model import Ending, Outcome, Pick
from epp.observe.stages import StagesObserver
from epp.plugin import Observer
from epp.telemetry.metrics import Metrics
from epp.telemetry.store import Labels
from tests.support import build


def picked(*, prefill: bool = False, encode: bool = False) -> Pick:
    return msgspec.structs.replace(
        build.pick("d"),
        prefill=build.endpoint("p") if prefill else None,
        headers={headers.ENCODERS: "10.0.0.7:8000"} if encode else {},
    )


def counted(metrics: Metrics, name: str) -> dict[Labels, float]:
    numbers = metrics.store[f"llm_d_epp_{name}"].numbers
    return {labels: number.value for labels, number in numbers.items()}


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        ("disagg-profile-handler", "disagg_decision_total"),
        ("pd-profile-handler", "pd_decision_total"),
    ],
)
def test_each_pick_is_counted_under_its_handler_by_the_stages_that_run(
    type_: str, name: str
) -> None:
    metrics = Metrics(process=False)
    metrics.plugin_types = {"queue": "queue-scorer", "mine": type_}
    observer = StagesObserver(metrics)
    assert isinstance(observer, Observer)
    request = build.request(model="public", target_model="private")
    for pick in (picked(), picked(), picked(prefill=True), picked(encode=True),
                 picked(prefill=True, encode=True)):  # fmt: skip
        observer.picked(request, pick)
        observer.ended(request, pick, Ending(Outcome.COMPLETED, 1.0))
    assert counted(metrics, name) == {
        ("mine", type_, "private", "decode-only"): 2,
        ("mine", type_, "private", "prefill-decode"): 1,
        ("mine", type_, "private", "encode-decode"): 1,
        ("mine", type_, "private", "encode-prefill-decode"): 1,
    }


def test_without_such_a_handler_nothing_is_counted() -> None:
    metrics = Metrics(process=False)
    metrics.plugin_types = {"single": "single-profile-handler"}
    StagesObserver(metrics).picked(build.request(), picked())
    assert b"decision_total{" not in metrics.render()[0]


def test_a_reload_that_brings_the_handler_begins_to_count() -> None:
    metrics = Metrics(process=False)
    observer = StagesObserver(metrics)
    observer.picked(build.request(), picked())
    metrics.plugin_types = {"mine": "pd-profile-handler"}
    observer.picked(build.request(), picked())
    metrics.plugin_types = {}
    observer.picked(build.request(), picked())
    labels = ("mine", "pd-profile-handler", "llama", "decode-only")
    assert counted(metrics, "pd_decision_total") == {labels: 1}
