r"""Token counts at the end of an answer, streamed or not, of any API.

Nothing is decoded while an answer passes: `Tail` keeps its first and last bytes and looks at them
once, when it has ended. The counts are the value of the last ``"usage"`` that is an object. Inside
a JSON string that name would be written ``\"usage\"``, so no text of a model is mistaken for it.
An answer that has no such value in what was kept, say a compressed one, has no usage: never an error.

Budget: 0.2 us per piece.

**Source:** vLLM 0.32's answers (``usage`` of completions, chat, responses, messages, generate),
SGLang's ``meta_info``; Anthropic's streams tell the prompt in ``message_start``, which comes first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from epp.model import Usage

HEAD_BYTES = 4 * 1024
TAIL_BYTES = 16 * 1024
MOST = 2**53  #: counts from here on are nobody's; sums of them would be no numbers
LOOK_AT = 8  #: last usages that are read; some engines put one on every event

_KEY = re.compile(r'"(?:usage|meta_info)"\s*:\s*(?=\{)')
_decoder = json.JSONDecoder()


class Tail:
    """The first and last bytes of one answer.

    Args:
        tail_bytes: how much of the end is kept; what is held may be twice that.
        head_bytes: how much of the start is kept.
    """

    __slots__ = ("_head", "_head_bytes", "_kept", "_tail_bytes")

    def __init__(self, tail_bytes: int = TAIL_BYTES, head_bytes: int = HEAD_BYTES) -> None:
        self._tail_bytes = tail_bytes
        self._head_bytes = head_bytes
        self._head = b""  #: empty as long as everything is in `_kept`
        self._kept = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the next piece of the answer's body."""
        kept = self._kept
        kept += data
        if len(kept) > 2 * self._tail_bytes:
            if not self._head:
                self._head = bytes(kept[: self._head_bytes])
            del kept[: -self._tail_bytes]

    def usage(self) -> Usage | None:
        """Return the counts, or None if the answer told none."""
        found = Usage()
        for counts in self._last_first():
            found = _merged(found, counts)
        return None if found == Usage() else found

    def _last_first(self) -> Iterator[dict[str, Any]]:
        for part in (self._kept, self._head):
            text = part.decode("utf-8", "replace")
            for match in list(_KEY.finditer(text))[: -LOOK_AT - 1 : -1]:
                try:
                    value, _ = _decoder.raw_decode(text, match.end())
                except (ValueError, RecursionError):  # cut off where the head ends
                    continue
                yield value


def _merged(late: Usage, counts: dict[str, Any]) -> Usage:
    """Fill in what a later usage did not tell."""
    details = counts.get("prompt_tokens_details") or counts.get("input_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else None
    if cached is None:
        cached = _count(counts, "cached_tokens", "cache_read_input_tokens")
    return Usage(
        _either(late.prompt_tokens, _count(counts, "prompt_tokens", "input_tokens")),
        _either(late.completion_tokens, _count(counts, "completion_tokens", "output_tokens")),
        _either(late.cached_tokens, cached),
    )


def _either(late: int | None, early: int | None) -> int | None:
    return early if late is None else late


def _count(counts: dict[str, Any], *names: str) -> int | None:
    """Return the first of these counts that is one; JSON may write 7 as 7.0."""
    for name in names:
        value = counts.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST:
            return value
    return None
