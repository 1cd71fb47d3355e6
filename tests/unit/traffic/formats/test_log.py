"""Logs of requests: units, moments, vLLM's names, and what cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from epp.recording.record import Record
from epp.traffic.files import Reading, read_trace
from epp.traffic.formats import log
from epp.traffic.formats.reading import Source
from epp.traffic.trace import Bad, TraceError


def read(*lines: str) -> list[Record | Bad]:
    return list(log.read(Source("f", lines, log.block_tokens)))


def test_a_table_in_seconds_and_lines_in_milliseconds_tell_the_same() -> None:
    table = read(
        "arrival_s,input_tokens,output_tokens,cached_tokens,ttft_s,e2e_s,class",
        "1.5,900,7,640,0.25,1.75,chat",
    )
    lines = read(
        '{"arrival_ms": 1500, "input_tokens": 900, "output_tokens": 7, "cached_tokens": 640, '
        '"ttft_ms": 250, "e2e_ms": 1750, "class": "chat"}'
    )
    assert table == lines
    assert table == [
        Record(
            at=1.5, input_tokens=900, output_tokens=7, cached_tokens=640, ttft=0.25, duration=1.75,
            business="chat",
        )
    ]  # fmt: skip


def test_what_is_not_told_is_not_there() -> None:
    (found,) = read("arrival_s,input_tokens,output_tokens,ttft_s,e2e_s,outcome", "0,9,1,,,failed")
    assert isinstance(found, Record)
    assert (found.ttft, found.duration, found.cached_tokens) == (None, None, None)
    assert found.outcome == "failed"
    (fine,) = read("arrival_s,input_tokens,output_tokens,outcome", "0,9,1,ok")
    assert isinstance(fine, Record)
    assert fine.outcome == ""


def test_vllm_s_moments_are_of_the_engine_s_clock(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(
        '{"request_id": "a", "input_toks": 100, "output_toks": 5, "arrival_time": 1787267980.08, '
        '"queued_ts": 27536.5, "scheduled_ts": 27536.6, "first_token_ts": 27537.25, '
        '"last_token_ts": 27540.5}\n'
    )
    trace = read_trace([str(path)])
    (found,) = trace.records
    assert trace.block_tokens == 16
    assert (found.at, found.ttft, found.duration) == (0.0, 0.75, 4.0)


def test_columns_of_other_names_are_renamed_in_tables_too(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("start,prompt,answer,ttft_s,e2e_s\n3,100,5,0.5,1\n4,100,5,0.5,1\n")
    columns = {"start": "arrival_s", "prompt": "input_tokens", "answer": "output_tokens"}
    trace = read_trace([str(path)], Reading(columns=columns))
    assert [each.at for each in trace.records] == [0.0, 1.0]
    assert trace.records[1].ttft == 0.5


@pytest.mark.parametrize(
    ("header", "line", "why"),
    [
        ("input_tokens,output_tokens", "9,1", "has no 'arrival_s'"),
        ("arrival_s,output_tokens", "9,1", "has no 'input_tokens'"),
        ("arrival_s,input_tokens,output_tokens,ttft_s", "0,9,1,-1", "ttft_s is '-1'"),
        ("arrival_s,input_tokens,output_tokens,ttft_s", "0,9,1,nan", "ttft_s is 'nan'"),
        ("arrival_s,input_tokens,output_tokens", "0,9.5,1", "no whole number"),
        ("arrival_s,arrival_ms,input_tokens,output_tokens", "0,0,9,1", "both arrival_s and arriv"),
        ("arrival_s,input_tokens,output_tokens,ttft_s,e2e_s", "0,9,1,2,1", "before its first tok"),
        ("arrival_s,input_tokens,output_tokens,first_token_s", "5,9,1,4", "1000 ms before its arr"),
        ("arrival_s,input_tokens,output_tokens,cached_tokens", "0,9,1,10", "is 10, of 9 input"),
    ],
)
def test_what_cannot_be_meant_is_named(header: str, line: str, why: str) -> None:
    (found,) = read(header, line)
    assert isinstance(found, Bad)
    assert found.where == "f:2"
    assert why in found.why


def test_a_bad_line_of_a_log_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,9,1\n0,9,\n")
    with pytest.raises(TraceError, match=r"log\.csv:3: output_tokens is ''"):
        read_trace([str(path)])
