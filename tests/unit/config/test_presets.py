"""Configurations by name are whole: each builds, and schedules by what it says."""

from __future__ import annotations

import random

import pytest

from epp.build import Parts, configure
from epp.clock import ManualClock
from epp.config.presets import PRESETS
from epp.ledger import Ledger
from epp.pool import Pool
from epp.ttft.forecast import Forecaster


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_builds_without_a_warning(name: str) -> None:
    clock, ledger = ManualClock(), Ledger()
    parts = Parts(clock, random.Random(1), ledger, Pool(), forecaster=Forecaster(ledger, clock))
    loaded, pipeline = configure(PRESETS[name], parts)
    assert (loaded.warnings, pipeline.warnings) == ((), ())


def test_the_best_preset_schedules_by_expected_time_and_knows_prefixes() -> None:
    clock, ledger = ManualClock(), Ledger()
    parts = Parts(clock, random.Random(1), ledger, Pool(), forecaster=Forecaster(ledger, clock))
    _, pipeline = configure(PRESETS["best"], parts)
    (scorer, weight), *others = pipeline.scheduler.profiles["default"].scorers
    assert (scorer.type, weight, others) == ("expected-ttft-scorer", 1.0, [])
    assert "approx-prefix-cache-producer" in pipeline.plugins
