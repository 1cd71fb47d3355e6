"""Durations and sizes as Kubernetes users write them.

**Source:** Go's ``time.ParseDuration`` (``1h2m3.5s``, ``200ms``) and Kubernetes' resource
quantities (``32Mi``, ``1G``, ``1.5Gi``, ``2e6``).
"""

from __future__ import annotations

import re
from decimal import Decimal

LARGEST = 2**63 - 1  #: as a quantity; in Kubernetes too

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_WHOLE_DURATION = re.compile(rf"(?:{_DURATION.pattern})+")
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(m|k|[KMGTPE]i?)?")
_FACTORS = {
    "": 1,
    "m": Decimal("0.001"),
    **{unit: 1000 ** (i + 1) for i, unit in enumerate("kMGTPE")},
    **{f"{unit}i": 1024 ** (i + 1) for i, unit in enumerate("KMGTPE")},
}


def parse_duration(text: str) -> float:
    """Return seconds (>= 0). A bare ``0`` is allowed, any other number needs a unit.

    Raises:
        ValueError: ``text`` is not a duration.
    """
    if text == "0":
        return 0.0
    if _WHOLE_DURATION.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a duration such as 200ms, 30s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))


def parse_quantity(text: str) -> int:
    """Return a whole number, 0 to `LARGEST`, rounded up.

    Raises:
        ValueError: ``text`` is not a quantity, or larger.
    """
    match = _QUANTITY.fullmatch(text)
    try:
        if match is not None and (match[2] or "") in _FACTORS:
            exact = Decimal(match[1]) * _FACTORS[match[2] or ""]
            if exact <= LARGEST:
                return int(exact.to_integral_value(rounding="ROUND_CEILING"))
    except ArithmeticError:
        pass
    raise ValueError(f"{text!r} is not a quantity such as 500, 1G or 32Mi")
