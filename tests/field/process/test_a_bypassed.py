"""Field problems (a), ext_proc: a gateway that asks somebody else.

The real picker as a process, asked over ext_proc.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.serving import Serving, complete, eventually, with_engines

LONELY = "epp_seconds_since_last_stream"


def test_b061_a_picker_that_nobody_asks_counts_the_seconds(tmp_path: Path) -> None:
    """Field problem B061 (istio/istio#57855): nothing reached the picker, and nothing showed it."""

    async def step(picker: Serving) -> None:
        async def alone() -> float | None:
            seconds = await picker.metric(LONELY)
            return seconds if seconds is not None and seconds >= 0.2 else None

        await eventually(alone)
        await complete(picker.gateway)
        assert await picker.metric(LONELY) == 0.0
        await eventually(alone)

    with_engines(tmp_path, step)
