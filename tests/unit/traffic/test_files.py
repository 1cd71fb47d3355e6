"""Files of traces: which format it is, what becomes of bad lines, several files as one trace."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from epp.cli import main
from epp.recording.record import Record
from epp.traffic.files import Reading, read_trace, write_trace
from epp.traffic.trace import Trace, TraceError, regrouped, trace_of

GOOD = '{"timestamp": %d, "input_length": 600, "output_length": 5, "hash_ids": [0, %d]}\n'


def test_a_trace_begins_at_zero_and_is_in_order(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD % (9000, 2) + GOOD % (8000, 1))
    trace = read_trace([str(path)])
    assert [record.at for record in trace.records] == [0.0, 1.0]
    assert (trace.block_tokens, trace.seconds) == (512, 1.0)


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD % (0, 1) + "{\n" + GOOD % (1, 2) + '{"timestamp": 1}\n')
    with pytest.raises(TraceError) as raised:
        read_trace([str(path)])
    assert f"{path}:2: " in str(raised.value)
    assert f"{path}:4: " in str(raised.value)


def test_bad_lines_may_be_left_out_but_stay_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD % (0, 1) + "{\n" + GOOD % (1, 2))
    trace = read_trace([str(path)], Reading(skip_bad=True))
    assert len(trace.records) == 2
    assert [bad.where for bad in trace.bad] == [f"{path}:2"]


def test_a_file_of_no_known_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match="cannot be told from its first line"):
        read_trace([str(path)])


def test_an_empty_file_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n")
    with pytest.raises(TraceError, match="nothing in it"):
        read_trace([str(path)], Reading(format="mooncake"))


def test_two_files_that_number_their_blocks_have_none_in_common(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(GOOD % (0, 1))
    first, second = read_trace([str(tmp_path)]).records
    assert set(first.hash_ids).isdisjoint(second.hash_ids)


def test_files_of_one_recording_share_their_blocks(tmp_path: Path) -> None:
    record = Record(at=0.0, input_tokens=600, output_tokens=1, runs=((7, 1),))
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_trace(Trace((record,), 512), str(tmp_path / name), "epp")
    first, second = read_trace([str(tmp_path)]).records
    assert first.hash_ids == second.hash_ids == (7,)


def test_a_recording_is_read_though_some_of_its_files_are_empty(tmp_path: Path) -> None:
    for name in ("r.jsonl", "r.jsonl.lock"):  # the file just begun, and the picker's lock
        (tmp_path / name).touch()
    (tmp_path / "r.jsonl.1.gz").write_bytes(gzip.compress((GOOD % (0, 1)).encode()))
    assert len(read_trace([str(tmp_path)]).records) == 1
    with pytest.raises(TraceError, match="there is nothing in it"):
        read_trace([str(tmp_path / "r.jsonl"), str(tmp_path / "r.jsonl.lock")])


def test_files_of_one_recording_may_begin_with_requests_of_unknown_blocks(tmp_path: Path) -> None:
    blind = '{"timestamp": %d, "input_length": 9, "output_length": 1}\n'
    seeing = (
        '{"timestamp": %d, "input_length": 90, "output_length": 1, '
        '"hash_rle": [[7, 2]], "block_size": 64}\n'
    )
    (tmp_path / "a.jsonl").write_text(blind % 0 + seeing % 1)
    (tmp_path / "b.jsonl").write_text(blind % 2 + seeing % 3)
    (tmp_path / "c.jsonl").write_text(blind % 4)
    trace = read_trace([str(tmp_path)])
    assert trace.block_tokens == 64
    assert [record.hash_ids for record in trace.records] == [(), (7, 8), (), (7, 8), ()]


def test_traces_of_two_block_sizes_are_not_mixed(tmp_path: Path) -> None:
    for size in (64, 128):
        trace = Trace((Record(at=0.0, input_tokens=600, output_tokens=1),), size)
        write_trace(trace, str(tmp_path / f"{size}.jsonl"), "epp")
    with pytest.raises(TraceError, match=r"\[64, 128\]"):
        read_trace([str(tmp_path)])


def test_larger_blocks_take_the_id_of_their_last_small_one() -> None:
    record = Record(at=0.0, input_tokens=500, output_tokens=1, runs=((1, 5),))
    trace = regrouped(trace_of([record], 100), 200)
    assert trace.records[0].hash_ids == (2, 4)
    with pytest.raises(TraceError, match="blocks of 200 tokens cannot become 300"):
        regrouped(trace, 300)


def test_convert_writes_what_another_tool_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "t.jsonl.gz", tmp_path / "o.jsonl"
    with gzip.open(source, "wt") as file:
        file.write(GOOD % (0, 1) + GOOD % (2000, 2))
    assert main(["traffic", "convert", str(source), "--to", "aiperf", "--output", str(out)]) == 0
    said = capsys.readouterr().out
    assert "2 requests in 2 s" in said
    assert f"aiperf profile --input-file {out} " in said
    assert "--prompt-input-tokens-block-size 512 " in said
    assert out.read_text().splitlines()[1] == (
        '{"timestamp":2000.0,"input_length":600,"output_length":5,"hash_ids":[0,2]}'
    )


def test_convert_names_the_bad_line_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD % (0, 1) + "nonsense\n")
    assert main(["traffic", "convert", str(path), "--output", str(tmp_path / "o")]) == 2
    assert f"{path}:2: " in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
