"""Any trace there and back, in every format; and any odd row beside good ones is named alone."""

from __future__ import annotations

import gzip
import itertools
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.recording.record import Record, shortened
from epp.traffic.files import READERS, Reading, read_trace, write_trace
from epp.traffic.formats import aiperf
from epp.traffic.formats.reading import Source
from epp.traffic.trace import Bad, Trace, TraceError

BLOCK = 16
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
MOMENTS = st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000)
MAYBE_MOMENTS = st.none() | MOMENTS
LENGTHS = st.integers(0, 2000)


@st.composite
def records(draw: st.DrawFn) -> Record:
    tokens = draw(LENGTHS)
    most = -(-tokens // BLOCK)
    ids = draw(st.lists(st.integers(0, 40), max_size=min(most, 6)))
    count = st.none() | LENGTHS
    return Record(
        at=draw(MOMENTS), input_tokens=tokens, output_tokens=draw(LENGTHS), runs=shortened(ids),
        id=draw(NAMES), parent=draw(NAMES), session=draw(NAMES), business=draw(NAMES),
        tenant=draw(NAMES), family=draw(NAMES), think=draw(MAYBE_MOMENTS), ttft=draw(MAYBE_MOMENTS),
        duration=draw(MAYBE_MOMENTS), counted_tokens=draw(count), cached_tokens=draw(count),
        predicted_tokens=draw(count), slot=draw(count), reason=draw(NAMES), outcome=draw(NAMES),
    )  # fmt: skip


def in_order(found: list[Record]) -> Trace:
    """A trace as readers make them: by time, the first one at 0."""
    ordered = sorted(found, key=lambda record: record.at)
    first = msgspec.structs.replace(ordered[0], at=0.0)
    return Trace((first, *ordered[1:]), BLOCK)


traces = st.lists(records(), min_size=1, max_size=8).map(in_order)


def read_back(trace: Trace, format: str, name: str) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / name)
        write_trace(trace, path, format)
        return read_trace([path], Reading(block_tokens=BLOCK))


@settings(deadline=None, max_examples=60)
@given(traces, st.sampled_from(["mooncake", "epp"]), st.sampled_from(["t.jsonl", "t.jsonl.gz"]))
def test_what_is_written_in_our_formats_is_read_again(trace: Trace, format: str, name: str) -> None:
    assert read_back(trace, format, name) == trace


@settings(deadline=None, max_examples=60)
@given(traces)
def test_aiperf_keeps_lengths_blocks_sessions_and_when_conversations_begin(trace: Trace) -> None:
    lines = list(aiperf.write(trace))
    found = [each for each in aiperf.read(Source("f", lines, BLOCK)) if isinstance(each, Record)]
    seen: set[str] = set()
    for one, other in zip(trace.records, found, strict=True):
        for field in ("input_tokens", "output_tokens", "runs", "session"):
            assert getattr(one, field) == getattr(other, field)
        if one.session not in seen or not one.session:
            assert other.at == pytest.approx(one.at)
        elif one.think is not None:
            assert other.think == pytest.approx(one.think)
        seen.add(one.session)


# --- formats that are only read: their lines are written here, after their specifications ---------


def mooncake_line(at: float, tokens: int, output: int, ids: Sequence[int]) -> str:
    row = {"timestamp": at * 1000, "input_length": tokens, "output_length": output}
    return msgspec.json.encode({**row, "hash_ids": ids, "block_size": BLOCK}).decode()


def guidellm_line(at: float, tokens: int, output: int, ids: Sequence[int]) -> str:
    row = {"timestamp": at, "input_length": tokens, "output_length": output, "hash_ids": ids}
    return msgspec.json.encode({**row, "block_size": BLOCK}).decode()


def bailian_line(at: float, tokens: int, output: int, ids: Sequence[int]) -> str:
    row = {"chat_id": 7, "parent_chat_id": -1, "timestamp": at, "input_length": tokens}
    return msgspec.json.encode({**row, "output_length": output, "hash_ids": ids}).decode()


_sessions = itertools.count()


def weka_line(at: float, tokens: int, output: int, ids: Sequence[int]) -> str:
    call = {"t": at, "type": "n", "in": tokens, "out": output, "hash_ids": ids}
    session = {"id": f"s{next(_sessions)}", "block_size": BLOCK, "requests": [call]}
    return msgspec.json.encode(session).decode()


def azure_line(at: float, tokens: int, output: int, _ids: Sequence[int]) -> str:
    moment = datetime.fromtimestamp(1_700_000_000 + int(at), UTC)
    part = f"{at % 1:.7f}"[1:]
    return f"{moment:%Y-%m-%d %H:%M:%S}{part},{tokens},{output}"


def burstgpt_line(at: float, tokens: int, output: int, _ids: Sequence[int]) -> str:
    return f"{at!r},ChatGPT,{tokens},{output},{tokens + output},API log"


Written = Callable[[float, int, int, Sequence[int]], str]
JSON: dict[str, Written] = {
    "mooncake": mooncake_line, "aiperf": mooncake_line, "guidellm": guidellm_line,
    "bailian": bailian_line, "weka": weka_line,
}  # fmt: skip
TABLES: dict[str, tuple[str, Written]] = {
    "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens", azure_line),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", burstgpt_line,
    ),
}  # fmt: skip
FORMATS = [*JSON, *TABLES]


