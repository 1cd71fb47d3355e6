"""The answers of a model server as bytes, whole or as event streams; pure.

Hot path: one stream chunk per token. All that is equal in the chunks of a stream is encoded once;
a chunk is a join of bytes.

**Source:** answers captured from a vLLM 0.32 server (keys, order and framing are the same).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from epp.sim import tokenizer
from epp.sim.asked import Asked
from epp.sim.cache import Ids

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "epp-engine"
LIMITED = {"length": "max_tokens", "stop": "end_turn", "abort": "end_turn"}

encode = msgspec.json.encode


class Choice(msgspec.Struct, frozen=True):
    """One finished answer."""

    index: int
    ids: Ids
    reason: str  #: "stop", "length" or "abort"
    transfer: Mapping[str, Any] | None = None  #: ``kv_transfer_params`` of its request's answer

    @property
    def text(self) -> str:
        return tokenizer.decode(self.ids)


class Spent(msgspec.Struct, frozen=True):
    """Token counts of a request, all its prompts and choices together."""

    prompt: int
    output: int
    cached: int | None  #: None is not told
    created: int | None = None  #: prompt tokens in full blocks that are new in the cache

    def usage(self) -> dict[str, Any]:
        """As in whole answers."""
        details = None
        if self.cached is not None:
            details = {
                "cached_tokens": self.cached,
                "created_cache_tokens": self.created,
                "multimodal_tokens": None,
            }
        counts = self._counts()
        return {**counts, "prompt_tokens_details": details, "completion_tokens_details": None}

    def stream_usage(self) -> dict[str, Any]:
        """As at the end of a stream, where nulls are left out."""
        if self.cached is None:
            return self._counts()
        details = {"cached_tokens": self.cached}
        if self.created is not None:
            details["created_cache_tokens"] = self.created
        return {**self._counts(), "prompt_tokens_details": details}

    def chunk_usage(self) -> dict[str, Any]:
        """As on every chunk, with ``continuous_usage_stats``."""
        return {**self._counts(), "completion_tokens_details": None}

    def _counts(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.output,
            "completion_tokens": self.output,
        }


class Answer(Protocol):
    """How one API says what came out."""

    def opening(self, spent: Spent) -> bytes:
        """Return what a stream starts with."""
        ...

    def token(self, index: int, piece: bytes, spent: Spent | None) -> bytes:
        """Return the chunk of one token; ``piece`` needs no JSON escape; usage if given."""
        ...

    def last(self, index: int, piece: bytes, reason: str, spent: Spent) -> bytes:
        """Return the chunk of a choice's last token; ``piece`` is empty after an abort."""
        ...

    def closing(self, spent: Spent) -> bytes:
        """Return what a stream ends with."""
        ...

    def broken(self, error: bytes, spent: Spent) -> bytes:
        """Return the stream of a request that failed before its first token."""
        ...

    def whole(self, choices: Sequence[Choice], spent: Spent) -> bytes:
        """Return the answer that is not streamed."""
        ...


def _event(value: Any) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


class _Chunks:
    """What the two OpenAI streams have in common."""

    object: str
    before: bytes
    between: bytes
    after: bytes

    def __init__(self, answer_id: str, created: int, asked: Asked) -> None:
        self.id = answer_id
        self.created = created
        self.asked = asked
        self._head = {"id": answer_id, "object": self.object, "created": created}
        self._head["model"] = asked.model
        self._start = b"data: " + encode(self._head)[:-1] + b',"choices":[{"index":'

    def token(self, index: int, piece: bytes, spent: Spent | None) -> bytes:
        usage = b"" if spent is None else b',"usage":' + encode(spent.chunk_usage())
        head = (self._start, b"%d" % index, self.before, piece, self.between)
        return b"".join((*head, b"null", self.after, usage, b"}\n\n"))

    def last(self, index: int, piece: bytes, reason: str, spent: Spent) -> bytes:
        tail = b'"%s","stop_reason":null' % reason.encode()
        if self.asked.continuous_usage:
            end = b',"usage":' + encode(spent.chunk_usage())
        elif self.asked.include_usage:
            end = b""
        else:
            end = b',"system_fingerprint":"%s"' % FINGERPRINT.encode()
        after = self.after.removeprefix(b',"stop_reason":null')
        head = (self._start, b"%d" % index, self.before, piece, self.between)
        return b"".join((*head, tail, after, end, b"}\n\n"))

    def closing(self, spent: Spent) -> bytes:
        if not self.asked.include_usage:
            return DONE
        end = {"choices": [], "usage": spent.stream_usage(), "system_fingerprint": FINGERPRINT}
        return _event({**self._head, **end}) + DONE


def failed_stream(error: bytes) -> bytes:
    """Return the end of a stream that failed; ``error`` is JSON."""
    return b"data: " + error + b"\n\n" + DONE


class Completion(_Chunks):
    """``/v1/completions``."""

    object = "text_completion"
    before = b',"text":"'
    between = b'","logprobs":null,"finish_reason":'
    after = b',"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'

    def opening(self, spent: Spent) -> bytes:
        return b""

    def broken(self, error: bytes, spent: Spent) -> bytes:
        return failed_stream(error)

    def whole(self, choices: Sequence[Choice], spent: Spent) -> bytes:
        return encode(
            {
                **self._head,
                "choices": [self._choice(choice) for choice in choices],
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": spent.usage(),
                "kv_transfer_params": choices[0].transfer,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def _choice(self, choice: Choice) -> dict[str, Any]:
        ids = self.asked.return_token_ids
        prompt = self.asked.prompts[choice.index // self.asked.n]
        return {
            "index": choice.index,
            "text": choice.text,
            "logprobs": None,
            "finish_reason": choice.reason,
            "stop_reason": None,
            "token_ids": choice.ids.tolist() if ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": prompt.tolist() if ids else None,
            "routed_experts": None,
        }


class Chat(_Chunks):
    """``/v1/chat/completions``."""

    object = "chat.completion.chunk"
    before = b',"delta":{"content":"'
    between = b'"},"logprobs":null,"finish_reason":'
    after = b',"token_ids":null}]'

    def opening(self, spent: Spent) -> bytes:
        usage = b""
        if self.asked.continuous_usage:
            usage = b',"usage":' + encode(spent.chunk_usage())
        role = b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        end = b',"prompt_token_ids":null,"prompt_text":null}\n\n'
        return b"".join(
            self._start + b"%d" % index + role + usage + end for index in range(self.asked.n)
        )

    def broken(self, error: bytes, spent: Spent) -> bytes:
        return self.opening(spent) + failed_stream(error)

    def whole(self, choices: Sequence[Choice], spent: Spent) -> bytes:
        ids = self.asked.return_token_ids
        return encode(
            {
                **self._head,
                "object": "chat.completion",
                "choices": [self._choice(choice) for choice in choices],
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": spent.usage(),
                "prompt_logprobs": None,
                "prompt_token_ids": self.asked.prompts[0].tolist() if ids else None,
                "prompt_text": None,
                "kv_transfer_params": choices[0].transfer,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def _choice(self, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        for field in ("annotations", "audio", "function_call", "reasoning"):
            message[field] = None
        return {
            "index": choice.index,
            "message": message,
            "logprobs": None,
            "finish_reason": choice.reason,
            "stop_reason": None,
            "token_ids": choice.ids.tolist() if self.asked.return_token_ids else None,
            "routed_experts": None,
        }
