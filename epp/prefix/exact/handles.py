"""Engines' hashes as keys: one for each tier and each group of caches a block can lie in."""

from __future__ import annotations

from epp.prefix.exact.events import HASH_MASK, Tier

_ODD = 0x9E3779B97F4A7C15  # 2 ** 64 over the golden ratio: spreads hashes that are small numbers
_TIERS = tuple(0xD1B54A32D192ED03 * tier & HASH_MASK for tier in Tier)
_GROUP = 0x8CB92BA72F3D8DD7


def salt(tier: Tier, group: int) -> int:
    """Return what tells a tier and a group from the others in `handle`."""
    return _TIERS[tier] + _GROUP * group & HASH_MASK


def handle(engine: int, tier_and_group: int) -> int:
    """Return the key of an engine's hash, given a `salt`; never 0."""
    return ((engine ^ engine >> 32) * _ODD + tier_and_group) & HASH_MASK or 1


def part(engine: int, number: int) -> int:
    """Return what stands for the ``number``-th part of a block that is larger than ours."""
    return (engine + (number + 1) * _GROUP) & HASH_MASK
