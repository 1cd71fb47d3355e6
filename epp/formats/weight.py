"""How long reading a body may take, told from its bytes before it is read. Pure.

Reading happens between other requests, and must not keep them waiting. Text costs 1 ms per MB,
numbers 80 ns each, and everything that becomes an object of its own (`Raw`, a message, a part) up
to 1 us: a list of token ids is dear, and a body made to be dear is a hundred times dearer than text.
"""

from __future__ import annotations

LIGHT_BYTES = 16 * 1024  #: 3 ms at worst
HEAVY_BYTES = 1024 * 1024  #: so much text is 2 ms, with its copies
FEW = 5_000  #: things of any kind
MOST_NUMBERS = 40_000


def is_heavy(body: bytes) -> bool:
    """Whether reading ``body`` may take longer than 5 ms. 0.1 ms per MB of text."""
    if len(body) <= LIGHT_BYTES:
        return False
    if len(body) > HEAVY_BYTES:
        return True
    commas = body.count(b",")
    if commas <= FEW:
        return False
    things = body.count(b"[") + body.count(b"{") + body.count(b'"') // 2
    return commas > MOST_NUMBERS or things > FEW