def head_of(format: str) -> list[str]:
    return [TABLES[format][0]] if format in TABLES else []


def writer_of(format: str) -> Written:
    return TABLES[format][1] if format in TABLES else JSON[format]


rows = st.lists(
    st.tuples(
        st.integers(0, 10**7).map(lambda ms: ms / 1000), st.integers(1, 500), st.integers(1, 500)
    ),
    min_size=1, max_size=8,
)  # fmt: skip


def read(format: str, lines: list[str]) -> list[Record | Bad]:
    return list(READERS[format].read(Source("f", lines, BLOCK)))


@pytest.mark.parametrize("format", FORMATS)
@settings(deadline=None, max_examples=30)
@given(rows)
def test_lengths_and_the_time_between_requests_are_read_as_written(
    format: str, given_rows: list[tuple[float, int, int]]
) -> None:
    write = writer_of(format)
    lines = head_of(format) + [write(*row, list(range(-(-row[1] // BLOCK)))) for row in given_rows]
    found = [each for each in read(format, lines) if isinstance(each, Record)]
    assert [(r.input_tokens, r.output_tokens) for r in found] == [row[1:] for row in given_rows]
    for one, row in zip(found, given_rows, strict=True):
        assert one.at - found[0].at == pytest.approx(row[0] - given_rows[0][0], abs=2e-6)
        wanted = -(-row[1] // BLOCK) if format in JSON else 0
        assert len(one.hash_ids) == wanted
    if format in ("mooncake", "aiperf", "guidellm"):  # equal blocks are equal, chained or not
        assert len({record.hash_ids[:1] for record in found}) == 1


ODD_JSON = ["-1", "1.5", '"x"', "[]", "{}", "true", "null", "NaN", "1e400", '"nan"', "9" * 30]
ODD_CELLS = ["", "-1", "1.5", "x", "nan", "inf", "1e999", "9" * 30]


def broken(format: str, odd: str) -> str:
    """A line whose prompt length is ``odd``."""
    line = writer_of(format)(1.0, 48_611, 5, [])
    assert line.count("48611") >= 1
    return line.replace("48611", odd, 1)


@pytest.mark.parametrize("format", FORMATS)
@settings(deadline=None, max_examples=80)
@given(st.data())
def test_an_odd_row_is_named_by_its_line_and_no_other_row_is_lost(
    format: str, data: st.DataObject
) -> None:
    odd = ODD_JSON if format in JSON else ODD_CELLS
    line = writer_of(format)(1.0, 30, 5, [])
    cut = [line[:-1] if format in JSON else line[:12]]  # a writer ended in the middle of it
    # WEKA's sessions may be spread over lines; each of these begins one, so that they are told apart.
    nested = '{"id": "x", "requests": ' + "[" * 100_000
    deep = [nested] if format in JSON else ["x" * 200_000]
    choices = [broken(format, each) for each in odd] + cut + deep
    wrong = data.draw(st.lists(st.booleans(), min_size=1, max_size=8))
    lines = head_of(format)
    bad_lines: list[int] = []
    for i, is_wrong in enumerate(wrong):
        if is_wrong:
            bad_lines.append(len(lines) + 1)
            lines.append(data.draw(st.sampled_from(choices)))
        else:
            lines.append(writer_of(format)(float(i), 100 + i, 5, []))
    found = read(format, lines)
    named = [each.where.split(": ")[0] for each in found if isinstance(each, Bad)]
    assert named == [f"f:{number}" for number in bad_lines]
    kept = [each.input_tokens for each in found if isinstance(each, Record)]
    assert kept == [100 + i for i, is_wrong in enumerate(wrong) if not is_wrong]


@pytest.mark.parametrize("format", FORMATS)
@settings(deadline=None, max_examples=30)
@given(rows, st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_how_a_file_is_packed_changes_nothing(
    format: str,
    given_rows: list[tuple[float, int, int]],
    mark: bool,
    crlf: bool,
    packed: bool,
    last: bool,
) -> None:
    lines = head_of(format) + [writer_of(format)(*row, [0]) for row in given_rows]
    text = "\n".join(lines) + "\n"
    odd = "\ufeff" * mark + "\n\n".join(lines) + "\n" * last
    data = odd.replace("\n", "\r\n" if crlf else "\n").encode()
    with tempfile.TemporaryDirectory() as folder:
        plain, other = Path(folder) / "plain", Path(folder) / "other"
        plain.write_text(text)
        other.write_bytes(gzip.compress(data) if packed else data)
        one, two = (read_trace([str(path)], Reading(format=format)) for path in (plain, other))
    assert one == two
    assert [record.at for record in one.records] == sorted(record.at for record in one.records)
    assert one.records[0].at == 0.0


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=200), st.sampled_from(["auto", *READERS]), st.booleans())
def test_any_file_is_a_trace_or_is_refused_by_its_name(
    data: bytes,
    format: str,
    packed: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        path.write_bytes(gzip.compress(data) if packed else data)
        try:
            assert read_trace([str(path)], Reading(format=format)).records
        except TraceError as error:
            assert str(path) in str(error)
