"""A trace replayed through a real Envoy and recorded by the picker is the trace again."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import aiohttp
import pytest

from epp.gateway.options import GatewayOptions, Mode
from epp.local import fleet
from epp.recording.record import Record
from epp.traffic.files import read_trace
from epp.traffic.replay.ask import Target
from epp.traffic.replay.plan import Pace, plan
from epp.traffic.replay.player import Player, Sent
from epp.traffic.replay.prompts import Prompts
from epp.traffic.study.reuse import reuse
from epp.traffic.trace import Trace, trace_of
from tests.support.serving import eventually

pytestmark = pytest.mark.e2e

MODEL = "m"
BLOCK = 64  #: as the picker's, whose engines have blocks of 16
SHARES = (0.1, 0.25, 0.5, 1.0)


def trace() -> Trace:
    """Ten conversations of three turns, of three families, one after the other begun."""
    records = [
        Record(
            at=0.05 * talk + 0.4 * turn, input_tokens=BLOCK * (6 + 3 * turn) + 20, output_tokens=4,
            runs=((10 * (talk % 3), 3), (1000 * (talk + 1), 3 + 3 * turn)), session=str(talk),
            think=0.02 if turn else None,
        )
        for talk in range(10) for turn in range(3)
    ]  # fmt: skip
    return Trace(tuple(sorted(records, key=lambda record: record.at)), BLOCK)


async def replayed(played: Trace, folder: Path, mode: Mode) -> list[Sent]:
    sent: list[Sent] = []
    async with contextlib.AsyncExitStack() as stack:
        engines = await stack.enter_async_context(fleet.engines(2, folder, f"--models={MODEL}"))
        picker = await stack.enter_async_context(
            fleet.picker(
                engines, folder, f"--record-file={folder}/r.jsonl", "--record-least-sharers=1"
            )
        )
        options = GatewayOptions(
            mode=mode, picker_host="127.0.0.1", picker_port=picker.ports.grpc, picker_tls=False,
            endpoints=tuple(engines), lean_usage=mode == "lean", lean_ttft=mode == "lean",
        )  # fmt: skip
        gateway = await stack.enter_async_context(fleet.gateway(options, folder))
        target = Target(url=gateway.url, model=MODEL, timeout=20.0)
        await Player(target, Prompts(BLOCK, 1, "text"), sent.append).open_loop(plan(played, Pace()))
        admin = f"http://127.0.0.1:{picker.ports.admin}/metrics"
        await eventually(lambda: _recorded(admin, len(sent)))
    return sent


async def _recorded(url: str, count: int) -> bool:
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        return f"epp_recorded_requests_total {float(count)}" in await answer.text()


@pytest.mark.parametrize("mode", ["stock", "lean"])
def test_what_is_replayed_through_a_gateway_is_what_the_picker_records(
    tmp_path: Path, mode: Mode
) -> None:
    played = trace()
    sent = asyncio.run(asyncio.wait_for(replayed(played, tmp_path, mode), 90.0))
    assert [each.answer.error for each in sent] == [""] * 30
    tape = read_trace([str(tmp_path / "r.jsonl")])
    assert tape.block_tokens == BLOCK
    assert len(tape.records) == 30
    # The same lengths, but for a token of framing, and the same repetitions for any cache.
    lengths = zip(
        sorted(record.input_tokens for record in tape.records),
        sorted(record.input_tokens for record in played.records),
        strict=True,
    )
    assert {recorded - wanted for recorded, wanted in lengths} <= {0, 1}
    came = trace_of([each.record() for each in sent], BLOCK)  # in the order of this run
    assert reuse(tape).ideal == pytest.approx(reuse(played).ideal, abs=0.003)
    assert reuse(tape).curve(SHARES) == pytest.approx(reuse(came).curve(SHARES), abs=0.03)
    assert len({record.session for record in tape.records}) == 10
    assert {record.slot for record in tape.records} <= {0, 1}
    for record in tape.records:
        assert record.ttft is not None
        assert record.output_tokens == 4
        assert record.counted_tokens is not None
