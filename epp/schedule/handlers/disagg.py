"""``disagg-profile-handler``: encode, prefill and decode on different endpoints.

The request goes to the decode endpoint. Its sidecar has the other stages run first on the
endpoints that two headers name, `headers.PREFILLER` and `headers.ENCODERS`. Clients cannot set
them: the session removes their copies.

**Source:** parameters, order of stages and headers of llm-d's ``disagg-profile-handler``.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from epp import headers, plugin
from epp.errors import Saturated
from epp.model import Endpoint, InferenceRequest, Pick

Order = Literal["decode-first", "prefill-first"]

SPARE = 2  #: next best prefill endpoints that a pick knows of

WHOLE = frozenset(
    {"embeddings", "rerank", "score", "images", "conversations", "multipart", "vllm-grpc-embed"}
)
"""Formats that a sidecar passes on as they are, whatever the headers say: a prefill endpoint would
be booked for work that it never gets. **Source:** the paths that llm-d's sidecar handles."""


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the blocks of `DisaggProfileHandler.Params`."""


class ProfileNames(_Part, frozen=True):
    decode: str = "decode"
    prefill: str = "prefill"
    encode: str = "encode"


class DeciderNames(_Part, frozen=True):
    """Names of plugins; "" never runs the stage elsewhere."""

    prefill: str = ""
    encode: str = ""


class DisaggProfileHandler:
    """Picks a decode endpoint, and others for the stages that its deciders send away.

    If a stage finds no endpoint, or finds the decode endpoint itself, decode does it too.
    Differs from llm-d: while ``maxDecodeQueue`` requests wait at the decode endpoint, nothing
    is sent away: the result would be freed before decode comes to read it (answers from freed
    KV blocks, vllm-project/vllm#21570).
    """

    type: ClassVar[str] = "disagg-profile-handler"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        stage_order: Order = "decode-first"  #: which stage's endpoint is picked first
        profiles: ProfileNames | None = None
        deciders: DeciderNames | None = None
        max_decode_queue: Annotated[float, Meta(gt=0)] | None = 128.0
        """Waiting requests, as last told; null sets no limit. Not in llm-d."""
        prefill_fallbacks: Annotated[int, Meta(ge=0, le=8)] = 0
        """Further endpoints that the prefill header names, best first, for sidecars that try the
        next one. Not in llm-d."""
        # The older, flat spelling; not to be mixed with `profiles` and `deciders`.
        decode_profile: str | None = None
        prefill_profile: str | None = None
        encode_profile: str | None = None
        prefill_decider_plugin_name: str | None = None
        encode_decider_plugin_name: str | None = None
        decider_plugin_name: str | None = None  #: still older; the prefill decider

    @staticmethod
    def refs(params: Params) -> Sequence[str]:
        """See `plugin.Referring.refs`."""
        named = _deciders(params)
        return [name for name in (named.prefill, named.encode) if name]

    @staticmethod
    def needed_profiles(params: Params) -> Sequence[str]:
        """See `plugin.ProfileRunner.needed_profiles`: without the others, decode does it all."""
        return [_profiles(params).decode]

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        flat = [name for name in FLAT if getattr(params, name) is not None]
        if flat and (params.profiles is not None or params.deciders is not None):
            keys = ", ".join(_camel(name) for name in flat)
            raise ValueError(f"{keys} cannot be mixed with profiles and deciders")
        named = _deciders(params)
        if params.stage_order == "prefill-first" and named.prefill:
            raise ValueError(
                f"stageOrder: prefill-first always prefills; remove the prefill decider "
                f"{named.prefill!r}"
            )
        self._prefill_first = params.stage_order == "prefill-first"
        self._profiles = _profiles(params)
        self._prefill_decider = decider(named.prefill, tools)
        self._encode_decider = decider(named.encode, tools)
        self._max_decode_queue = params.max_decode_queue
        self._fallbacks = params.prefill_fallbacks

    def handle(self, request: InferenceRequest, profiles: plugin.Profiles) -> Pick:
        """See `plugin.ProfileHandler.handle`.

        Raises:
            errors.Saturated: no decode endpoint is left.
        """
        if self._prefill_first:
            return self._handle_prefill_first(request, profiles)
        decode = profiles.run(self._profiles.decode, request).chosen
        if waits_too_long(decode[0], self._max_decode_queue):
            return self._pick(decode, (), (), "decode-queue")
        encode: Sequence[Endpoint] = ()
        if says_yes(self._encode_decider, request, decode[0]):
            encode = elsewhere(self._profiles.encode, request, profiles, peer=decode[0])
        if not says_yes(self._prefill_decider, request, decode[0]):
            return self._pick(decode, (), encode, "decider")
        prefill = self._prefill(request, profiles, decode[0])
        return self._pick(decode, prefill, encode, "decider" if prefill else "no-endpoint")

    def _handle_prefill_first(self, request: InferenceRequest, profiles: plugin.Profiles) -> Pick:
        prefill = self._prefill(request, profiles, None)
        peer = prefill[0] if prefill else None
        encode: Sequence[Endpoint] = ()
        if peer is not None and says_yes(self._encode_decider, request, peer):
            encode = elsewhere(self._profiles.encode, request, profiles, peer=peer)
        near = msgspec.structs.replace(request, peer=peer)
        decode = profiles.run(self._profiles.decode, near).chosen
        if waits_too_long(decode[0], self._max_decode_queue):
            return self._pick(decode, (), (), "decode-queue")
        return self._pick(decode, prefill, encode, "order" if prefill else "no-endpoint")

    def _pick(
        self,
        decode: tuple[Endpoint, ...],
        prefill: Sequence[Endpoint],
        encode: Sequence[Endpoint],
        why: str,
    ) -> Pick:
        name, fallbacks = self._profiles.decode, self._fallbacks
        return disaggregated(decode, prefill, encode, profile=name, fallbacks=fallbacks, why=why)

    def _prefill(
        self, request: InferenceRequest, profiles: plugin.Profiles, peer: Endpoint | None
    ) -> tuple[Endpoint, ...]:
        spare = max(SPARE, self._fallbacks)
        return elsewhere(self._profiles.prefill, request, profiles, peer=peer, spare=spare)


FLAT = (
    "decode_profile",
    "prefill_profile",
    "encode_profile",
    "prefill_decider_plugin_name",
    "encode_decider_plugin_name",
    "decider_plugin_name",
)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _profiles(params: DisaggProfileHandler.Params) -> ProfileNames:
    default = ProfileNames()
    return params.profiles or ProfileNames(
        decode=params.decode_profile or default.decode,
        prefill=params.prefill_profile or default.prefill,
        encode=params.encode_profile or default.encode,
    )


def _deciders(params: DisaggProfileHandler.Params) -> DeciderNames:
    return params.deciders or DeciderNames(
        prefill=params.prefill_decider_plugin_name or params.decider_plugin_name or "",
        encode=params.encode_decider_plugin_name or "",
    )


def decider(name: str, tools: plugin.Tools) -> plugin.Decider | None:
    """The decider of that name; None for "".

    Raises:
        ValueError: there is no plugin of that name, or it is no decider.
    """
    if not name:
        return None
    found = tools.plugins.get(name)
    if not isinstance(found, plugin.Decider):
        why = "is not configured" if found is None else f"is a {found.type}, not a decider"
        raise ValueError(f"decider {name!r} {why}")  # noqa: TRY004 - a name in the file is wrong
    return found


def says_yes(who: plugin.Decider | None, request: InferenceRequest, endpoint: Endpoint) -> bool:
    """What the decider says; no, if there is none."""
    return who is not None and who.disaggregate(request, endpoint)


def waits_too_long(decode: Endpoint, limit: float | None) -> bool:
    """Say if so many requests wait there, as last told, that a cache would not be read in time."""
    load = decode.load
    return (
        limit is not None and load is not None and load.queued is not None and load.queued >= limit
    )


def elsewhere(
    profile: str,
    request: InferenceRequest,
    profiles: plugin.Profiles,
    *,
    peer: Endpoint | None,
    spare: int = 0,
) -> tuple[Endpoint, ...]:
    """Run the profile of another stage.

    Returns:
        What it chose, and the ``spare`` next by score; () if it is not configured, finds no
        endpoint, or the request has no stages.
    """
    result = ran_near(profile, request, profiles, peer=peer) if has_stages(request) else None
    if result is None:
        return ()
    if not spare:
        return result.chosen
    scored = zip(result.scores, result.candidates, strict=True)
    best = nlargest(spare + len(result.chosen) + 1, scored, key=itemgetter(0))
    others = [each for _, each in best if each not in result.chosen and each is not peer]
    return (*result.chosen, *others[:spare])


def has_stages(request: InferenceRequest) -> bool:
    """Say if a part of the request can be done elsewhere."""
    return request.computed and request.format not in WHOLE


def ran_near(
    profile: str, request: InferenceRequest, profiles: plugin.Profiles, *, peer: Endpoint | None
) -> plugin.ProfileResult | None:
    """Run the profile of another stage; None if it is not configured, or finds no endpoint."""
    if profile not in profiles.names:
        return None
    try:
        return profiles.run(profile, msgspec.structs.replace(request, peer=peer))
    except Saturated:
        return None


def disaggregated(
    decode: tuple[Endpoint, ...],
    prefill: Sequence[Endpoint],
    encode: Sequence[Endpoint],
    *,
    profile: str,
    fallbacks: int = 0,
    why: str = "",
) -> Pick:
    """The pick that sends a request to ``decode`` and names the others in headers.

    After the prefill endpoint its header names the ``fallbacks`` next ones of ``prefill``.

    Each endpoint is named with its own port, IPv6 in brackets (field problem B132: prefill
    header with the decode port, llm-d/llm-d-router PR 329).
    """
    extra: dict[str, str] = {}
    prefiller = prefill[0] if prefill and prefill[0].id != decode[0].id else None
    others = tuple(each for each in prefill[1:] if each.id != decode[0].id) if prefiller else ()
    if prefiller is not None:
        named = (prefiller, *others[:fallbacks])
        extra[headers.PREFILLER] = ",".join(endpoint.address for endpoint in named)
    encoders = tuple(endpoint for endpoint in encode if endpoint.id != decode[0].id)
    if encoders:
        extra[headers.ENCODERS] = ",".join(endpoint.address for endpoint in encoders)
    return Pick(
        endpoints=decode,
        headers=extra,
        prefill=prefiller,
        prefill_next=others,
        encode=encoders,
        profile=profile,
        stages=why,
    )
