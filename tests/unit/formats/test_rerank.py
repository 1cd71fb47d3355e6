"""Rerank and score: model and size are read, no prefix is claimed."""

from __future__ import annotations

import pytest

from tests.support.arrivals import parsed


@pytest.mark.parametrize(
    ("path", "body", "format", "tokens"),
    [
        pytest.param(
            "/v1/rerank",
            {"model": "m", "query": "q" * 8, "documents": ["d" * 16, "e" * 16]},
            "rerank",
            12,
            id="rerank",
        ),
        pytest.param(
            "/v1/score",
            {"model": "m", "text_1": "q" * 8, "text_2": "d" * 16},
            "score",
            6,
            id="score of two texts",
        ),
        pytest.param(
            "/score",
            {"model": "m", "text_1": ["q" * 8] * 2, "text_2": ["d" * 16] * 2},
            "score",
            12,
            id="score of pairs",
        ),
        pytest.param(
            "/v2/rerank",
            {"model": "m", "query": "q" * 8, "documents": [{"text": "d"}]},
            "rerank",
            4,  # 8 of the query and 11 of the object, in bytes
            id="documents as objects",
        ),
    ],
)
def test_pairs_are_counted(path: str, body: object, format: str, tokens: int) -> None:
    request = parsed(path, body)
    assert (request.format, request.model, request.unread) == (format, "m", "")
    assert request.prompt == b""
    assert request.prompt_tokens == tokens


def test_no_documents_are_routed_unread() -> None:
    assert parsed("/v1/rerank", {"model": "m", "query": "q"}).unread == "no-prompt"
