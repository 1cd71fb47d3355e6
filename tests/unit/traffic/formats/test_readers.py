"""Each format, by lines written after its specification. Out: files, see `test_files`."""

from __future__ import annotations

import pytest

from epp.recording.record import Record
from epp.traffic.formats import aiperf, azure, bailian, burstgpt, guidellm, mooncake, weka
from epp.traffic.formats.reading import Reader, Source
from epp.traffic.trace import Bad


def read(reader: Reader, *lines: str, **columns: str) -> list[Record | Bad]:
    return list(reader.read(Source("f", lines, reader.block_tokens, columns)))


def one(reader: Reader, *lines: str) -> Record:
    (found,) = read(reader, *lines)
    assert isinstance(found, Record), found
    return found


def test_mooncake_milliseconds_become_seconds_and_ids_become_runs() -> None:
    found = one(
        mooncake,
        '{"timestamp": 3000, "input_length": 1500, "output_length": 7, "hash_ids": [4, 5, 9]}',
    )
    assert found == Record(at=3.0, input_tokens=1500, output_tokens=7, runs=((4, 2), (9, 1)))
    assert found.hash_ids == (4, 5, 9)


def test_our_own_fields_of_a_mooncake_line_are_read() -> None:
    found = one(
        mooncake,
        '{"timestamp":1,"input_length":100,"output_length":7,"hash_rle":[[9,1]],"id":"b","parent":"a",'
        '"session_id":"s","class":"chat","tenant":"t","family":"f","think_ms":250,"ttft_ms":40,'
        '"e2e_ms":90,"cached_tokens":64,"predicted_tokens":32,"slot":3,"reason":"longest",'
        '"outcome":"failed"}',
    )
    assert found == Record(
        at=0.001, input_tokens=100, output_tokens=7, runs=((9, 1),), id="b", parent="a",
        session="s", business="chat", tenant="t", family="f", think=0.25, ttft=0.04,
        duration=0.09, cached_tokens=64, predicted_tokens=32, slot=3, reason="longest",
        outcome="failed",
    )  # fmt: skip


def test_bailian_blocks_are_chained_and_chats_follow_their_root() -> None:
    first, other, second = read(
        bailian,
        '{"chat_id":1,"parent_chat_id":-1,"timestamp":1.5,"input_length":32,"output_length":2,'
        '"type":"text","turn":1,"hash_ids":[70,71]}',
        '{"chat_id":2,"parent_chat_id":-1,"timestamp":2,"input_length":32,"output_length":2,'
        '"type":"search","turn":1,"hash_ids":[99,71]}',
        '{"chat_id":3,"parent_chat_id":1,"timestamp":3,"input_length":40,"output_length":2,'
        '"type":"text","turn":2,"hash_ids":[70,71,72]}',
    )
    assert isinstance(first, Record)
    assert isinstance(other, Record)
    assert isinstance(second, Record)
    assert (first.at, first.session, first.parent, first.business) == (1.5, "1", "", "text")
    assert (second.session, second.parent) == ("1", "1")
    assert second.hash_ids[:2] == first.hash_ids
    assert other.hash_ids[1] != first.hash_ids[1]  # 71 after another block is another prefix


def test_azure_moments_have_seven_digits_and_may_have_a_zone() -> None:
    first, second = read(
        azure,
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.1805900+00:00,396,109",
    )
    assert isinstance(first, Record)
    assert isinstance(second, Record)
    assert second.at - first.at == pytest.approx(3.5)
    assert (first.input_tokens, first.output_tokens, second.output_tokens) == (374, 44, 109)


def test_burstgpt_with_sessions_and_without() -> None:
    later = one(
        burstgpt,
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,9,2.5,GPT-4,472,18,490,Conversation log",
    )
    assert (later.at, later.session, later.duration) == (5.0, "9", 2.5)
    assert later.business == "Conversation log"
    first = one(
        burstgpt,
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "1106,ChatGPT,0,0,0,API log",
    )
    assert (first.session, first.duration, first.outcome) == ("", None, "failed")


WEKA = (
    '{"id":"s1","models":["m"],"block_size":64,"hash_id_scope":"local","tool_tokens":1,'
    '"system_tokens":2,"requests":['
    '{"t":0,"type":"s","model":"m","in":130,"out":9,"hash_ids":[1,2,3],"ttft":0.5,"api_time":2},'
    '{"t":5,"type":"subagent","agent_id":"x","requests":['
    '{"t":6,"type":"n","model":"m","in":64,"out":1,"hash_ids":[1],"think_time":1.5}]}]}'
)


def test_weka_sessions_with_their_sub_agents() -> None:
    first, inner = read(weka, WEKA)
    assert isinstance(first, Record)
    assert isinstance(inner, Record)
    assert (first.session, first.ttft, first.duration, first.output_tokens) == ("s1", 0.5, 2.0, 9)
    assert (inner.session, inner.think, inner.at) == ("s1/x", 1.5, 6.0)
    assert inner.hash_ids == first.hash_ids[:1]


