"""KV-cache events of vLLM and SGLang: one message's payload to a `Batch`.

A payload is a msgpack array ``[time, [event, ...], rank]``. An event is an array whose first
element is its name, with trailing defaults left out, or a map with the name under ``type``. Fields
were added over the years; a field that is missing has its default, one that is not known is
ignored. An event that cannot be used is left out, counted by its reason, and never costs the others
of its batch anything: engines of several versions publish into one index during every rollout.

What differs between the engines:

* vLLM names a LoRA adapter (``lora_name``, since 0.12) and hashes what else tells blocks apart
  into ``extra_keys`` (since 0.20): the adapter again, ``[name, offset]`` of media, the cache salt
  on a prompt's first block. Before that an adapter is a number only, which no request can name.
* SGLang sends arrays of the first five or six fields, later maps, one page each, hashes as signed
  numbers, and with speculative decoding pairs of tokens, of which the first counts. A cache salt has
  a field of its own, or comes in a map beside the others. Where it tells blocks of windows and state
  spaces apart (``component_type``, once a list), these are groups. In arrays both are after the medium,
  where vLLM has an adapter's name or a group.

**Source:** ``vllm/distributed/kv_events.py`` of vLLM 0.11 to 0.32 and
``sglang/srt/disaggregation/kv_events.py``.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from epp.prefix.exact.events import HASH_MASK, Batch, Cleared, Event, Removed, Stored, Tier

_STORED = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
    "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
)  # fmt: skip
_REMOVED = ("block_hashes", "medium", "group_idx")
NAMES = {"BlockStored": _STORED, "BlockRemoved": _REMOVED}  #: of fields of arrays, after the tag

_TIERS = {
    Tier.GPU: ("", "gpu", "npu", "hpu", "tpu", "xpu", "hbm", "device"),
    Tier.CPU: ("cpu", "cpu_pinned", "cpu_tier1", "cpu_tier2", "host", "dram", "ram"),
    Tier.SHARED: ("shared", "remote", "external", "object", "p2p"),
}
_TIER_OF = {medium: tier for tier, media in _TIERS.items() for medium in media}

_COMPONENTS = {"full": (0, "full_attention"), "swa": (1, "sliding_window"), "mamba": (2, "mamba")}
"""Groups and kinds of what SGLang tells apart, if it is asked to."""

MAX_BLOCK_TOKENS = 16_384  #: more is not a block, and takes longer than 5 ms to take in
_PACKED_TOKENS = 4096  #: formats of shorter lists are kept

_decode = msgspec.msgpack.Decoder().decode
_packers: dict[int, struct.Struct] = {}


class UnreadableError(ValueError):
    """A payload is not a batch of events."""


class _UnusableError(ValueError):
    """One event cannot be used; its text is the reason."""


def parse(payload: bytes) -> Batch:
    """Read one message's payload, all at once.

    Raises:
        UnreadableError: it is not msgpack, or not a batch.
    """
    try:
        batch = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableError(f"{len(payload)} bytes are not msgpack: {error}") from error
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise UnreadableError(f"{len(payload)} bytes are msgpack, but no batch of events")
    events: list[Event] = []
    unread: Counter[str] = Counter()
    for raw in batch[1]:
        try:
            events.append(_event(raw))
        except _UnusableError as error:
            unread[str(error)] += 1
    at, rank = batch[0], batch[2] if len(batch) > 2 else None
    return Batch(
        float(at) if isinstance(at, int | float) else 0.0,
        tuple(events),
        rank if isinstance(rank, int) else None,
        unread,
    )


def event_of(raw: Any) -> Event | None:
    """Return an event that was decoded; None if it cannot be used."""
    try:
        return _event(raw)
    except _UnusableError:
        return None


def sent_at(payload: bytes) -> float:
    """Return when a payload was sent, by the engine's clock, and read no more; 0.0 if unknown."""
    if payload[1:2] != b"\xcb" or len(payload) < 10:  # msgpack's mark of a 64-bit float
        return 0.0
    return float(struct.unpack_from(">d", payload, 2)[0])


def _event(raw: Any) -> Event:
    fields: Mapping[str, Any]
    if isinstance(raw, dict):
        name, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw:
        name, fields = raw[0], _named(raw)
    else:
        raise _UnusableError("not_an_event")
    if name == "BlockStored":
        return _stored(fields)
    if name == "BlockRemoved":
        return Removed(_hashes(fields), _tier(fields), _group(fields))
    if name == "AllBlocksCleared":
        return Cleared()
    raise _UnusableError("unknown_event")


def _named(raw: list[Any]) -> Mapping[str, Any]:
    names = _STORED if raw[0] == "BlockStored" else _REMOVED
    return dict(zip(names, raw[1:], strict=False))  # those of later versions are left out


