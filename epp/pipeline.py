"""Everything one configuration decides, built once and never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from epp.config.schema import PluginSpec
from epp.flow.gate import Gate
from epp.model import Arrival, InferenceRequest
from epp.plugin import (
    Admitter,
    AnswerHeaderAdder,
    AnswerReporter,
    Enricher,
    Observer,
    PoolWatcher,
    Prefiller,
    Preparer,
    RequestHeaderAdder,
    Screener,
    type_of,
)
from epp.pool import Pool
from epp.rules import Rules
from epp.schedule.scheduler import Scheduler


class Formats(Protocol):
    """Reads a request, whatever its format (see `formats.FormatSet`)."""

    def parse(self, arrival: Arrival, now: float) -> InferenceRequest:
        """Return the request understood as far as possible.

        Raises:
            errors.BadRequest: it claims to be JSON for a known API and is not JSON.
        """
        ...

    def unfit(self, protocol: str) -> tuple[str, ...]:
        """Return the types of parsers whose requests never come over ``protocol``; "" is any."""
        ...

    def aside(self, arrival: Arrival) -> tuple[str, ...]:
        """Return the types of the parsers that may read it in another process; () if `parse` may.

        Not empty only for a body of which reading may keep other requests waiting.
        """
        ...


OutputTokens = Callable[[InferenceRequest], int]
"""How many tokens a request may generate, to be booked beside its prompt's; 0 books none."""


class Pipeline(msgspec.Struct, frozen=True):
    """The parts of the line, in the order a request meets them."""

    formats: Formats
    rules: Rules
    gate: Gate
    screeners: tuple[Screener, ...]
    enrichers: tuple[Enricher, ...]
    admitters: tuple[Admitter, ...]
    scheduler: Scheduler
    observers: tuple[Observer, ...]
    plugins: Mapping[str, Any] = {}  #: every plugin instance by its configured name
    output: OutputTokens | None = None  #: None books the prompt only
    preparers: tuple[Preparer, ...] = ()  #: run first, before the gate
    prefiller: Prefiller | None = None  #: None leaves prefills elsewhere to sidecars
    request_headers: tuple[RequestHeaderAdder, ...] = ()
    answer_headers: tuple[AnswerHeaderAdder, ...] = ()
    reporters: tuple[AnswerReporter, ...] = ()
    specs: Mapping[str, PluginSpec] = {}  #: what each of `plugins` was built from
    warnings: tuple[str, ...] = ()  #: about plugins that were ignored, for the log


def types_of(pipeline: Pipeline) -> Mapping[str, str]:
    """Return the type of each plugin instance, by its name."""
    return {name: type_of(made) for name, made in pipeline.plugins.items()}


def retire(old: Pipeline | None, new: Pipeline, pool: Pool) -> None:
    """Have ``new``'s plugins, and no longer those that only ``old`` had, hear of lost endpoints."""
    before = {id(each): each for each in _watchers(old)}
    after = {id(each): each for each in _watchers(new)}
    for key, watcher in before.items():
        if key not in after:
            pool.off_forget(watcher.forget)
    for key, watcher in after.items():
        if key not in before:
            pool.on_forget(watcher.forget)


def _watchers(line: Pipeline | None) -> list[PoolWatcher]:
    if line is None:
        return []
    return [each for each in line.plugins.values() if isinstance(each, PoolWatcher)]