def test_weka_block_ids_of_two_sessions_are_different_blocks() -> None:
    found = read(weka, WEKA, WEKA.replace('"s1"', '"s2"'))
    ids = [set(each.hash_ids) for each in found if isinstance(each, Record)]
    assert len(ids) == 4
    assert not (ids[0] | ids[1]) & (ids[2] | ids[3])


def test_a_weka_session_may_be_spread_over_lines() -> None:
    assert len(read(weka, *(f"{part}\n" for part in WEKA.replace("},", "},\n").split("\n")))) == 2


def test_an_aiperf_turn_without_a_timestamp_follows_the_one_before_it() -> None:
    first, second = read(
        aiperf,
        '{"timestamp":1000,"input_length":10,"output_length":1,"session_id":"a"}',
        '{"delay":500,"input_length":20,"output_length":1,"session_id":"a"}',
    )
    assert isinstance(first, Record)
    assert isinstance(second, Record)
    assert (first.at, second.at, second.think) == (1.0, 1.5, 0.5)


def test_aiperf_lines_with_content_are_refused_without_repeating_it() -> None:
    (bad,) = read(aiperf, '{"timestamp":0,"text_input":"secret","output_length":1}')
    assert isinstance(bad, Bad)
    assert "text_input" in bad.why
    assert "secret" not in bad.why


def test_guidellm_counts_seconds_and_reads_csv_too() -> None:
    line = one(
        guidellm,
        '{"timestamp":2.5,"input_length":600,"output_length":3,"hash_ids":[1,2],"duration":1}',
    )
    assert (line.at, line.hash_ids, line.duration) == (2.5, (1, 2), 1.0)
    cell = one(guidellm, "timestamp,input_length,output_length,conversation_id", "2.5,600,3,c1")
    assert (cell.at, cell.input_tokens, cell.session, cell.duration) == (2.5, 600, "c1", None)


def test_columns_may_have_other_names() -> None:
    (found,) = read(
        mooncake, '{"t_ms": 5, "input_length": 1, "output_length": 1}', t_ms="timestamp"
    )
    assert isinstance(found, Record)
    assert found.at == 0.005


@pytest.mark.parametrize(
    ("reader", "lines", "where", "why"),
    [
        pytest.param(mooncake, ["", "{"], "f:2", "truncated", id="no JSON"),
        pytest.param(mooncake, ["[1]"], "f:1", "one object, not list", id="no object"),
        pytest.param(
            mooncake, ['{"timestamp":0,"output_length":1}'], "f:1", "input_length", id="no length"
        ),
        pytest.param(
            mooncake,
            ['{"timestamp":0,"input_length":-1,"output_length":1}'],
            "f:1", "input_length", id="a negative length",
        ),
        pytest.param(
            mooncake,
            ['{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1,2]}'],
            "f:1", "2 blocks of 512 tokens for 512 input tokens (--block-tokens N",
            id="more blocks than tokens",
        ),
        pytest.param(
            mooncake,
            ['{"timestamp":0,"input_length":9,"output_length":1,"hash_ids":[1],"hash_rle":[[1,1]]}'],
            "f:1", "exclude each other", id="ids twice",
        ),
        pytest.param(
            mooncake,
            ['{"timestamp":0,"input_length":9,"output_length":1,"block_size":64}'],
            "f:1", "block_size is 64, but 512 before", id="another block size",
        ),
        pytest.param(
            azure,
            ["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,1,2"],
            "f:2", "'yesterday' is no moment", id="no moment",
        ),
        pytest.param(
            azure, ["TIMESTAMP,ContextTokens,GeneratedTokens", "1,2"],
            "f:2", "2 cells under 3 columns", id="a cell short",
        ),
        pytest.param(
            burstgpt, ["Timestamp,Model", "1,GPT-4"], "f:2", "it has no 'Response tokens'", id="no column"
        ),
        pytest.param(weka, ['{"id":"a"}'], "f:1", "requests", id="a session without requests"),
        pytest.param(
            weka, ['{"id":"a","requests":[{"t":0,"in":64,"out":1,"hash_ids":[1,2]}]}'],
            "f:1: $.requests[0]", "2 blocks of 64 tokens for 64", id="a request of a session",
        ),
        pytest.param(
            weka, ['{"id":"a","block_size":16,"requests":[]}'], "f:1", "block_size is 16",
            id="a session of other blocks",
        ),
        pytest.param(
            aiperf, ['{"input_length":1,"output_length":1}'], "f:1", "`timestamp`", id="no time"
        ),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_with_its_place_and_reason(
    reader: Reader, lines: list[str], where: str, why: str
) -> None:
    (bad,) = read(reader, *lines)
    assert isinstance(bad, Bad)
    assert bad.where == where
    assert why in bad.why
