"""Many calls that are over at once, ended some a turn of the loop: nobody waits for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice

from epp.rpc.call import Call

CALLS_A_TURN = 32  #: what a call leaves behind is put in order in the turn after it, too


def end_all(
    calls: Mapping[int, Call], end: Callable[[Call], None], then: Callable[[], None]
) -> None:
    """End each of ``calls``, which takes it out of them; ``then`` do the last thing."""
    for call in list(islice(calls.values(), CALLS_A_TURN)):
        end(call)
    if calls:
        asyncio.get_running_loop().call_soon(end_all, calls, end, then)
    else:
        then()
