"""Anthropic's messages API, as vLLM and others serve it.

**Source:** https://docs.anthropic.com/en/api/messages. ``messages/count_tokens`` takes the same
body and generates nothing; its format is "count-tokens".
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Raw

from epp import plugin
from epp.formats import prompt
from epp.formats.prompt import ABSENT, HEAD, Canonical, Content, Message, Unreadable
from epp.formats.reading import Body, Facts, PathParser, Reads, Scalar


class _Messages(Body, gc=False):
    messages: list[Message] | None = None
    system: Content = None
    tools: Raw = ABSENT
    thinking: Raw = ABSENT
    max_tokens: Scalar = None


_body = msgspec.json.Decoder(_Messages).decode


def messages(body: bytes | memoryview) -> Facts:
    """Read a messages request."""
    prompt.check_commas(body)
    asked = _body(body)
    if not asked.messages:
        raise Unreadable("no-prompt")
    if len(asked.messages) > prompt.MAX_PIECES:
        raise Unreadable("too-large")
    canonical = Canonical(b"m")
    canonical.raw(HEAD + b"h", asked.thinking)
    canonical.raw(HEAD + b"t", asked.tools)
    canonical.content(_system(asked.system))
    for message in asked.messages:
        canonical.message(message)
    key = canonical.done()
    return asked.facts(
        asked.max_tokens,
        prompt=key,
        tokens=prompt.count(key),
        media=canonical.media,
    )


def _system(system: Content) -> Content:
    """Leave out the block that one client makes anew for every request and vLLM drops.

    Kept, it would make every request of a session another prompt (vllm-project/vllm#36829).
    """
    if not isinstance(system, list):
        return system
    return [part for part in system if _BILLING not in bytes(part)[:256]]


_BILLING = b'"x-anthropic-billing-header'


class AnthropicParser(PathParser):
    """Reads Anthropic's messages API."""

    type: ClassVar[str] = "anthropic-parser"
    stability: ClassVar[plugin.Stability] = "beta"

    reads: ClassVar[Reads] = {
        "messages": ("messages", messages),
        "messages/count_tokens": ("count-tokens", messages),
    }
