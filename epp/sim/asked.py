"""What a client asks a model server, read from the body of any of its APIs; pure.

Refuses what vLLM refuses, with the same status, ``type`` and ``param``; fields it does not know are
ignored, as there.

**Source:** bodies and answers captured from a vLLM 0.32 server; OpenAI's and Anthropic's API
references.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from epp.sim import tokenizer
from epp.sim.cache import Ids

COMPLETION_TOKENS = 16  #: OpenAI's default ``max_tokens`` of a completion
NATURAL_TOKENS = (32, 256)  #: an answer without a limit ends by itself within this range
IMAGE_TOKENS = 64  #: a picture or a piece of audio counts as so many tokens
MAX_CHOICES = 128


class Refused(Exception):
    """The request is answered with an error."""

    def __init__(
        self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """The error as JSON."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status,
        }
        return msgspec.json.encode({"error": error})


class Asked(msgspec.Struct, frozen=True):
    """An inference request, understood."""

    api: str  #: "completions", "chat", "messages", "responses", "generate" or "embeddings"
    model: str
    prompts: tuple[Ids, ...]  #: never empty
    n: int = 1  #: answers per prompt
    max_tokens: int | None = None  #: None ends by itself
    ignore_eos: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    salt: str = ""  #: ``cache_salt``
    seed: int = 0
    request_id: str = ""  #: from the body
    kv_transfer_params: Any = None  #: as given; `epp.sim.transfer.params` understands them


def _invalid(kind: str, loc: str, message: str, value: str) -> Refused:
    detail = f"{{'type': {kind!r}, 'loc': {loc!r}, 'msg': {message!r}, 'input': {value!r}}}"
    return Refused(400, f"1 validation error:\n  {detail}", kind="Bad Request", param=loc)


def missing(field: str, body: dict[str, Any]) -> Refused:
    """Return the error for a field that must be there."""
    return _invalid("missing", f"body.{field}", "Field required", f"<dict of {len(body)} items>")


def read_json(content_type: str, body: bytes) -> dict[str, Any]:
    """Decode a body.

    Raises:
        Refused: it is not a JSON object.
    """
    if not body:
        raise _invalid("missing", "body", "Field required", "None")
    if content_type and not content_type.startswith("application/json"):
        message = (
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        )
        raise Refused(400, message, kind="Bad Request")
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(body) from error
    if not isinstance(value, dict):
        raise _invalid("dict_type", "body", "Input should be a valid dictionary", "<not an object>")
    return value


def _malformed(body: bytes) -> Refused:
    place, why = 0, "Expecting value"
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        place, why = error.pos, error.msg
    except (UnicodeDecodeError, RecursionError):
        why = "Invalid bytes or nesting"
    loc = f"body.{place}"
    detail = (
        f"{{'type': 'json_invalid', 'loc': {loc!r}, 'msg': 'JSON decode error', "
        f"'input': '<dict of 0 items>', 'ctx': {{'error': {why!r}}}}}"
    )
    return Refused(400, f"1 validation error:\n  {detail}", kind="Bad Request", param=loc)


def _int(body: dict[str, Any], field: str, default: int | None = None) -> int | None:
    value = body.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        shown = repr(value)[:32] if isinstance(value, str | float | bool) else type(value).__name__
        raise _invalid("int_parsing", f"body.{field}", "Input should be a valid integer", shown)
    return value


def _limit(body: dict[str, Any], *fields: str, default: int | None = None) -> int | None:
    for field in fields:
        value = _int(body, field)
        if value is not None:
            if value < 1:
                message = f"{field} must be at least 1, got {value}."
                raise Refused(400, message, param=field)
            return value
    return default


def read(api: str, body: dict[str, Any]) -> Asked:
    """Understand the body of an inference request.

    Raises:
        Refused: a field is missing or of the wrong kind.
    """
    sampling = body.get("sampling_params") if api == "generate" else body
    if not isinstance(sampling, dict):
        sampling = {}
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    choices = _int(sampling, "n", 1) or 1
    if not 1 <= choices <= MAX_CHOICES:
        raise Refused(400, f"n must be within 1..{MAX_CHOICES}, got {choices}.", param="n")
    salt = body.get("cache_salt")
    return Asked(
        api,
        str(body.get("model") or ""),
        prompts=_prompts(api, body),
        n=choices if api in ("completions", "chat", "generate") else 1,
        max_tokens=_max_tokens(api, sampling),
        ignore_eos=bool(sampling.get("ignore_eos")),
        stream=bool(body.get("stream")) and api != "embeddings",
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        return_token_ids=bool(body.get("return_token_ids")),
        salt=salt if isinstance(salt, str) else "",
        seed=_int(sampling, "seed", 0) or 0,
        request_id=str(body.get("request_id") or ""),
        kv_transfer_params=body.get("kv_transfer_params"),
    )


