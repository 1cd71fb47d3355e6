"""Who listens to requests besides the plugins: metrics, receipts, forecasts, the log."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from epp.clock import Clock
from epp.ledger import Ledger
from epp.observe.decisions import DecisionLog
from epp.observe.header import DecisionHeader, key_of
from epp.observe.legs import LegsObserver
from epp.observe.metrics import MetricsObserver
from epp.observe.receipts import Receipts
from epp.observe.stages import StagesObserver
from epp.observe.truth import TruthObserver
from epp.plugin import AnswerHeaderAdder, Observer
from epp.pool import Forget
from epp.recording.recorder import Recorder, Settings
from epp.serve.options import ServeOptions
from epp.telemetry import log as logs
from epp.telemetry.metrics import Metrics
from epp.ttft.forecast import Forecaster

POOL = "{pool}"  #: in the name of a recording's file, stands for the pool's


class Watching:
    """What the options ask for.

    Args:
        options: of the picker.
        metrics: counts.
        ledger: what is in flight.
        clock: tells the time.
        pool: its name, for files of its own.
    """

    def __init__(
        self,
        options: ServeOptions,
        metrics: Metrics,
        *,
        ledger: Ledger,
        clock: Clock,
        pool: str = "",
    ) -> None:
        self.forecaster = Forecaster(ledger, clock)
        self.receipts = Receipts(options.receipts, ledger, clock) if options.receipts else None
        self.recorder = _recorder(options, pool, clock)
        self._options = options
        self._metrics = metrics
        self._clock = clock

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Those that hear of every exchange."""
        found: list[Observer] = [
            MetricsObserver(self._metrics, self._clock),
            StagesObserver(self._metrics),
            LegsObserver(self._metrics),
            TruthObserver(self._metrics.truth),
            self.forecaster,
        ]
        if self.receipts is not None:
            found.append(self.receipts)
        if self.recorder is not None:
            found.append(self.recorder)
        if self._options.verbosity >= logs.DEBUG_VERBOSITY:
            found.append(DecisionLog())
        return tuple(found)

    @property
    def forgets(self) -> tuple[Forget, ...]:
        """What drops the knowledge of an endpoint that is gone."""
        recorder = () if self.recorder is None else (self.recorder.forget,)
        return (self._metrics.forget, self.forecaster.forget, *recorder)

    @property
    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What runs beside the traffic, by name."""
        if self.recorder is None:
            return {}
        recorder = self.recorder
        self._metrics.live("epp_recorded_requests_total", lambda: float(recorder.written))
        self._metrics.live("epp_record_dropped_total", lambda: recorder.dropped)
        return {"recorder": recorder.run()}

    @property
    def answer_headers(self) -> tuple[AnswerHeaderAdder, ...]:
        """Those that add to an answer's head."""
        key_file = self._options.decision_key_file
        if self.receipts is None or not (self._options.decision_header or key_file):
            return ()
        return (DecisionHeader(self.receipts, key_of(key_file) if key_file else b""),)


def _recorder(options: ServeOptions, pool: str, clock: Clock) -> Recorder | None:
    if not options.record_file:
        return None
    settings = Settings(
        file=options.record_file.replace(POOL, pool.replace("/", "-")),
        most_bytes=options.record_file_size,
        kept=options.record_files,
        key_file=options.record_key_file,
        key_period=options.record_key_period,
        least=options.record_least_sharers,
        classes=options.record_classes,
    )
    return Recorder(settings, clock)
