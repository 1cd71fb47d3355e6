"""A tokenizer that needs no model: a token is four bytes of UTF-8; pure.

The id is the four bytes read as a little-endian number; a shorter last piece is filled up with zero
bytes. So ids are exact, need no table, turn back into the text, and come to about as many
per English word as those of real models. The ids of a text's beginning are the beginning of the ids of the
text, all but the last.

Text that an engine makes consists of words of three letters and a space: four bytes, one token. A chat's
messages are rendered so that each starts on a token: an answer sent back as a message has the
same ids as when it was made, and its KV blocks are found again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import xxhash

from epp.sim.cache import Ids, mix

TOKEN_BYTES = 4

_LETTERS = (
    "theandforarebutnotyouallanycanherwasoneouroutday"
    "gethashimhishowmannewnowoldseetwowaywhoboydidits"
    "letputsayshetoousefarsearuneyeairaskbigboxbuscar"
    "catcowcupcutdogdryeareateggendfewflyfungashotice"
)
_WORDS = [_LETTERS[at : at + 3] for at in range(0, len(_LETTERS), 3)]
WORDS = tuple(f" {word}".encode() for word in _WORDS)  #: 64 pieces of one token each
_WORD_IDS: Ids = np.frombuffer(b"".join(WORDS), dtype="<u4").astype(np.uint32)
_STRIDE = 1_000_003  # keeps seeds and choices apart
_SHIFT = np.uint64(64 - 6)  # the six highest bits choose a word


def padded(text: bytes) -> bytes:
    """Fill up with zero bytes to whole tokens."""
    return text + bytes(-len(text) % TOKEN_BYTES)


def encode(text: bytes) -> Ids:
    """Return the token ids of UTF-8 ``text``."""
    return np.frombuffer(padded(text), dtype="<u4")


def encode_parts(parts: Iterable[bytes]) -> Ids:
    """Return the token ids of several texts, each starting on a token of its own."""
    return np.frombuffer(b"".join(map(padded, parts)), dtype="<u4")


def decode(ids: Ids) -> str:
    """Return the text of token ids; bytes that are no UTF-8 become U+FFFD."""
    return ids.astype("<u4").tobytes().replace(b"\0", b"").decode(errors="replace")


def answer(prompt: Ids, tokens: int, *, seed: int = 0, choice: int = 0) -> Ids:
    """Return the ids of a made-up answer: the same for the same prompt, seed and choice.

    A longer answer starts with the shorter one.
    """
    key = xxhash.xxh64_intdigest(prompt.tobytes(), (seed * _STRIDE + choice) % 2**64)
    numbers = np.arange(tokens, dtype=np.uint64) + np.uint64(key >> 1)
    ids: Ids = _WORD_IDS[mix(numbers) >> _SHIFT]
    return ids


def draw(prompt: Ids, low: int, high: int, *, seed: int = 0) -> int:
    """Return a number in [low, high] that depends on the prompt and seed alone."""
    key = xxhash.xxh64_intdigest(prompt.tobytes(), ~seed % 2**64)
    return low + key % (high - low + 1)


def text(tokens: int, seed: int = 0) -> str:
    """Return English-looking text of exactly ``tokens`` tokens."""
    words = random.Random(seed).choices(_WORDS, k=tokens)
    return "".join(f" {word}" for word in words)
