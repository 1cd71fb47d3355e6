"""What plugins add to an answer on its way to the client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from epp.exchange import Exchange
from epp.model import Usage
from epp.pipeline import Pipeline
from epp.plugin import AnswerHeaderAdder

NOTHING: Mapping[str, Mapping[str, float]] = {}


class Answering:
    """Asks the plugins of the pipeline that is used at the moment.

    Args:
        pipeline: tells it.
        more: add headers too, whatever the pipeline.
    """

    def __init__(
        self, pipeline: Callable[[], Pipeline], more: Sequence[AnswerHeaderAdder] = ()
    ) -> None:
        self._pipeline = pipeline
        self._more = tuple(more)

    def headers(self, exchange: Exchange) -> Mapping[str, str]:
        """Return headers to set on the answer's head."""
        headers: dict[str, str] = {}
        for adder in (*self._pipeline().answer_headers, *self._more):
            headers.update(adder.answer_headers(exchange.request, exchange.pick, exchange.served))
        return headers

    def metadata(self, exchange: Exchange) -> Mapping[str, Mapping[str, float]]:
        """Return dynamic metadata for a whole answer's last message, by namespace and name."""
        reporters = self._pipeline().reporters
        if not reporters:
            return NOTHING
        metadata: dict[str, dict[str, float]] = {}
        usage = exchange.usage or Usage()
        for reporter in reporters:
            for namespace, values in reporter.report(
                exchange.request, exchange.pick, usage
            ).items():
                metadata.setdefault(namespace, {}).update(values)
        return metadata
