"""Durations as Go writes them, quantities as Kubernetes does."""

from __future__ import annotations

import re

import msgspec
import pytest

from epp.config.schema import Duration, Quantity
from epp.config.units import parse_duration, parse_quantity

LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0), ("0s", 0.0), ("1s", 1.0), ("200ms", 0.2), ("1m30s", 90.0), ("1h2m3.5s", 3723.5),
        (".5s", 0.5), ("2.s", 2.0), ("5us", 5e-6), ("5µs", 5e-6), ("7ns", 7e-9), ("1s1s", 2.0),
    ],
)  # fmt: skip
def test_a_duration_is_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)
    msgspec.convert(text, Duration)


@pytest.mark.parametrize(
    "text",
    ["", "5", "s", ".s", "-1s", "+1s", "1 s", " 1s", "1d", "1S", "1e3s", "1,5s", "1s ", "٣s x"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_duration(text)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(text, Duration)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("500", 500), ("1k", 1000), ("1M", 10**6), ("1G", 10**9), ("2T", 2 * 10**12),
        ("1Ki", 1024), ("32Mi", 32 * 2**20), ("1.5Gi", 1610612736), ("2e6", 2_000_000),
        ("2E6", 2_000_000), ("1E", 10**18), ("1.", 1), ("1500m", 2), ("1m", 1), ("0.1", 1),
        ("9223372036854775807", LARGEST),
    ],
)  # fmt: skip
def test_a_quantity_is_a_whole_number_rounded_up(text: str, number: int) -> None:
    assert parse_quantity(text) == number
    msgspec.convert(text, Quantity)


@pytest.mark.parametrize(
    "text", ["", "-1", "1K", "1ki", "1 M", "M", ".", "1e", "1Gib", "0x10", "1_000", "inf", "nan"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "10E", "8Ei", "1e999999999"])
def test_a_quantity_beyond_64_bits_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_quantity(text)
