"""Bodies taken apart at their outermost object only: every value goes on as the client wrote it.

Costs one look at each byte: 1 ms for a megabyte.

**Source:** the fields that llm-d's sidecar changes in a prefill request, by path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw

from epp.disagg.connectors.base import Unsplittable
from epp.formats.reading import longest_suffix, without_bom

Fields = dict[str, Raw]

GENERATE = "inference/v1/generate"
LIMITS: Mapping[str, tuple[str, ...]] = {
    "chat/completions": ("max_tokens", "max_completion_tokens"),
    "completions": ("max_tokens", "max_completion_tokens"),
    "responses": ("max_output_tokens",),
    "messages": ("max_tokens",),
    GENERATE: (),
}
"""Fields that bound the answer, by the end of the path; `GENERATE` has its own in an inner object.
Requests of other paths are not split."""

_ONE, _NULL, _FALSE, _TRUE = Raw(b"1"), Raw(b"null"), Raw(b"false"), Raw(b"true")
_NOTHING = frozenset({b"", b"null", b"false", b"0", b"1"})
_PROMPTS = frozenset({"prompt", "text", "input_ids"})  #: the latter of SGLang's own requests
_SEVERAL_OF = re.compile(rb'\[\s*["\[{]')  #: how a list of prompts begins, not one of token ids
_ALONE: Mapping[str, str] = {
    "n": "choices",
    "best_of": "choices",
    "use_beam_search": "choices",
    "prompt_embeds": "prompts",
    "echo": "prompt-logprobs",
    "prompt_logprobs": "prompt-logprobs",
    "background": "kept-state",
    "previous_response_id": "kept-state",
    "conversation": "kept-state",
}
"""Fields that only one endpoint can serve, unless they say nothing, and the word for why.

A transferred cache is freed after its first reader, so several choices would read freed blocks;
logprobs of the prompt need it computed where they are told; kept state is on one endpoint."""

_fields = msgspec.json.Decoder(Fields).decode
_list = msgspec.json.Decoder(list[Raw]).decode
_count = msgspec.json.Decoder(float).decode


def fields_of(body: bytes) -> Fields:
    """Return the fields of a request that may be split.

    Raises:
        Unsplittable: it is no JSON object, or asks for what two endpoints cannot do together.
    """
    try:
        fields = _fields(without_bom(body))
    except (msgspec.DecodeError, RecursionError):
        raise Unsplittable("not-an-object") from None
    _refuse_alone(fields)
    if fields.get("sampling_params", _NULL) != _NULL:
        _refuse_alone(_inner(fields["sampling_params"]))
    for name in _PROMPTS & fields.keys():
        if _SEVERAL_OF.match(fields[name]) and len(_list(fields[name])) > 1:
            raise Unsplittable("prompts")
    return fields


def limit(fields: Fields, path: str) -> None:
    """Have ``fields`` ask for one token, in one piece.

    Raises:
        Unsplittable: requests of this path are not split, an inner object is none, or what is
            changed here would be refused where the request is decoded, so that nobody would read
            the cache before its lease is over.
    """
    kind = longest_suffix(path, LIMITS)
    if not kind:
        raise Unsplittable("path")
    if not _valid(fields, LIMITS[kind]) or (kind == "messages" and "max_tokens" not in fields):
        raise Unsplittable("invalid")
    for name in LIMITS[kind]:
        fields[name] = _ONE
    if kind == GENERATE:
        fields["sampling_params"] = _limited(fields.get("sampling_params", Raw(b"{}")))
    _limit_least(fields)
    fields["stream"] = _FALSE
    fields.pop("stream_options", None)


def written(fields: Fields) -> bytes:
    """Return the body that ``fields`` are."""
    return msgspec.json.encode(fields)


def _limited(inner: Raw) -> Raw:
    params = _inner(inner)
    if not _valid(params, ("max_tokens",)):
        raise Unsplittable("invalid")
    params["max_tokens"] = _ONE
    _limit_least(params)
    return Raw(msgspec.json.encode(params))


def _inner(raw: Raw) -> Fields:
    try:
        return _fields(raw)
    except msgspec.DecodeError:
        raise Unsplittable("not-an-object") from None


def _refuse_alone(fields: Fields) -> None:
    for name, why in _ALONE.items():
        # `prompt_logprobs` of 0 or 1 asks for some.
        nothing = _NOTHING if name != "prompt_logprobs" else {b"", b"null"}
        if name in fields and bytes(fields[name]) not in nothing:
            raise Unsplittable(why)


def _valid(fields: Fields, limits: tuple[str, ...]) -> bool:
    """Whether an engine takes what a prefill has others in the place of."""
    most = [_whole(fields[name]) for name in limits if fields.get(name, _NULL) != _NULL]
    least = fields.get("min_tokens", _NULL)
    if least != _NULL:
        fewest = _whole(least)
        if fewest < 0 or any(fewest > each for each in most):
            return False
    stream = fields.get("stream", _NULL)
    options = fields.get("stream_options", _NULL)
    told = stream in (_NULL, _FALSE, _TRUE) and (options == _NULL or stream == _TRUE)
    return told and all(each >= 1 for each in most)


def _whole(number: Raw) -> float:
    """Return a number of tokens; -1.0 if it is none."""
    try:
        count = _count(number)
    except msgspec.DecodeError:
        return -1.0
    return count if count.is_integer() else -1.0


def _limit_least(fields: Fields) -> None:
    """At least one token may be asked for, not more: engines refuse a minimum over the limit."""
    try:
        if "min_tokens" in fields and _count(fields["min_tokens"]) > 1:
            fields["min_tokens"] = _ONE
    except msgspec.DecodeError:
        return
