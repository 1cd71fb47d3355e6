"""The name of a rewritten model, there and back through a real Envoy."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.support import http1
from tests.support.backend import Seen, wanted
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
BODY = b'{"model":"public","messages":[]}'
REWRITE = {"x-llm-d-model-name-rewrite": "private-with-a-longer-name"}
DOCUMENT = '{"id":1,"object":"chat.completion","model":"private-with-a-longer-name","n":2}'
EVENTS = 'data: {"model":"private-with-a-longer-name","choices":[]}\n\n' * 20


def answered(stack: Stack, **answer: object) -> bytes:
    headers = dict(wanted(**answer)) | REWRITE  # type: ignore[arg-type]
    found = asyncio.run(http1.request(stack.port, "POST", CHAT, headers, BODY))
    assert found.status == 200
    return found.body


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("pieces", [1, 9])
@pytest.mark.parametrize(
    ("text", "kind"), [(DOCUMENT, "application/json"), (EVENTS, "text/event-stream")]
)
def test_the_client_sees_the_name_it_asked_for_where_answers_pass_through_the_picker(
    stack: Stack, text: str, kind: str, pieces: int, *, chunked: bool
) -> None:
    body = answered(
        stack, kind="json", text=text, headers={"content-type": kind}, pieces=pieces,
        chunked=chunked, trailers={"x-end": "1"} if chunked else {},
    )  # fmt: skip
    expected = text.replace("private-with-a-longer-name", "public")
    assert body.decode() == (expected if stack.mode == "stock" else text)


def test_the_engine_is_asked_for_the_other_name(stack: Stack) -> None:
    seen = msgspec.json.decode(answered(stack, kind="seen"), type=Seen)
    assert msgspec.json.decode(seen.body)["model"] == "private-with-a-longer-name"
