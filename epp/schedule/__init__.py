"""From candidates to a pick: filters, scorers, pickers, and the handlers that run them."""

DEFAULT_WEIGHTS: tuple[tuple[str, float], ...] = (
    ("queue-scorer", 2.0),
    ("kv-cache-utilization-scorer", 2.0),
    ("prefix-cache-scorer", 3.0),
    ("in-flight-load-scorer", 80.0),
)
"""Scorers of a configuration that names none. The first three are the published default; the
last one adds what scrapes cannot have seen (why 80: `scorers.in_flight`)."""
