"""``epp traffic replay`` against simulated engines: what is found, in which order, how it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from epp.cli import main
from epp.recording.record import Record
from epp.sim.options import EngineOptions
from epp.traffic.files import read_trace, write_trace
from epp.traffic.replay.ask import Target
from epp.traffic.replay.plan import Pace, plan
from epp.traffic.replay.player import Player, Sent
from epp.traffic.replay.prompts import Prompts
from epp.traffic.study.reuse import reuse
from epp.traffic.trace import Trace
from tests.support import engine

BLOCK = 64


def talks(count: int, turns: int) -> Trace:
    """Conversations that share a system prompt of two blocks, and grow by two blocks a turn."""
    records = [
        Record(
            at=0.02 * talk + 0.3 * turn, input_tokens=BLOCK * (4 + 2 * turn) + 10, output_tokens=8,
            runs=((0, 2), (1000 * (talk + 1), 2 + 2 * turn)), session=str(talk),
            business="desk" if talk % 2 else "chat", think=0.01 if turn else None,
        )
        for talk in range(count) for turn in range(turns)
    ]  # fmt: skip
    return Trace(tuple(sorted(records, key=lambda record: record.at)), BLOCK)


def played(trace: Trace, concurrency: int = 0) -> list[Sent]:
    sent: list[Sent] = []

    async def play() -> None:
        async with engine.served(EngineOptions(models=("m",), block_size=16)) as ((_, port),):
            target = Target(url=f"http://127.0.0.1:{port}", model="m", timeout=20.0)
            player = Player(target, Prompts(BLOCK, 1, "text"), sent.append)
            steps = plan(trace, Pace())
            if concurrency:
                await player.closed_loop(steps, concurrency)
            else:
                await player.open_loop(steps)

    asyncio.run(asyncio.wait_for(play(), 60.0))
    return sent


def test_an_engine_finds_in_a_replay_what_the_trace_repeats() -> None:
    trace = talks(6, 3)
    sent = played(trace)
    assert [each.answer.error for each in sent] == [""] * 18
    assert {each.answer.output_tokens for each in sent} == {8}
    prompt = sum(each.answer.prompt_tokens for each in sent)
    cached = sum(each.answer.cached_tokens or 0 for each in sent)
    assert prompt == sum(record.input_tokens for record in trace.records)
    assert cached / prompt == pytest.approx(reuse(trace).ideal, abs=0.02)


def test_a_later_turn_is_never_sent_before_the_answer_and_its_think_time() -> None:
    ended: dict[str, float] = {}
    for each in sorted(played(talks(4, 3)), key=lambda each: each.at):
        session = each.step.record.session
        if session in ended:
            assert each.at >= ended[session] + 0.01
        ended[session] = each.at + each.answer.duration
        assert each.delay < 0.5


def test_a_closed_loop_has_as_many_conversations_under_way_as_it_is_told() -> None:
    sent = played(talks(6, 2), concurrency=2)
    spans: dict[str, tuple[float, float]] = {}
    for each in sent:
        begin, end = spans.get(each.step.record.session, (each.at, 0.0))
        spans[each.step.record.session] = (
            min(begin, each.at), max(end, each.at + each.answer.duration)
        )  # fmt: skip
    assert len(spans) == 6
    most = max(
        sum(b < end and e > end - 1e-6 for b, e in spans.values()) for _, end in spans.values()
    )
    assert most <= 2


def test_the_command_shows_a_table_and_writes_what_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = str(tmp_path / "t.jsonl"), str(tmp_path / "o.jsonl.gz")
    write_trace(talks(4, 2), source, "epp")

    async def step() -> tuple[int, int]:
        async with engine.served(EngineOptions(models=("m",))) as ((_, port),):
            command = ["traffic", "replay", source, f"--url=http://127.0.0.1:{port}", "--speed=10"]
            whole = [*command, "--model=m", "--prompt=tokens", f"--output={out}"]
            good = await asyncio.to_thread(main, whole)
            bad = await asyncio.to_thread(main, [*command, "--model=other", "--requests=2"])
            return good, bad

    assert asyncio.run(asyncio.wait_for(step(), 60.0)) == (0, 1)
    said = capsys.readouterr().err
    assert all(word in said for word in ("chat", "desk", "total", "TTFT"))
    assert "errors: 2 x HTTP 404" in said
    replayed = read_trace([out]).records
    assert len(replayed) == 8
    assert all(record.ttft and record.duration for record in replayed)
    assert [record.counted_tokens == record.input_tokens for record in replayed] == [True] * 8
