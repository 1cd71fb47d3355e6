"""Prompts and plans of a replay. Out: what engines answer, see `tests/integration/test_replay`."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from epp.prefix.blocks import block_hashes, root
from epp.recording.record import Record
from epp.traffic.replay.ask import Answer, Target, body_of
from epp.traffic.replay.plan import Pace, Step, plan
from epp.traffic.replay.player import Sent
from epp.traffic.replay.prompts import Prompts
from epp.traffic.replay.run import headers_of, reasons, table
from epp.traffic.trace import Trace, TraceError


def record(at: float, tokens: int, *ids: int, **more: object) -> Record:
    runs = tuple((each, 1) for each in ids)
    return Record(at=at, input_tokens=tokens, output_tokens=5, runs=runs, **more)  # type: ignore[arg-type]


RECORDS = (
    record(0, 200, 1, 2, 3), record(1, 256, 1, 2, 4, 5), record(2, 130, 9, 2), record(3, 100, 1),
    record(4, 70),
)  # fmt: skip


def test_prompts_share_exactly_the_blocks_that_the_trace_says() -> None:
    prompts = Prompts(64, 1, "text")
    chains = []
    for i, each in enumerate(RECORDS):
        text = prompts.of(each, str(i))
        assert isinstance(text, str)
        assert len(text) == 4 * each.input_tokens
        chains.append(block_hashes(text.encode(), root=root("m"), block_tokens=64))
    for one, first in zip(RECORDS, chains, strict=True):
        for two, second in zip(RECORDS, chains, strict=True):
            if one is not two:
                same = [a == b for a, b in zip(one.hash_ids, two.hash_ids, strict=False)]
                wanted = same.index(False) if False in same else len(same)
                found = sum(1 for a, b in zip(first, second, strict=False) if a == b)
                full = min(one.input_tokens, two.input_tokens) // 64
                assert found == min(wanted, full)


def test_token_ids_are_as_many_as_the_trace_says_and_share_likewise() -> None:
    prompts = Prompts(64, 1, "tokens")
    first, second = (prompts.of(RECORDS[i], str(i)) for i in (0, 1))
    assert (len(first), len(second)) == (200, 256)
    assert first[:128] == second[:128]
    assert first[128:192] != second[128:192]


def test_another_seed_shares_nothing() -> None:
    one, two = (Prompts(64, seed, "text").of(RECORDS[0], "0") for seed in (1, 2))
    assert one[:64] != two[:64]


def test_conversations_begin_faster_and_think_as_told() -> None:
    trace = Trace(
        (record(0, 9, session="a", duration=2.0), record(4, 9, session="b"),
         record(10, 9, session="a"), record(16, 9, session="a", think=1.0)),
        64,
    )  # fmt: skip
    first, second = plan(trace, Pace(speed=2.0, think_speed=4.0))
    assert (first.begins_at, second.begins_at) == (0.0, 2.0)
    # 10 s after the first, whose answer took 2; and 1 s as told.
    assert [step.think for step in first.steps] == [None, 2.0, 0.25]
    assert len({step.name for talk in (first, second) for step in talk.steps}) == 4


def test_where_no_duration_is_told_the_gap_counts_from_the_request_before() -> None:
    trace = Trace((record(0, 9, session="a"), record(10, 9, session="a")), 64)
    (talk,) = plan(trace, Pace(think_speed=2.0))
    assert (talk.steps[1].think, talk.steps[1].gap) == (None, 5.0)


def test_a_ticking_clock_is_spread_unless_it_is_kept() -> None:
    trace = Trace(tuple(record(i // 10 * 3.0, 9) for i in range(30)), 64)
    assert len({talk.begins_at for talk in plan(trace, Pace())}) == 30
    assert len({talk.begins_at for talk in plan(trace, Pace(smooth=False))}) == 3
    assert len(plan(trace, Pace(most=7))) == 7


def test_the_time_per_token_leaves_the_first_one_out() -> None:
    assert Answer(ttft=1.0, duration=3.0, output_tokens=5).tpot == 0.5
    assert Answer(ttft=1.0, duration=1.0, output_tokens=1).tpot is None


def test_a_request_asks_for_as_many_tokens_as_the_trace_says() -> None:
    body = body_of(Target(url="u", model="m", api="chat"), "said", 7)
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (7, 7, True)
    assert body["messages"] == [{"role": "user", "content": "said"}]


def test_headers_are_pairs() -> None:
    assert headers_of(["x-a=1", "x-b=c=d"]) == {"x-a": "1", "x-b": "c=d"}
    with pytest.raises(TraceError, match="NAME=VALUE"):
        headers_of(["x-a"])


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    strange = record(0, 9, business="[/bold] [link=http://x]y[/link]")
    written = Console(file=io.StringIO(), width=200)
    written.print(table([Sent(Step(strange, "k"), 0.0, 0.0, Answer())]))
    assert strange.business in written.file.getvalue()


def test_why_requests_failed_is_counted() -> None:
    answers = ["HTTP 404", "", "the stream was cut", "HTTP 404"]
    sent = [Sent(Step(RECORDS[0], "k"), 0.0, 0.0, Answer(error=each)) for each in answers]
    assert reasons(sent) == "2 x HTTP 404, 1 x the stream was cut"
    assert reasons(sent[1:2]) == ""
