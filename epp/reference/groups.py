"""The built-in plugins in the order of the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from epp.collect.sources import SOURCES
from epp.disagg.pairs.handler import PairProfileHandler
from epp.disagg.remote.client import PrefillClient
from epp.flow.admit import ADMITTERS
from epp.flow.identity import IDENTITIES
from epp.flow.saturation import DETECTORS
from epp.formats import PARSERS
from epp.observe.conformance import REPORTERS
from epp.observe.producers import PRODUCERS
from epp.prefix.approx import ApproxPrefixCacheProducer
from epp.prefix.media import MmEmbeddingsCacheProducer
from epp.prefix.precise import PrecisePrefixCacheProducer
from epp.prefix.tokens.producer import Tokenizer, TokenProducer
from epp.schedule.deciders import DECIDERS
from epp.schedule.filters import FILTERS
from epp.schedule.handlers import HANDLERS
from epp.schedule.pickers import PICKERS
from epp.schedule.scorers import SCORERS


class Group(msgspec.Struct, frozen=True):
    """Plugins of one kind."""

    title: str
    does: str  #: one sentence
    classes: tuple[Any, ...]


GROUPS = (
    Group("Filters", "Remove endpoints that must not serve the request.", tuple(FILTERS)),
    Group("Scorers", "Say how good each endpoint is, from 0.0 to 1.0.", tuple(SCORERS)),
    Group("Pickers", "Choose among the scored endpoints.", tuple(PICKERS)),
    Group("Profile handlers", "Decide which profiles run.", (*HANDLERS, PairProfileHandler)),
    Group("Deciders", "Say whether a stage runs on another endpoint.", tuple(DECIDERS)),
    Group("Prefillers", "Have prompts computed on another endpoint.", (PrefillClient,)),
    Group("Saturation detectors", "Say how full the pool is.", tuple(DETECTORS)),
    Group("Admitters", "May refuse a request before it is scheduled.", tuple(ADMITTERS)),
    Group("Identity", "Read from the headers whose request it is.", tuple(IDENTITIES)),
    Group(
        "Producers",
        "Add a fact to the request that other plugins read.",
        (
            ApproxPrefixCacheProducer,
            PrecisePrefixCacheProducer,
            MmEmbeddingsCacheProducer,
            TokenProducer,
            Tokenizer,
            *PRODUCERS,
        ),
    ),
    Group("Reporters", "Tell the gateway or the client something.", tuple(REPORTERS)),
    Group("Parsers", "Read one family of APIs.", tuple(PARSERS)),
    Group("Data sources", "Say where endpoints and their loads come from.", tuple(SOURCES)),
)

BY_TYPE: Mapping[str, Any] = {each.type: each for group in GROUPS for each in group.classes}
