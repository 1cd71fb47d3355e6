"""How streams begin; the bytes are those of vLLM 0.32 servers, shortened."""

from __future__ import annotations

import pytest

from epp.sidecar.legs.beginning import MOST_BYTES, Beginning, begins

ERROR = b'data: {"error": {"message": "Internal server error", "code": 500}}\n\n'
ROLE = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)
TOKEN = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":" a"},"logprobs":null}]}\n\n'
MESSAGE = b'event: message_start\ndata: {"type":"message_start"}\n\n'
CREATED = b'event: response.created\ndata: {"type":"response.created"}\n\n'
PROGRESS = b'event: response.in_progress\ndata: {"type":"response.in_progress"}\n\n'


@pytest.mark.parametrize(
    ("stream", "beginning"),
    [
        pytest.param(b"", Beginning.OPEN, id="nothing"),
        pytest.param(TOKEN[:-1], Beginning.OPEN, id="half an event"),
        pytest.param(TOKEN, Beginning.GOOD, id="a token"),
        pytest.param(ERROR, Beginning.FAILED, id="completions that failed"),
        pytest.param(ROLE, Beginning.OPEN, id="a role"),
        pytest.param(ROLE + ERROR, Beginning.FAILED, id="chat that failed"),
        pytest.param(ROLE + TOKEN, Beginning.GOOD, id="chat"),
        pytest.param(ROLE + TOKEN + ERROR, Beginning.GOOD, id="chat that failed later"),
        pytest.param(MESSAGE + b"event: error\ndata: {}\n\n", Beginning.FAILED, id="messages that failed"),
        pytest.param(MESSAGE + b"event: content_block_start\ndata: {}\n\n", Beginning.GOOD, id="messages"),
        pytest.param(CREATED + PROGRESS, Beginning.OPEN, id="responses before a token"),
        pytest.param(CREATED + b"event: response.output_item.added\n\n", Beginning.GOOD, id="responses"),
        pytest.param(b": keep-alive\n\n", Beginning.OPEN, id="a comment"),
        pytest.param(b": " + b"x" * MOST_BYTES, Beginning.GOOD, id="more than is held back"),
    ],
)  # fmt: skip
def test_a_stream_is_judged_by_what_follows_its_opening(
    stream: bytes, beginning: Beginning
) -> None:
    assert begins(stream) is beginning
