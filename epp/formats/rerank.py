"""Rerank and score: pairs of texts. They share no prefix worth a place, so load alone decides.

**Source:** https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html (re-rank, score);
``/v1/rerank`` and ``/v2/rerank`` are Jina's and Cohere's.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Raw

from epp import plugin
from epp.formats.prompt import BYTES_PER_TOKEN, Unreadable
from epp.formats.reading import Body, Facts, PathParser, Reads

_Texts = str | list[Raw] | None


class _Pairs(Body, gc=False):
    query: _Texts = None
    documents: _Texts = None
    text_1: _Texts = None
    text_2: _Texts = None
    queries: _Texts = None
    items: _Texts = None


_body = msgspec.json.Decoder(_Pairs).decode


def pairs(body: bytes | memoryview) -> Facts:
    """Read a query and its documents, or two texts to compare."""
    asked = _body(body)
    queries = next((t for t in (asked.query, asked.text_1, asked.queries) if t), None)
    texts = next((t for t in (asked.documents, asked.text_2, asked.items) if t), None)
    if queries is None or texts is None:
        raise Unreadable("no-prompt")
    # Every document is read together with a query.
    rounds = max(1, _count(texts) // _count(queries))
    tokens = (_size(queries) * rounds + _size(texts)) // BYTES_PER_TOKEN
    return asked.facts(None, prompt=b"", tokens=tokens)


def _count(texts: str | list[Raw]) -> int:
    return 1 if isinstance(texts, str) else len(texts)


def _size(texts: str | list[Raw]) -> int:
    """Bytes of text, or characters where it is one string."""
    return len(texts) if isinstance(texts, str) else sum(len(bytes(raw)) - 2 for raw in texts)


class RerankParser(PathParser):
    """Reads rerank and score requests; always there."""

    type: ClassVar[str] = "rerank-parser"
    stability: ClassVar[plugin.Stability] = "beta"

    reads: ClassVar[Reads] = {"rerank": ("rerank", pairs), "score": ("score", pairs)}
