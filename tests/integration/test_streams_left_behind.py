"""What is left of streams that have ended: nothing, however closely they were watched."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from epp.clock import SystemClock
from epp.extproc.measured import measure
from epp.telemetry.metrics import Metrics
from tests.support import ext_proc as gw
from tests.support.ext_proc import Gateway
from tests.support.spans import Traced

STREAMS = 200
PER_STREAM = 0.05  #: objects of a kind kept for each, above which they leak; one of 16 is measured
#: A loop drops timers that were cancelled in batches of a hundred, with their contexts.
LOOPS_OWN = {"asyncio.events.TimerHandle", "_contextvars.Context"}
POST = [
    gw.request_head({"content-type": "application/json"}),
    gw.request_body(b'{"model": "m", "prompt": "p"}', ends=True),
]
ANSWER = [
    gw.response_head({"content-type": "text/event-stream"}),
    gw.response_body(b"1"),
    gw.response_body(b"2", ends=True),
]


async def whole(gateway: Gateway) -> None:
    await gateway.exchange([*POST, *ANSWER])


async def cut(gateway: Gateway) -> None:
    """Cancelled within the answer."""
    async with gateway.stream() as stream:
        await stream.send(*POST, *ANSWER[:2])
        for _ in range(4):
            await stream.read()


async def refused(gateway: Gateway) -> None:
    await gateway.exchange([POST[0], gw.request_body(b"{", ends=True)])


def objects() -> Counter[str]:
    """How many objects of each kind are alive."""
    gc.collect()
    kinds = Counter(map(type, gc.get_objects()))
    named = {f"{kind.__module__}.{kind.__qualname__}": n for kind, n in kinds.items()}
    return Counter({name: n for name, n in named.items() if name not in LOOPS_OWN})


@pytest.mark.parametrize("script", [whole, cut, refused])
def test_b181_nothing_is_kept_of_streams_that_were_traced_and_measured(
    script: Callable[[Gateway], Awaitable[None]],
) -> None:
    """Field problem B181: stream-stream calls leaked where interceptors watched them."""
    traced = Traced(ratio=1.0)
    service = traced.picker.service
    measure(service, Metrics(process=False), SystemClock(), lives=True)

    async def main() -> Counter[str]:
        async with traced.picker.serving() as gateway:

            async def batch() -> Counter[str]:
                for _ in range(STREAMS):
                    await script(gateway)
                await gw.until(lambda: service.active == 0)
                assert traced.spans(), "they were traced"
                traced.forget()
                return objects()

            await batch()
            before = await batch()
            return await batch() - before

    grown = asyncio.run(main())
    assert {kind: n for kind, n in grown.items() if n > PER_STREAM * STREAMS} == {}
