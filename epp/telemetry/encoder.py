"""Counts of media whose encoders were looked for, and of who was believed to have encoded them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from epp.model import EndpointId
from epp.telemetry.store import Histogram
from epp.telemetry.table import TENTHS


class EncoderCounts:
    """Of one producer. Modalities are few fixed words, so that all of it is bounded."""

    def __init__(self) -> None:
        self.queries: Counter[str] = Counter()  #: media asked for, by modality
        self.hits: dict[str, Counter[EndpointId]] = {}  #: of these, who had them, by modality
        self.ratio = Histogram(TENTHS)  #: share of a request's media, of each endpoint

    def asked(self, modality: str, holders: Collection[EndpointId]) -> None:
        """A medium was looked for, and ``holders`` have it."""
        self.queries[modality] += 1
        if holders:
            self.hits.setdefault(modality, Counter()).update(holders)

    def matched(self, held: Sequence[int], media: int) -> None:
        """Endpoints have so many each of a request's ``media``, which are at least one."""
        for count in held:
            self.ratio.observe(count / media)

    def forget(self, endpoint_id: EndpointId) -> None:
        """The endpoint is gone: so are its hits."""
        for counts in self.hits.values():
            counts.pop(endpoint_id, None)
