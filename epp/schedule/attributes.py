"""Reading a custom metric off endpoints: what the attribute filter and scorer share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from epp.model import Endpoint

CORE = "core-metrics-extractor"  #: publishes custom metrics under their plain names


def key(attribute: str, producer: str | None) -> str:
    """The key of an attribute in `model.Load.attributes`.

    The core extractor's attributes go by their plain name, others by ``producer/attribute``.
    """
    return attribute if producer in {None, "", CORE} else f"{producer}/{attribute}"


def values(endpoints: Sequence[Endpoint], name: str) -> list[float | None]:
    """One value per endpoint; None if it does not tell, or tells what is not a number."""
    told = [None if (load := e.load) is None else load.attributes.get(name) for e in endpoints]
    return [None if value is None or math.isnan(value) else value for value in told]
