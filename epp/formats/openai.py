"""OpenAI's APIs: completions, chat completions, responses, conversations, embeddings, images.

**Source:** https://platform.openai.com/docs/api-reference, and what vLLM's server adds to it:
token-id prompts, ``cache_salt``, ``chat_template_kwargs``, ``documents``, and the ``render``
paths, which take the same bodies and only tokenise them.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Raw

from epp import plugin
from epp.formats import prompt
from epp.formats.prompt import ABSENT, HEAD, Canonical, Message, Unreadable
from epp.formats.reading import Body, Facts, PathParser, Reads, Scalar, whole


class _Completions(Body, gc=False):
    prompt: Raw = ABSENT
    max_tokens: Scalar = None


class _Chat(Body, gc=False):
    messages: list[Message] | None = None
    tools: Raw = ABSENT
    functions: Raw = ABSENT
    documents: Raw = ABSENT
    chat_template: Raw = ABSENT
    chat_template_kwargs: Raw = ABSENT
    reasoning_effort: Raw = ABSENT
    max_tokens: Scalar = None
    max_completion_tokens: Scalar = None


class _Responses(Body, gc=False):
    input: str | list[Raw] | None = None
    items: list[Raw] | None = None
    instructions: Raw = ABSENT
    tools: Raw = ABSENT
    previous_response_id: Raw = ABSENT
    conversation: Raw = ABSENT
    reasoning: Raw = ABSENT
    max_output_tokens: Scalar = None


class _Item(msgspec.Struct, gc=False):
    type: str | None = None
    role: Raw = ABSENT
    content: str | list[Raw] | None = None


class _Embeddings(Body, gc=False):
    input: Raw = ABSENT
    messages: Raw = ABSENT


_completions_body = msgspec.json.Decoder(_Completions).decode
_chat_body = msgspec.json.Decoder(_Chat).decode
_responses_body = msgspec.json.Decoder(_Responses).decode
_item = msgspec.json.Decoder(_Item).decode
_embeddings_body = msgspec.json.Decoder(_Embeddings).decode


def completions(body: bytes | memoryview) -> Facts:
    """Read a completion request; image generation has the same field."""
    asked = _completions_body(body)
    key, tokens = prompt.first_of(b"p", asked.prompt)
    return asked.facts(asked.max_tokens, prompt=key, tokens=tokens)


def chat(body: bytes | memoryview) -> Facts:
    """Read a chat completion request."""
    prompt.check_commas(body)
    asked = _chat_body(body)
    if not asked.messages:
        raise Unreadable("no-prompt")
    if len(asked.messages) > prompt.MAX_PIECES:
        raise Unreadable("too-large")
    canonical = Canonical(b"c")
    # In the template's order: what is rendered first must differ first.
    canonical.raw(HEAD + b"m", asked.chat_template)
    canonical.raw(HEAD + b"k", asked.chat_template_kwargs)
    canonical.raw(HEAD + b"e", asked.reasoning_effort)
    canonical.raw(HEAD + b"t", asked.tools)
    canonical.raw(HEAD + b"f", asked.functions)
    canonical.raw(HEAD + b"d", asked.documents)
    for message in asked.messages:
        canonical.message(message)
    key = canonical.done()
    limit = whole(asked.max_completion_tokens, asked.max_tokens)
    return asked.facts(limit, prompt=key, tokens=prompt.count(key), media=canonical.media)


def responses(body: bytes | memoryview) -> Facts:
    """Read a request of the responses API, or a conversation's items."""
    prompt.check_commas(body)
    asked = _responses_body(body)
    items = asked.items if asked.input is None else asked.input
    if not items:
        raise Unreadable("no-prompt")
    if len(items) > prompt.MAX_PIECES and not isinstance(items, str):
        raise Unreadable("too-large")
    canonical = Canonical(b"r")
    canonical.raw(HEAD + b"p", asked.previous_response_id)
    canonical.raw(HEAD + b"v", asked.conversation)
    canonical.raw(HEAD + b"e", asked.reasoning)
    canonical.raw(HEAD + b"i", asked.instructions)
    canonical.raw(HEAD + b"t", asked.tools)
    if isinstance(items, str):
        canonical.message(Message(role=_USER, content=items))
    else:
        for item in items:
            _add_item(canonical, item)
    key = canonical.done()
    return asked.facts(
        asked.max_output_tokens,
        prompt=key,
        tokens=prompt.count(key),
        media=canonical.media,
    )


_USER = Raw(b'"user"')


def _add_item(canonical: Canonical, raw: Raw) -> None:
    """Append one input item: a message, or a call or result as written."""
    item = _item(raw) if b'"content"' in bytes(raw) else None
    if item is not None and item.type in {None, "message"} and item.content is not None:
        canonical.message(Message(role=item.role, content=item.content))
    else:
        canonical.raw(prompt.OTHER, raw)


def embeddings(body: bytes | memoryview) -> Facts:
    """Read an embedding request; vLLM also takes a conversation."""
    asked = _embeddings_body(body)
    if prompt.given(asked.messages) and not prompt.given(asked.input):
        return chat(body)
    key, tokens = prompt.first_of(b"e", asked.input)
    return asked.facts(None, prompt=key, tokens=tokens)


class OpenAIParser(PathParser):
    """Reads OpenAI's APIs: completions, chat, responses, embeddings, images and more."""

    type: ClassVar[str] = "openai-parser"
    stability: ClassVar[plugin.Stability] = "beta"

    reads: ClassVar[Reads] = {
        "completions": ("completions", completions),
        "chat/completions": ("chat", chat),
        "embeddings": ("embeddings", embeddings),
        "responses": ("responses", responses),
        "conversations": ("conversations", responses),
        "completions/render": ("completions-render", completions),
        "chat/completions/render": ("chat-render", chat),
        "images/generations": ("images", completions),
    }
