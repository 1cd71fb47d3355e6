"""Who listens to requests besides the plugins: metrics, receipts, forecasts, the log."""

from __future__ import annotations

from collections.abc import Mapping

from epp import headers
from epp.clock import Clock
from epp.ledger import Ledger
from epp.model import InferenceRequest, Pick
from epp.observe.decisions import DecisionLog
from epp.observe.metrics import MetricsObserver
from epp.observe.receipts import Receipts
from epp.observe.stages import StagesObserver
from epp.observe.truth import TruthObserver
from epp.options import ServeOptions
from epp.plugin import AnswerHeaderAdder, Observer
from epp.pool import Forget
from epp.telemetry import log as logs
from epp.telemetry.metrics import Metrics
from epp.ttft.forecast import Forecaster


class Watching:
    """What the options ask for.

    Args:
        options: of the picker.
        metrics: counts.
        ledger: what is in flight.
        clock: tells the time.
    """

    def __init__(
        self, options: ServeOptions, metrics: Metrics, *, ledger: Ledger, clock: Clock
    ) -> None:
        self.forecaster = Forecaster(ledger, clock)
        self.receipts = Receipts(options.receipts, ledger, clock) if options.receipts else None
        self._options = options
        self._metrics = metrics
        self._clock = clock

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Those that hear of every exchange."""
        found: list[Observer] = [
            MetricsObserver(self._metrics, self._clock),
            StagesObserver(self._metrics),
            TruthObserver(self._metrics.truth),
            self.forecaster,
        ]
        if self.receipts is not None:
            found.append(self.receipts)
        if self._options.verbosity >= logs.DEBUG_VERBOSITY:
            found.append(DecisionLog())
        return tuple(found)

    @property
    def forgets(self) -> tuple[Forget, ...]:
        """What drops the knowledge of an endpoint that is gone."""
        return (self._metrics.forget, self.forecaster.forget)

    @property
    def answer_headers(self) -> tuple[AnswerHeaderAdder, ...]:
        """Those that add to an answer's head."""
        if self.receipts is None or not self._options.decision_header:
            return ()
        return (DecisionHeader(self.receipts),)


class DecisionHeader:
    """Tells the client in one line why its request went where it went.

    It names the pool's addresses, so it is for gateways whose clients may know them.
    """

    def __init__(self, receipts: Receipts) -> None:
        self._receipts = receipts

    def answer_headers(
        self, request: InferenceRequest, pick: Pick, served: str
    ) -> Mapping[str, str]:
        """See `plugin.AnswerHeaderAdder.answer_headers`."""
        said = self._receipts.summary(pick)
        return {headers.DECISION: said} if said else {}