def _stored(fields: Mapping[str, Any]) -> Stored:
    hashes, size = _hashes(fields), fields.get("block_size")
    parent, raw_tokens = fields.get("parent_block_hash"), fields.get("token_ids")
    if not raw_tokens:
        size, tokens = 0, b""
    elif not isinstance(size, int) or not 0 < size <= MAX_BLOCK_TOKENS:
        raise _UnusableError("bad_block_size")
    else:
        tokens = _packed(raw_tokens)
    adapter, keys = _adapter(fields), fields.get("extra_keys")
    salt, media = "" if parent is not None else _salt(fields), tuple[tuple[int, str], ...]()
    if isinstance(keys, list) and any(keys):
        own, media = _extras(keys, adapter, size, at_start=parent is None)
        salt = own or salt
    return Stored(
        hashes, None if parent is None else _hash(parent), tokens, size, _tier(fields), adapter,
        salt, media, _group(fields), _kind(fields),
    )  # fmt: skip


def _packed(tokens: Any) -> bytes:
    """Pack token ids into four bytes each; of a pair, as in speculative decoding, the first."""
    if not isinstance(tokens, list):
        raise _UnusableError("bad_tokens")
    if isinstance(tokens[0], list):
        tokens = [pair[0] if isinstance(pair, list) and pair else None for pair in tokens]
    count = len(tokens)
    packer = _packers.get(count)
    if packer is None:  # 0.2 us for 16 tokens, if the format is not compiled again
        packer = struct.Struct(f"<{count}I")
        if count <= _PACKED_TOKENS:
            _packers[count] = packer
    try:
        return packer.pack(*tokens)
    except struct.error:
        raise _UnusableError("bad_tokens") from None


def _hashes(fields: Mapping[str, Any]) -> tuple[int, ...]:
    raw = fields.get("block_hashes")
    if not isinstance(raw, list):
        raise _UnusableError("bad_hash")
    return tuple([_hash(value) for value in raw])


def _hash(value: Any) -> int:
    """Low 64 bits, as vLLM cuts digests to numbers itself."""
    if isinstance(value, int):
        return value & HASH_MASK
    if isinstance(value, bytes):
        return int.from_bytes(value[-8:], "big")
    raise _UnusableError("bad_hash")


def _tier(fields: Mapping[str, Any]) -> Tier:
    """Where the blocks lie; a medium that is not known is somewhere slow."""
    medium = fields.get("medium")
    if medium is None or medium == "GPU":
        return Tier.GPU
    if fields.get("locality") == "REMOTE":
        return Tier.SHARED
    return _TIER_OF.get(medium.lower(), Tier.DISK) if isinstance(medium, str) else Tier.DISK


def _group(fields: Mapping[str, Any]) -> int:
    group = fields.get("group_idx")
    if isinstance(group, int):
        return group
    component = _component(fields)
    return _COMPONENTS.get(component, (len(_COMPONENTS), ""))[0] if component else 0


def _kind(fields: Mapping[str, Any]) -> str:
    """Say what attention the blocks are of; "" if that is not told."""
    kind = fields.get("kv_cache_spec_kind")
    if kind is not None:
        return kind if isinstance(kind, str) else ""
    component = _component(fields)
    return _COMPONENTS.get(component, (0, component))[1]


def _component(fields: Mapping[str, Any]) -> str:
    """Return what SGLang calls the cache that the blocks are of; "" if that is not told."""
    told = fields.get("component_type")
    if told is None:
        told = fields.get("group_idx")
    if told is None and fields.get("lora_id") is None:  # of an adapter vLLM tells both
        told = _label(fields.get("lora_name")) or fields.get("extra_keys")
        return _label(told) if isinstance(told, str) else ""
    return told if isinstance(told, str) else _label(told)


def _label(told: Any) -> str:
    """Return the component that blocks of some are to be taken for; "" if none is named."""
    named = told if isinstance(told, list) else (told,)
    return next((each for each in _COMPONENTS if each in named), "")


def _adapter(fields: Mapping[str, Any]) -> str:
    """Name the adapter; by a name no request can use if the engine knows its number only."""
    name, number = fields.get("lora_name"), fields.get("lora_id")
    if isinstance(name, str) and name and not (number is None and name in _COMPONENTS):
        return name
    return "" if number is None else f"\0{number}"


def _salt(fields: Mapping[str, Any]) -> str:
    """Return the cache salt that SGLang tells, in a field or beside others; "" is none."""
    salt = fields.get("cache_salt")
    for beside in (fields.get("metadata"), fields.get("lora_name"), fields.get("extra_keys")):
        if salt is None and isinstance(beside, dict):
            salt = beside.get("cache_salt")
    return salt if isinstance(salt, str) else ""


def _position(medium: tuple[int, str]) -> int:
    return medium[0]


def _extras(
    keys: Sequence[Any], adapter: str, size: int, *, at_start: bool
) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Return the salt and the media that begin in an event's blocks; ``keys[i]`` is block i's."""
    salt, media = "", list[tuple[int, str]]()
    before: Sequence[Any] = ()
    for block, raw in enumerate(keys):
        own = raw if isinstance(raw, list) else ()
        for key in own:
            if isinstance(key, list) and len(key) == 2 and isinstance(key[1], int):
                if key[1] >= 0:  # else it began in a block before
                    media.append((block * size + key[1], str(key[0])))
            elif isinstance(key, str) and key != adapter:
                if at_start and block == 0:
                    salt = key
                elif key not in before:  # else it goes on
                    media.append((block * size, key))
            elif isinstance(key, bytes):
                media.append((block * size, key.hex()))
        before = own
    return salt, tuple(sorted(media, key=_position))
