"""vLLM's gRPC engine API: ``Generate`` and ``Embed`` of ``vllm.grpc.engine.VllmEngine``.

The prompt comes as text or as token ids. No field names a model. Where images stand in the prompt
is told by placeholders, and which by hashes; the pixels themselves are not looked at.

**Source:** ``vllm_engine.proto`` of vLLM (``vllm/grpc``), with the multimodal fields of smg's
(``crates/grpc_client/proto``), which is where it is kept today.
"""

from __future__ import annotations

from typing import Any, ClassVar

from xxhash import xxh3_64_intdigest

from epp import plugin
from epp.formats import prompt
from epp.formats.generate import MOST_MEDIA, Features, Place, media_of, with_features
from epp.formats.grpc.frame import GrpcParser
from epp.formats.grpc.messages import classes
from epp.formats.prompt import START, Unreadable
from epp.formats.reading import Facts, Reads
from epp.model import OTHER_MODALITY, Medium

MAX_TOKENIZED_BYTES = 20 * 1024 * 1024  #: as many ids as are read at most, 5 bytes each
MAX_MEDIA_BYTES = 16 * 1024 * 1024  #: 128 MB, were it all empty fields

_MESSAGES = classes(
    "vllm.grpc.engine",
    {
        "TokenizedInput": {"input_ids": (2, "repeated uint32")},
        "SamplingParams": {"max_tokens": (8, "uint32")},
        "PlaceholderRange": {"offset": (1, "uint32"), "length": (2, "uint32")},
        # Messages as bytes: what could take much memory and time is measured or counted first.
        "MultimodalInputs": {
            "mm_placeholders": (5, "repeated bytes"),
            "mm_hashes": (6, "repeated bytes"),
        },
        "GenerateRequest": {
            "tokenized": (2, "bytes"),
            "text": (3, "string"),
            "sampling_params": (4, "SamplingParams"),
            "stream": (5, "bool"),
            "mm_inputs": (7, "bytes"),
        },
        "EmbedRequest": {"tokenized": (2, "bytes")},
    },
)


def generate(message: bytes | memoryview) -> Facts:
    """Read a generate request."""
    asked = _MESSAGES["GenerateRequest"].FromString(bytes(message))
    key, tokens = _prompt(asked)
    media: tuple[Medium, ...] = ()
    if asked.mm_inputs:
        key, media = _with_media(key, asked.mm_inputs)
    return Facts(
        "",
        key,
        tokens,
        streaming=asked.stream,
        media=media,
        max_output_tokens=asked.sampling_params.max_tokens or None,
    )


def _prompt(asked: Any) -> tuple[bytes, int]:
    """Return the canonical prompt, the same as of a completion's, and its tokens."""
    if asked.tokenized:
        return _packed(asked.tokenized)
    if not asked.text:
        raise Unreadable("no-prompt")
    key = START + b"p" + asked.text.encode()
    return key, prompt.count(key)


def _packed(tokenized: bytes) -> tuple[bytes, int]:
    if len(tokenized) > MAX_TOKENIZED_BYTES:
        raise Unreadable("too-large")
    ids = _MESSAGES["TokenizedInput"].FromString(tokenized).input_ids
    if not ids:
        raise Unreadable("no-prompt")
    if len(ids) > prompt.MAX_LISTED_COMMAS:
        raise Unreadable("too-large")
    return prompt.pack(list(ids)), len(ids)


def _with_media(key: bytes, written: bytes) -> tuple[bytes, tuple[Medium, ...]]:
    """Put each image's hash where its tokens stand; before all, if that is not told."""
    features = _features(written) if len(written) <= MAX_MEDIA_BYTES else None
    if features is not None and not key.startswith(START):
        return with_features(key, features), media_of(features)
    whole = xxh3_64_intdigest(written)
    media = (Medium(OTHER_MODALITY, whole),) if features is None else media_of(features)
    return whole.to_bytes(8, "big") + key, media


def _features(written: bytes) -> Features | None:
    """Return hashes and places; None if they are not one for one, or too many."""
    inputs = _MESSAGES["MultimodalInputs"].FromString(written)
    hashes, places = inputs.mm_hashes, inputs.mm_placeholders
    if not 0 < len(hashes) == len(places) <= MOST_MEDIA:
        return None
    found = [_MESSAGES["PlaceholderRange"].FromString(place) for place in places]
    return Features(
        {"image": [mm_hash.decode(errors="replace") for mm_hash in hashes]},
        {"image": [Place(place.offset, place.length) for place in found]},
    )


def embed(message: bytes | memoryview) -> Facts:
    """Read an embedding request, which has token ids only."""
    asked = _MESSAGES["EmbedRequest"].FromString(bytes(message))
    return Facts("", *_packed(asked.tokenized))


class VllmGrpcParser(GrpcParser):
    """Reads vLLM's gRPC engine API. Its requests name no model, so none is rewritten.

    Compressed messages are routed by load, unread.
    """

    type: ClassVar[str] = "vllmgrpc-parser"
    stability: ClassVar[plugin.Stability] = "beta"

    reads: ClassVar[Reads] = {
        "vllm.grpc.engine.VllmEngine/Generate": ("vllm-grpc", generate),
        "vllm.grpc.engine.VllmEngine/Embed": ("vllm-grpc-embed", embed),
    }
