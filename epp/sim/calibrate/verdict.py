"""Whether a fit may be believed: what speaks against it, in words; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from epp.sim.calibrate.certainty import Interval
from epp.sim.calibrate.quality import LEAST_REQUESTS, Errors, Quality

MOST = 0.15  #: error of a median, a p90 or a MAPE
ENOUGH_REQUESTS = 100  #: a p90 of fewer rests on less than ten
SURE = 0.5  #: half an interval of a factor, over the factor
FACTORS = ("prefill", "decode")  #: the others may well be near zero


def misses(errors: Errors) -> list[str]:
    """Return what is off by more than `MOST`, and by how much."""
    told = {
        "TTFT p50": errors.ttft_p50, "TTFT p90": errors.ttft_p90,
        "E2E p50": errors.e2e_p50, "E2E p90": errors.e2e_p90,
    }  # fmt: skip
    off = [f"{name} {error:+.1%}" for name, error in told.items() if abs(error) > MOST]
    mapes = {"TTFT": errors.ttft_mape, "E2E": errors.e2e_mape}
    return off + [f"{name} MAPE {error:.1%}" for name, error in mapes.items() if error > MOST]


def doubts_of(found: Quality) -> list[str]:
    """Return what speaks against a simulation that was held against a measurement."""
    doubts = list(_off(found))
    if found.lost:
        doubts.append(f"{found.lost} requests were answered when measured, and not when simulated")
    return doubts


def doubts_of_fit(found: Quality, intervals: Mapping[str, Interval]) -> list[str]:
    """Return what speaks against fitted numbers."""
    doubts = doubts_of(found)
    requests = found.all.requests
    if requests < ENOUGH_REQUESTS:
        doubts.append(
            f"few requests: p90 of {requests} rests on {requests // 10}; "
            f"take {ENOUGH_REQUESTS} at least"
        )
    for name in FACTORS:
        each = intervals[name]
        if each.spread > SURE:
            doubts.append(
                f"{name} is not identified: {each.low:.2g} to {each.high:.2g} fit about alike; "
                "take more requests, of more different lengths, or of a busier time"
            )
    return doubts


def _off(found: Quality) -> Iterator[str]:
    most = f"off by more than {MOST:.0%}"
    if wrong := misses(found.all):
        yield f"{most}: {', '.join(wrong)}"
    for name, errors in found.classes.items():
        if errors.requests >= LEAST_REQUESTS and (wrong := misses(errors)):
            yield f"{most} in class {name}: {', '.join(wrong)}"
