"""What an answer is given on its way to the client: what plugins add, and its model's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from epp.exchange import Exchange
from epp.extproc.messages import Headers, Mode, PassHead, PassTrailers, Piece, Reply, Side
from epp.extproc.pieces import pieces
from epp.formats.splice import RestoredName, restored_name
from epp.model import InferenceRequest, Usage
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


class Restoring:
    """Restores the model's name in one answer; see `restoring_of`."""

    def __init__(self, name: RestoredName) -> None:
        self._name = name

    def apply(self, replies: list[Reply]) -> list[Reply]:
        """Return what to reply instead. A length told in the head would be wrong, so it goes."""
        return [changed for reply in replies for changed in self._changed(reply)]

    def _changed(self, reply: Reply) -> list[Reply]:
        if getattr(reply, "side", None) is not Side.RESPONSE:
            return [reply]
        if isinstance(reply, Piece):
            data = self._name.feed(reply.data, ends=reply.ends)
            found = pieces(reply.side, data, ends=reply.ends)
            return [*found] or [Piece(reply.side, b"", ends=False)]
        if isinstance(reply, PassTrailers):
            return [*pieces(reply.side, self._name.feed(b"", ends=True), ends=False), reply]
        if isinstance(reply, PassHead):
            removed = (*reply.remove, "content-length")
            return [msgspec.structs.replace(reply, remove=removed)]
        return [reply]


def restoring_of(request: InferenceRequest, headers: Headers, mode: Mode) -> Restoring | None:
    """Return what restores the name in the answer to ``request``; None if nothing has to or can.

    It can in full duplex, where pieces go on as we say; in other modes, and where the answer does
    not pass through us, the client sees the name that the engine was asked for.

    Args:
        request: as it was sent.
        headers: of the answer.
        mode: in which its body is shown to us.
    """
    if mode is not Mode.FULL_DUPLEX_STREAMED or request.target_model in ("", request.model):
        return None
    name = restored_name(request.target_model, request.model, headers)
    return None if name is None else Restoring(name)
