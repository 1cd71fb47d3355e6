"""Answers of the APIs beside OpenAI's two: tokens, Anthropic messages, responses, embeddings; pure.

Minimal: enough for a router to be tested with. Streams of messages and responses have the events a
client waits for, each with the fields captured from the whole answers.

**Source:** answers captured from a vLLM 0.32 server; event names from Anthropic's and OpenAI's API
references.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from epp.sim import tokenizer
from epp.sim.asked import Asked
from epp.sim.cache import Ids
from epp.sim.openai import (
    DONE,
    LIMITED,
    Answer,
    Chat,
    Choice,
    Completion,
    Spent,
    encode,
    failed_stream,
)

EMBEDDING_SIZE = 64


def _named(kind: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), encode({"type": kind, **fields}))


class Generate:
    """``/inference/v1/generate``: token ids in, token ids out."""

    def __init__(self, answer_id: str, created: int, asked: Asked) -> None:
        self.id = answer_id
        self.created = created
        self.asked = asked

    def opening(self, spent: Spent) -> bytes:
        return b""

    def _chunk(self, index: int, piece: bytes, reason: str | None, made: int) -> bytes:
        versions = None if reason is None else [{"version": "default", "start": 0, "end": made}]
        ids = tokenizer.encode(piece).tolist()
        choice = _generated(index, ids, reason, versions)
        head = {"request_id": self.id, "usage": None, "output_mode": "tokens"}
        return b"data: " + encode({**head, "choices": [choice]}) + b"\n\n"

    def token(self, index: int, piece: bytes, spent: Spent | None) -> bytes:
        return self._chunk(index, piece, None, 0)

    def last(self, index: int, piece: bytes, reason: str, spent: Spent) -> bytes:
        return self._chunk(index, piece, reason, spent.output)

    def broken(self, error: bytes, spent: Spent) -> bytes:
        return failed_stream(error)

    def closing(self, spent: Spent) -> bytes:
        return DONE

    def whole(self, choices: Sequence[Choice], spent: Spent) -> bytes:
        nothing = (
            *("prompt_logprobs", "prompt_token_id_logprobs", "prompt_token_ids"),
            *("mm_placeholders", "metrics", "kv_transfer_params", "ec_transfer_params"),
        )
        return encode(
            {
                "request_id": self.id,
                "model": self.asked.model,
                "created": self.created,
                "usage": spent.usage(),
                **dict.fromkeys(nothing),
                "kv_transfer_params": choices[0].transfer,
                "output_mode": "tokens",
                "choices": [
                    _generated(
                        choice.index,
                        choice.ids.tolist(),
                        choice.reason,
                        [{"version": "default", "start": 0, "end": len(choice.ids)}],
                    )
                    for choice in choices
                ],
            }
        )


def _generated(index: int, ids: list[int], reason: str | None, versions: Any) -> dict[str, Any]:
    return {
        "index": index,
        "finish_reason": reason,
        "stop_reason": None,
        "token_ids": ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": versions,
        "logprobs": None,
    }


class Messages:
    """``/v1/messages``."""

    def __init__(self, answer_id: str, created: int, asked: Asked) -> None:
        self.id = answer_id
        self.asked = asked
        self._reason = "end_turn"

    def _usage(self, spent: Spent) -> dict[str, Any]:
        cached = spent.cached or 0
        return {
            "input_tokens": spent.prompt - cached,
            "output_tokens": spent.output,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
        }

    def _message(self, content: list[Any], reason: str | None, spent: Spent) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.asked.model,
            "stop_reason": reason,
            "usage": self._usage(spent),
        }

    def broken(self, error: bytes, spent: Spent) -> bytes:
        told = {"type": "internal_error", "message": "Internal server error"}
        start = _named("message_start", message=self._message([], None, spent))
        return start + _named("error", error=told)

    def opening(self, spent: Spent) -> bytes:
        block = {"type": "text", "text": ""}
        start = _named("message_start", message=self._message([], None, spent))
        return start + _named("content_block_start", index=0, content_block=block)

    def token(self, index: int, piece: bytes, spent: Spent | None) -> bytes:
        delta = {"type": "text_delta", "text": piece.decode()}
        return _named("content_block_delta", index=0, delta=delta)

    def last(self, index: int, piece: bytes, reason: str, spent: Spent) -> bytes:
        self._reason = LIMITED[reason]
        return self.token(index, piece, None) if piece else b""

    def closing(self, spent: Spent) -> bytes:
        delta = {"stop_reason": self._reason, "stop_sequence": None}
        return (
            _named("content_block_stop", index=0)
            + _named("message_delta", delta=delta, usage=self._usage(spent))
            + _named("message_stop")
        )

    def whole(self, choices: Sequence[Choice], spent: Spent) -> bytes:
        content = [{"type": "text", "text": choice.text} for choice in choices]
        message = self._message(content, LIMITED[choices[0].reason], spent)
        if choices[0].transfer is not None:
            message["kv_transfer_params"] = choices[0].transfer
        return encode(message)


class Responses:
    """``/v1/responses``."""

    def __init__(self, answer_id: str, created: int, asked: Asked) -> None:
        self.id = answer_id
        self.created = created
        self.asked = asked
        self._item = "msg_" + answer_id.removeprefix("resp_")
        self._pieces: list[bytes] = []
        self._reason = "stop"

    def _response(self, status: str, output: list[Any], spent: Spent | None) -> dict[str, Any]:
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": why,
            "instructions": None,
            "metadata": None,
            "model": self.asked.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self.asked.max_tokens,
            **dict.fromkeys(("max_tool_calls", "previous_response_id", "prompt", "reasoning")),
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": None if spent is None else self._usage(spent),
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            **dict.fromkeys(("kv_transfer_params", "ec_transfer_params")),
            **dict.fromkeys(("input_messages", "output_messages")),
        }

    def _usage(self, spent: Spent) -> dict[str, Any]:
        return {
            "input_tokens": spent.prompt,
            "input_tokens_details": {
                "cached_tokens": spent.cached or 0,
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": spent.output,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": spent.prompt + spent.output,
        }

    def _output(self, text: str) -> list[Any]:
        part: dict[str, Any] = {
            "annotations": [],
            "text": text,
            "type": "output_text",
            "logprobs": None,
        }
        item = {"id": self._item, "content": [part], "role": "assistant"}
        return [{**item, "status": "completed", "type": "message", "phase": None}]

    def opening(self, spent: Spent) -> bytes:
        return _named("response.created", response=self._response("in_progress", [], None))

    def broken(self, error: bytes, spent: Spent) -> bytes:
        """As in vLLM, the stream just ends."""
        return self.opening(spent)

    def token(self, index: int, piece: bytes, spent: Spent | None) -> bytes:
        self._pieces.append(piece)
        place = {"item_id": self._item, "output_index": 0, "content_index": 0}
        return _named("response.output_text.delta", **place, delta=piece.decode())

    def last(self, index: int, piece: bytes, reason: str, spent: Spent) -> bytes:
        self._reason = reason
        return self.token(index, piece, None) if piece else b""

    def closing(self, spent: Spent) -> bytes:
        output = self._output(b"".join(self._pieces).decode())
        status = "incomplete" if self._reason == "length" else "completed"
        return _named(f"response.{status}", response=self._response(status, output, spent))

    def whole(self, choices: Sequence[Choice], spent: Spent) -> bytes:
        status = "incomplete" if choices[0].reason == "length" else "completed"
        response = self._response(status, self._output(choices[0].text), spent)
        return encode({**response, "kv_transfer_params": choices[0].transfer})


class Embeddings(Completion):
    """``/v1/embeddings``; never streamed."""

    def whole(self, choices: Sequence[Choice], spent: Spent) -> bytes:
        prompts = enumerate(self.asked.prompts)
        data = [
            {"index": i, "object": "embedding", "embedding": _vector(ids)} for i, ids in prompts
        ]
        head = {"id": self.id, "object": "list", "created": self.created}
        return encode({**head, "model": self.asked.model, "data": data, "usage": spent.usage()})


def _vector(ids: Ids) -> list[float]:
    """Return a made-up unit vector, the same for the same prompt."""
    raw = tokenizer.answer(ids, EMBEDDING_SIZE).astype(float) % 2001.0 - 1000.0
    length = math.sqrt(float((raw * raw).sum())) or 1.0
    return (raw / length).tolist()  # type: ignore[no-any-return]


SHAPES: Mapping[str, tuple[str, Callable[[str, int, Asked], Answer]]] = {
    "completions": ("cmpl-", Completion),
    "chat": ("chatcmpl-", Chat),
    "generate": ("generate-tokens-", Generate),
    "messages": ("chatcmpl-", Messages),
    "responses": ("resp_", Responses),
    "embeddings": ("embd-", Embeddings),
}
