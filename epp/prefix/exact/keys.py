"""Our own names for blocks: chained hashes that start at a keyed root.

A block is named by all that an engine needs to be equal before it uses the block again: the tokens
up to its end, the adapter or model, the cache salt, and the media that begin in it. Engines name
blocks in ways of their own, which differ by version, by setting and even by process; those names
are handles here, to tell which block an engine removes.

The root is BLAKE2b under the deployment's secret, so nobody without it can work out a block's name,
from there on it is XXH3, seeded with the block before: 0.05 us a block of 16 tokens, where BLAKE2b
itself takes 0.8 to 1.0 us (CPython 3.11). All replicas with the same secret find the same names,
whatever the process's own hash seed.

A secret is changed by putting another before it: what is stored from the root on is named by
the first, look-ups try all, and a chain that began under one goes on under it.

**Source:** RFC 7693 (BLAKE2); chaining as in `epp.prefix.blocks`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import groupby

import msgspec
from xxhash import xxh3_64_intdigest

from epp.model import BlockHash
from epp.prefix.blocks import BYTES_PER_TOKEN, Runs, block_hashes

MOST_SECRETS = 4  #: each costs every look-up a chain
SECRET_BYTES = 64  #: of a secret count, at most

Media = Sequence[tuple[int, str]]
"""Images and the like: position of the first token in tokens, and the engine's name for it."""


class Prompt:
    """What names a prompt's blocks.

    Args:
        tokens: four bytes each, little-endian.
        model: the adapter, or the model where there is none.
        salt: the client's cache salt; "" is none.
        media: where images and the like begin, in order.
    """

    __slots__ = ("media", "model", "salt", "tokens")

    def __init__(self, tokens: bytes, model: str, *, salt: str = "", media: Media = ()) -> None:
        self.tokens = tokens
        self.model = model
        self.salt = salt
        self.media = media


class Keys:
    """The secrets of a deployment, the one to name new blocks by first.

    Raises:
        ValueError: there is none, or there are more than `MOST_SECRETS`.
    """

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not 0 < len(secrets) <= MOST_SECRETS:
            raise ValueError(f"1 to {MOST_SECRETS} secrets are needed, not {len(secrets)}")
        self._secrets = tuple(secret[:SECRET_BYTES] for secret in secrets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self._secrets == other._secrets

    def __hash__(self) -> int:
        return hash(self._secrets)

    def root(self, model: str, salt: str = "") -> int:
        """Return what a prompt's first block is chained on, by the first secret."""
        return _root(self._secrets[0], model, salt)

    def roots(self, model: str, salt: str = "") -> tuple[int, ...]:
        """Return what a prompt's first block may be chained on, by every secret."""
        return tuple(_root(secret, model, salt) for secret in self._secrets)


class Begun(msgspec.Struct, frozen=True):
    """Where blocks go on: our name of the last whole block, and what came after it."""

    name: int
    tokens: bytes = b""
    media: tuple[str, ...] = ()
    pieces: tuple[int, ...] = ()  #: the engine's hashes of the blocks that ``tokens`` are of

    def with_more(self, tokens: bytes, media: Media) -> Prompt:
        """Return all that follows the last whole block; ``media`` by position in ``tokens``."""
        lead = len(self.tokens) // BYTES_PER_TOKEN
        before = [(0, name) for name in self.media]
        return Prompt(
            self.tokens + tokens, "", media=before + [(lead + at, name) for at, name in media]
        )

    def after(self, prompt: Prompt, name: int, *, whole: int, last: int) -> Begun:
        """Return where blocks go on after ``whole`` tokens of `with_more`; ``last`` ended there."""
        rest = prompt.tokens[whole * BYTES_PER_TOKEN :]
        media = tuple([each for at, each in prompt.media if at >= whole])
        if not rest:
            return Begun(name, rest, media)
        return Begun(name, rest, media, (last,) if whole else (*self.pieces, last))


def chain(
    prompt: Prompt, root: int, *, block_tokens: int, most: int, runs: Runs | None = None
) -> tuple[BlockHash, ...]:
    """Return the names of the prompt's full blocks, in order, at most ``most``.

    ``runs`` makes it faster and changes nothing; one instance serves one ``block_tokens``.
    """
    size = block_tokens * BYTES_PER_TOKEN
    count = min(len(prompt.tokens) // size, most)
    found: list[BlockHash] = []
    parent = root
    for at, names in _by_block(prompt.media, block_tokens, count):
        part = prompt.tokens[len(found) * size : at * size]
        found += block_hashes(part, root=parent, block_tokens=block_tokens, max_blocks=most,
                              runs=runs)  # fmt: skip
        parent = found[-1] if found else root
        parent = with_media(prompt.tokens[at * size : (at + 1) * size], parent, names)
        found.append(BlockHash(parent))
    part = prompt.tokens[len(found) * size : count * size] if found else prompt.tokens
    found += block_hashes(part, root=parent, block_tokens=block_tokens,
                          max_blocks=count - len(found), runs=runs)  # fmt: skip
    return tuple(found)


def with_media(block: bytes, parent: int, names: Sequence[str]) -> int:
    """Return the hash of a block in which media begin."""
    told = "\0".join(names).encode("utf-8", "surrogatepass")
    return xxh3_64_intdigest(block + told, parent)


def _by_block(media: Media, block_tokens: int, count: int) -> Iterator[tuple[int, list[str]]]:
    for block, items in groupby(media, key=lambda item: item[0] // block_tokens):
        if 0 <= block < count:
            yield block, [name for _, name in items]


def _root(secret: bytes, model: str, salt: str) -> int:
    parts = (model.encode("utf-8", "surrogatepass"), salt.encode("utf-8", "surrogatepass"))
    framed = struct.pack("<2Q", *map(len, parts)) + b"".join(parts)
    return int.from_bytes(blake2b(framed, key=secret, digest_size=8).digest(), "little")
