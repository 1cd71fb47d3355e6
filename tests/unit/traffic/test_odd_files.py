"""Files of traces as they are found: read as they were meant, or refused with file, line and reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from epp.recording.record import Record
from epp.traffic.files import Reading, read_trace, write_trace
from epp.traffic.formats import inference_perf
from epp.traffic.trace import Trace, TraceError

LINE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
MOMENT = "2023-11-16 18:15:46.6805900"


def read(folder: Path, data: str | bytes, *, name: str = "t", format: str = "auto") -> Trace:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_trace([str(path)], Reading(format=format))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (gzip.compress(b"\xef\xbb\xbf" + LINE.encode()), "t.jsonl.gz"),
        (gzip.compress(LINE.encode()), "t.jsonl"),
        (LINE, "t.jsonl.gz"),
        ("\n \n" + LINE, "t.jsonl"),
        (LINE.replace("\n", "\r\n"), "t.jsonl"),
    ],
    ids=["gzip with a mark", "gzip of another name", "plain of gzip's name", "empty lines", "CRLF"],
)
def test_how_a_file_is_packed_is_seen_from_what_is_in_it(
    data: str | bytes, name: str, tmp_path: Path
) -> None:
    (record,) = read(tmp_path, data, name=name).records
    assert record == Record(at=0.0, input_tokens=600, output_tokens=5, runs=((1, 2),))


def test_a_first_line_may_be_long_and_name_its_kind_at_the_end(tmp_path: Path) -> None:
    ids = ",".join(map(str, range(20_000)))
    line = f'{{"hash_ids":[{ids}],"block_size":16,"timestamp":0,"input_length":320000,"output_length":1}}'
    trace = read(tmp_path, line)
    assert (trace.block_tokens, trace.records[0].runs) == (16, ((0, 20_000),))


@pytest.mark.parametrize(
    "text",
    [
        f"GeneratedTokens,TIMESTAMP,Note,ContextTokens\n44,{MOMENT},x,374\n",
        f"TIMESTAMP, ContextTokens, GeneratedTokens\n{MOMENT}, 374, 44\n",
        f"\n{AZURE}{MOMENT},374.0,44\n",
    ],
)
def test_columns_come_in_any_order_and_with_spaces(text: str, tmp_path: Path) -> None:
    (record,) = read(tmp_path, text).records
    assert (record.input_tokens, record.output_tokens) == (374, 44)


def test_ids_that_are_hashes_or_below_zero_get_numbers_that_mean_the_same(tmp_path: Path) -> None:
    line = '{"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [%s]}\n'
    text = line % f"{2**64 - 1}, -7" + line % f"{2**64 - 1}, {10**30}"
    first, second = read(tmp_path, text).records
    assert (first.hash_ids, second.hash_ids) == ((0, 1), (0, 2))


def test_a_later_turn_may_tell_its_delay_though_the_first_line_looks_like_mooncake_s(
    tmp_path: Path,
) -> None:
    turn = '"input_length": 5, "output_length": 1, "session_id": "a"}\n'
    text = '{"timestamp": 1000, ' + turn + '{"delay": 500, ' + turn
    trace = read(tmp_path, text)
    assert [(each.at, each.think) for each in trace.records] == [(0.0, None), (0.5, 0.5)]


@pytest.mark.parametrize("format", ["mooncake", "aiperf"])
def test_what_is_null_is_not_told(format: str, tmp_path: Path) -> None:
    text = LINE.replace("}", ', "text_input": null, "session_id": null, "delay": null}')
    (record,) = read(tmp_path, text, format=format).records
    assert (record.session, record.hash_ids) == ("", (1, 2))


def test_a_session_over_many_lines_says_its_size_of_blocks_in_one_of_them(tmp_path: Path) -> None:
    text = (
        '{\n "id": "s",\n "block_size": 16,\n "requests": [\n'
        '  {"t": 0, "in": 32, "out": 1, "hash_ids": [1, 2]}\n ]\n}\n'
    )
    assert read(tmp_path, text, name="t.json").block_tokens == 16


@pytest.mark.parametrize(
    ("data", "format", "message"),
    [
        ("", "auto", "t: there is nothing in it"),
        (" \n\n", "azure", "t: there is nothing in it"),
        (b'{"timestamp": 0, "tenant": "m\xfcller"}\n', "mooncake", "t:1: it is no UTF-8"),
        (gzip.compress(LINE.encode() * 99)[:-12], "auto", "t: Compressed file ended before"),
        (LINE + LINE.replace("0,", '"inf",', 1), "auto", "t:2: timestamp is 'inf'"),
        (LINE + LINE.replace("0,", "1e300,", 1), "auto", "t:2: .*timestamp"),
        (LINE + LINE.replace("600", "1" + "0" * 15), "auto", "t:2: .*input_length"),
        (AZURE + f"{MOMENT},nan,44\n", "auto", "t:2: ContextTokens is 'nan'"),
        (AZURE + f"{MOMENT},-4,44\n", "auto", "t:2: ContextTokens is '-4'"),
        (AZURE + f"{MOMENT},4.5,44\n", "auto", "t:2: ContextTokens is '4.5', .*no whole number"),
        (AZURE + f"{MOMENT},,44\n", "auto", "t:2: ContextTokens is ''"),
        (
            f"TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n{MOMENT},4,6,5\n",
            "auto", "t:1: column 'ContextTokens' is there twice",
        ),
        (BURST + "inf,m,4,5,9,API log\n", "auto", "t:2: Timestamp is 'inf'"),
        (BURST + "1,m,4,x,9,API log\n", "auto", "t:2: Response tokens is 'x'"),
        (
            '{"chat_id":1,"timestamp":0,"input_length":4,"output_length":3,"hash_ids":[1,2]}',
            "auto", "t:1: 2 blocks of 16 tokens for 4 input tokens",
        ),
        ('{"id":"s","requests":[{"t":0,"out":4}]}', "auto", r"t:1: \$.requests\[0\]: .* no 'in'"),
        ('{"id":"s","requests":[{"t":0,"in":4}]}', "auto", r"t:1: \$.requests\[0\]: .* no 'out'"),
        (
            '{"id":"s","requests":[{"t":0,"in":4,"out":1}]}\n' * 2,
            "auto", "t:2: session 's' is there twice",
        ),
        (
            '{"delay":"nan","input_length":7,"output_length":1,"session_id":"a"}',
            "auto", "t:1: delay is 'nan'",
        ),
        ("timestamp,input_length,output_length\nnan,1,1\n", "auto", "t:2: timestamp is 'nan'"),
        (
            '{"delay":5,"input_length":7,"output_length":1,"session_id":"a"}',
            "auto", "t:1: it has a delay, but no request of its session is before it",
        ),
        (LINE + "[" * 100_000, "auto", "t:2: it is nested too deep"),
        (
            '{"id":"s","requests":[' + '{"t":0,"type":"subagent","requests":[' * 900 + "]}" * 901,
            "auto", "t:1: it is nested too deep",
        ),
        (AZURE.strip() + "," + "x" * 200_000 + "\n", "auto", "t:1: field larger than"),
        (
            LINE.replace("[1, 2]", f"[[{2**62}, 2]]").replace("hash_ids", "hash_rle"),
            "auto", "t:1: hash_rle has numbers from 0 to",
        ),
        (
            LINE.replace("600", "2147483647").replace("[1, 2]", "[[0, 4194305]]")
            .replace("hash_ids", "hash_rle").replace("5,", '5, "block_size": 64,'),
            "auto", "t:1: 4194305 blocks in one prompt",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_named_with_file_and_line(
    data: str | bytes, format: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError, match=message):
        read(tmp_path, data, format=format)


def test_names_of_any_script_are_written_and_read_again(tmp_path: Path) -> None:
    record = Record(at=0.0, input_tokens=5, output_tokens=1, tenant="müller", business="債券")
    for name in ("t.jsonl", "t.jsonl.gz"):
        path = str(tmp_path / name)
        write_trace(Trace((record,), 512), path, "mooncake")
        assert read_trace([path]).records == (record,)


def test_a_pause_of_years_costs_inference_perf_s_configuration_nothing() -> None:
    records = tuple(Record(at=at, input_tokens=5, output_tokens=1) for at in (0.0, 1e13))
    text = inference_perf.write(Trace(records, 512))
    assert text.count("rate: 0.0167") == 2


def test_a_format_that_there_is_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="format 'moon' is none of auto, mooncake"):
        read(tmp_path, LINE, format="moon")
