"""A body in the pieces that a full-duplex gateway takes."""

from __future__ import annotations

from epp.extproc.messages import Piece, Side

PIECE_BYTES = 62_000
"""Envoy refuses streamed pieces of 64 KiB and more; this leaves room for their framing."""


def pieces(side: Side, data: bytes, *, ends: bool) -> list[Piece]:
    """Cut ``data`` into pieces of at most `PIECE_BYTES`, the last one flagged if ``ends``.

    Nothing unflagged is no piece at all; nothing flagged is one empty piece.
    """
    size = len(data)
    if size <= PIECE_BYTES:
        return [Piece(side, data, ends)] if size or ends else []
    starts = range(0, size, PIECE_BYTES)
    return [
        Piece(side, data[start : start + PIECE_BYTES], ends and start == starts[-1])
        for start in starts
    ]
