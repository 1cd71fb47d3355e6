"""What an answer is given on its way to the client: what plugins add, and what restores it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from epp.exchange import Exchange
from epp.extproc.messages import Headers, Mode, PassHead, PassTrailers, Piece, Reply, Side
from epp.extproc.pieces import pieces
from epp.formats.injected import without_usage
from epp.formats.splice import restored_name
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


class Edit(Protocol):
    """One change of an answer, piece by piece."""

    def feed(self, data: bytes, *, ends: bool) -> bytes:
        """Return what can go on of the answer so far; all of it, if it ``ends`` with ``data``."""
        ...


class Restoring:
    """Makes one answer what it would be had the request gone on as it came; see `restoring_of`."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self._edits = edits

    def apply(self, replies: list[Reply]) -> list[Reply]:
        """Return what to reply instead. A length told in the head would be wrong, so it goes."""
        return [changed for reply in replies for changed in self._changed(reply)]

    def _changed(self, reply: Reply) -> list[Reply]:
        if getattr(reply, "side", None) is not Side.RESPONSE:
            return [reply]
        if isinstance(reply, Piece):
            data = self._feed(reply.data, ends=reply.ends)
            found = pieces(reply.side, data, ends=reply.ends)
            return [*found] or [Piece(reply.side, b"", ends=False)]
        if isinstance(reply, PassTrailers):
            return [*pieces(reply.side, self._feed(b"", ends=True), ends=False), reply]
        if isinstance(reply, PassHead):
            removed = (*reply.remove, "content-length")
            return [msgspec.structs.replace(reply, remove=removed)]
        return [reply]

    def _feed(self, data: bytes, *, ends: bool) -> bytes:
        for edit in self._edits:
            data = edit.feed(data, ends=ends)
        return data


def restoring_of(
    request: InferenceRequest, headers: Headers, mode: Mode, *, asked_usage: bool = False
) -> Restoring | None:
    """Return what restores the answer to ``request``; None if nothing has to or can.

    It has the model's name that the client used, and no usage where only we asked for it.

    It can in full duplex, where pieces go on as we say; in other modes, and where the answer does
    not pass through us, the client sees the name that the engine was asked for.

    Args:
        request: as it was sent.
        headers: of the answer.
        mode: in which its body is shown to us.
        asked_usage: the engine was asked for usage though the client did not.
    """
    if mode is not Mode.FULL_DUPLEX_STREAMED:
        return None
    edits: list[Edit | None] = [restored_name(request.target_model, request.model, headers)]
    if asked_usage:
        edits.insert(0, without_usage(headers))
    made = [edit for edit in edits if edit is not None]
    return Restoring(made) if made else None