def _max_tokens(api: str, body: dict[str, Any]) -> int | None:
    match api:
        case "chat":
            return _limit(body, "max_completion_tokens", "max_tokens")
        case "responses":
            return _limit(body, "max_output_tokens")
        case "embeddings":
            return 0
        case "messages" | "generate":
            return _limit(body, "max_tokens")
        case _:
            return _limit(body, "max_tokens", default=COMPLETION_TOKENS)


def _prompts(api: str, body: dict[str, Any]) -> tuple[Ids, ...]:
    match api:
        case "chat" | "messages":
            return (chat(body),)
        case "responses":
            return (responses(body),)
        case "generate":
            return texts("token_ids", body)
        case "embeddings":
            return (chat(body),) if "messages" in body else texts("input", body)
        case _:
            return texts("prompt", body)


def texts(field: str, body: dict[str, Any]) -> tuple[Ids, ...]:
    """Read a string, a list of strings, a list of token ids, or a list of such lists."""
    value = body.get(field)
    if value is None:
        raise missing(field, body)
    if isinstance(value, str):
        return (_text(value, field),)
    if isinstance(value, list) and value:
        if isinstance(value[0], int):
            return (_ids(value, field),)
        return tuple(
            _text(item, field) if isinstance(item, str) else _ids(item, field) for item in value
        )
    raise Refused(400, f"{field} must be a string or list, and not empty.", param=field)


def _text(value: str, field: str) -> Ids:
    if not value:
        raise Refused(400, f"{field} must not be empty.", param=field)
    return tokenizer.encode(value.encode(errors="replace"))


def _ids(value: Any, field: str) -> Ids:
    if not isinstance(value, list) or not value:
        raise Refused(400, f"{field} must hold strings or lists of token ids.", param=field)
    try:
        return np.array(value, dtype=np.int64).astype(np.uint32)
    except (ValueError, TypeError, OverflowError) as error:
        raise Refused(400, f"{field} holds something that is no token id.", param=field) from error


def chat(body: dict[str, Any], *, generation: bool = True) -> Ids:
    """Render ``messages`` (and ``system``, ``tools``) to token ids."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise missing("messages", body)
    parts: list[bytes] = []
    if body.get("tools"):
        parts += (b"<|tools|>", msgspec.json.encode(body["tools"]), b"<|end|>")
    if body.get("system") is not None:
        parts += (b"<|system|>", *_content(body["system"]), b"<|end|>")
    for message in messages:
        if not isinstance(message, dict):
            raise Refused(400, "messages must hold objects.", param="messages")
        role = str(message.get("role") or "user")
        parts += (f"<|{role}|>".encode(), *_content(message.get("content")))
        if message.get("tool_calls"):
            parts.append(msgspec.json.encode(message["tool_calls"]))
        parts.append(b"<|end|>")
    if generation:
        parts.append(b"<|assistant|>")
    return tokenizer.encode_parts(parts)


def responses(body: dict[str, Any]) -> Ids:
    """Render ``input`` and ``instructions`` of the responses API to token ids."""
    given = body.get("input")
    if given is None:
        raise missing("input", body)
    messages = given if isinstance(given, list) else [{"role": "user", "content": given}]
    messages = [m if isinstance(m, dict) else {"role": "user", "content": str(m)} for m in messages]
    system = body.get("instructions")
    return chat({"messages": messages, "system": system, "tools": body.get("tools")})


def _content(content: Any) -> Sequence[bytes]:
    """Render a message's content: text, a list of parts, or nothing."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (content.encode(errors="replace"),)
    if not isinstance(content, list):
        return (msgspec.json.encode(content),)
    return [_part(part) for part in content]


def _part(part: Any) -> bytes:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"]).encode(errors="replace")
    if isinstance(part, str):
        return part.encode(errors="replace")
    seen = np.frombuffer(tokenizer.padded(msgspec.json.encode(part)), dtype="<u4")
    return tokenizer.answer(seen, IMAGE_TOKENS).astype("<u4").tobytes()
