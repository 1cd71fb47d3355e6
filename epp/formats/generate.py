"""The engines' own token APIs: vLLM's ``/inference/v1/generate`` and SGLang's ``/generate``.

**Source:** vLLM ``vllm/entrypoints/serve/disagg/protocol.py`` (``GenerateRequest``);
SGLang ``python/sglang/srt/managers/io_struct.py`` (``GenerateReqInput``).
"""

from __future__ import annotations

from itertools import islice
from typing import ClassVar

import msgspec
from msgspec import Raw
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from epp import plugin
from epp.formats import prompt
from epp.formats.prompt import ABSENT, Unreadable
from epp.formats.reading import Body, Facts, PathParser, Reads, Scalar, name, whole
from epp.model import MODALITIES, OTHER_MODALITY, Medium

MOST_MEDIA = 4096  #: of one prompt; a list of hashes may be as long as the body


class _Sampling(msgspec.Struct, gc=False):
    max_tokens: Scalar = None
    max_new_tokens: Scalar = None


class Place(msgspec.Struct, gc=False):
    """Where the tokens of one image stand in the prompt."""

    offset: int  #: tokens
    length: int  #: tokens


class Features(msgspec.Struct, gc=False):
    """Images, sounds and videos of a tokenised prompt, by modality."""

    mm_hashes: dict[str, list[str | None] | None] = {}
    mm_placeholders: dict[str, list[Place] | None] = {}


class _Generate(Body, gc=False):
    token_ids: list[int] | None = None
    sampling_params: _Sampling | None = None
    features: Features | None = None


class _SGLang(Body, gc=False):
    text: Raw = ABSENT
    input_ids: Raw = ABSENT
    sampling_params: _Sampling | list[_Sampling] | None = None
    extra_key: str | list[str | None] | None = None
    lora_path: str | list[str | None] | None = None
    image_data: Raw = ABSENT
    video_data: Raw = ABSENT
    audio_data: Raw = ABSENT


_generate_body = msgspec.json.Decoder(_Generate).decode
_sglang_body = msgspec.json.Decoder(_SGLang).decode


def generate(body: bytes | memoryview) -> Facts:
    """Read vLLM's generate request: token ids, and the hashes of what images they stand for."""
    prompt.check_commas(body, prompt.MAX_LISTED_COMMAS)
    asked = _generate_body(body)
    if not asked.token_ids:
        raise Unreadable("no-prompt")
    ids, features = prompt.pack(asked.token_ids), asked.features
    limit = asked.sampling_params.max_tokens if asked.sampling_params else None
    return asked.facts(
        limit,
        prompt=with_features(ids, features) if features else ids,
        tokens=len(asked.token_ids),
        media=media_of(features) if features else (),
    )


def media_of(features: Features) -> tuple[Medium, ...]:
    """Return each image, sound or video, of the first `MOST_MEDIA`.

    A modality that the client made up is `OTHER_MODALITY`: it would become a label of metrics.
    """
    media = (
        Medium(
            modality if modality in MODALITIES else OTHER_MODALITY,
            xxh3_64_intdigest(f"{modality}:{mm_hash}".encode()),
        )
        for modality, listed in features.mm_hashes.items()
        for mm_hash in listed or ()
    )
    return tuple(islice(media, MOST_MEDIA))


def with_features(ids: bytes, features: Features) -> bytes:
    """Put each image's hash where its placeholder tokens stand: those are all alike."""
    packed, left = bytearray(ids), len(ids)
    for modality, hashes in features.mm_hashes.items():
        places = features.mm_placeholders.get(modality) or ()
        for mm_hash, place in zip(hashes or (), places, strict=False):
            start = place.offset * prompt.BYTES_PER_TOKEN
            size = min(place.length * prompt.BYTES_PER_TOKEN, len(packed) - start)
            left -= size  # places are disjoint, or writing them would take quadratic time
            if place.offset < 0 or size <= 0 or left < 0:
                raise Unreadable("bad-shape")
            digest = xxh3_64_digest(f"{modality}:{mm_hash}".encode())
            packed[start : start + size] = (digest * (size // len(digest) + 1))[:size]
    return bytes(packed)


def sglang(body: bytes | memoryview) -> Facts:
    """Read SGLang's generate request; ``extra_key`` salts, ``lora_path`` names the adapter."""
    prompt.check_commas(body, prompt.MAX_LISTED_COMMAS)
    asked = _sglang_body(body)
    prompts = asked.input_ids if prompt.given(asked.input_ids) else asked.text
    key, tokens = prompt.first_of(b"g", prompts)
    fields = (("image", asked.image_data), ("video", asked.video_data), ("audio", asked.audio_data))
    seen = [(modality, raw) for modality, raw in fields if prompt.given(raw)]
    if seen:  # where they stand in the prompt is the engine's to know: they differ from the start
        key = b"".join(xxh3_64_digest(raw) for _, raw in seen) + key
    sampling = asked.sampling_params
    first = sampling[0] if isinstance(sampling, list) and sampling else sampling
    limit = whole(first.max_new_tokens) if isinstance(first, _Sampling) else None
    media = [Medium(modality, xxh3_64_intdigest(raw)) for modality, raw in seen]
    facts = asked.facts(limit, prompt=key, tokens=tokens, media=media)
    facts.model = facts.model or name(_first(asked.lora_path))
    facts.salt = name(_first(asked.extra_key))
    return facts


def _first(values: str | list[str | None] | None) -> str | None:
    if isinstance(values, list):
        return values[0] if values else None
    return values


class VllmHttpParser(PathParser):
    """Reads vLLM's token-in, token-out API."""

    type: ClassVar[str] = "vllmhttp-parser"
    stability: ClassVar[plugin.Stability] = "beta"

    reads: ClassVar[Reads] = {"inference/v1/generate": ("generate", generate)}


class SglangHttpParser(PathParser):
    """Reads SGLang's own API. Its model cannot be rewritten: the body names none."""

    type: ClassVar[str] = "sglanghttp-parser"
    stability: ClassVar[plugin.Stability] = "alpha"

    reads: ClassVar[Reads] = {"generate": ("sglang", sglang)}
