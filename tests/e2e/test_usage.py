"""Token usage reaches the picker's metrics: from answers it sees, and from Envoy's filters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import http1
from tests.support.backend import body, wanted
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
USAGE = (
    '"usage":{"prompt_tokens":900,"completion_tokens":7,"total_tokens":907,'
    '"prompt_tokens_details":{"cached_tokens":640}}'
)
WHOLE = '{"object":"chat.completion","choices":[],' + USAGE + "}"
CHUNK = 'data: {"object":"chat.completion.chunk","choices":[{"delta":{"content":"ü"}}]}\n\n'
STREAM = CHUNK * 7 + 'data: {"choices":[],' + USAGE + "}\n\ndata: [DONE]\n\n"

READERS: dict[str, dict[str, Any]] = {
    "stock": {"mode": "stock"},
    "lean": {"mode": "lean", "gateway": {"lean_usage": True, "lean_ttft": True}},
}


@pytest.fixture(scope="module", params=sorted(READERS))
def reader(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A gateway that reads usage out of answers."""
    folder = tmp_path_factory.mktemp(f"usage-{request.param}")
    with Stack(folder, **READERS[request.param]) as stack:
        yield stack


def told(stack: Stack) -> dict[str, float]:
    """Tokens so far, over all models."""
    metrics = stack.metrics()
    return {
        kind: sum(
            value
            for name, value in metrics.items()
            if name.startswith(f"llm_d_epp_request_{kind}_tokens_sum")
        )
        for kind in ("input", "output", "cached")
    }


@pytest.mark.parametrize(
    ("text", "kind"),
    [(WHOLE, "application/json"), (STREAM, "text/event-stream; charset=utf-8")],
    ids=["whole", "streamed"],
)
def test_an_answers_usage_is_counted_and_the_answer_untouched(
    reader: Stack, text: str, kind: str
) -> None:
    before = told(reader)
    headers = wanted(text=text, pieces=9, chunked=True, headers={"content-type": kind})
    answer = asyncio.run(
        http1.request(reader.port, "POST", CHAT, headers, b'{"model":"m","messages":[]}')
    )
    assert answer.body.decode() == text
    reader.wait_idle()
    after = told(reader)
    assert {name: after[name] - before[name] for name in after} == {
        "input": 900, "output": 7, "cached": 640,
    }  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 65_537, 400_000])
def test_an_answer_that_is_no_json_is_untouched(reader: Stack, size: int) -> None:
    headers = wanted(
        kind="bytes", size=size, seed=1, pieces=5, chunked=size % 2 == 0,
        headers={"content-type": "text/event-stream"},
    )  # fmt: skip
    answer = asyncio.run(http1.request(reader.port, "POST", CHAT, headers, b"{}"))
    assert (answer.status, answer.body) == (200, body(size, 1))
    reader.wait_idle()
