"""The page on which an engine lists its models; pure.

**Source:** ``/v1/models`` of vLLM and SGLang: ``{"data": [{"id": ..., "parent": ...}]}``.
"""

from __future__ import annotations

import msgspec

from epp.prefix.feed.names import Listed

MOST_NAMES = 16_384  #: of one engine


class _Model(msgspec.Struct, frozen=True):
    id: str
    parent: str | None = None


class _Page(msgspec.Struct, frozen=True):
    data: list[_Model]


_read = msgspec.json.Decoder(_Page).decode


def listed(page: bytes) -> Listed:
    """Return the names on a page.

    Raises:
        ValueError: it is none, or lists more than `MOST_NAMES`.
    """
    try:
        models = _read(page).data
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"models: {error}") from error
    if len(models) > MOST_NAMES:
        raise ValueError(f"models: {len(models)} are listed, at most {MOST_NAMES} are read")
    adapters = frozenset(each.id for each in models if each.parent)
    return Listed(frozenset(each.id for each in models) - adapters, adapters)
