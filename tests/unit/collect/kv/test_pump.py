"""The pump: whoever fails keeps nobody else from their turns."""

from __future__ import annotations

import asyncio

import pytest

from epp.collect.kv.pump import Pump


class Counting:
    """Has work for some turns; fails in one of them, if told."""

    def __init__(self, turns: int, *, fails_at: int = -1) -> None:
        self.left = turns
        self._fails_at = fails_at

    def work(self) -> bool:
        if self.left == self._fails_at:
            raise RuntimeError("odd")
        self.left -= 1
        return self.left > 0


def test_a_worker_that_fails_is_told_of_once_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        pump, good, bad = Pump(), Counting(50), Counting(9, fails_at=5)
        others = [Counting(1, fails_at=1) for _ in range(20)]
        for each in (bad, good, *others):
            pump.wake(each)
        async with asyncio.timeout(10):
            while good.left:
                await asyncio.sleep(0)
        assert bad.left == 5
        assert bad not in pump

    asyncio.run(run())
    assert caplog.text.count("a feed of KV events failed") == 1
