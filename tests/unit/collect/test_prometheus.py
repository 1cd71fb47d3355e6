"""Finding and reading the wanted lines of an exposition page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.collect.parse.prometheus import (
    LEAST_LINE,
    MAX_METRIC_BYTES,
    Reader,
    Selector,
    parse_selector,
)


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        pytest.param("vllm:x", Selector("vllm:x"), id="a name"),
        pytest.param("x{}", Selector("x"), id="no labels"),
        pytest.param("x{a=b}", Selector("x", {"a": "b"}), id="one label"),
        pytest.param(' x { a = "b" , c=d } ', Selector("x", {"a": "b", "c": "d"}), id="quoted"),
        pytest.param("x{a=b,}", Selector("x", {"a": "b"}), id="trailing comma"),
    ],
)
def test_selectors(text: str, selector: Selector) -> None:
    assert parse_selector(text) == selector


@pytest.mark.parametrize(
    "text", ["", "{a=b}", "x{a}", "x{a=b", "x{a=b}}", "1x", "x y", "x{a=b c=d}"]
)
def test_a_malformed_selector_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="metric_name") as caught:
        parse_selector(text)
    assert repr(text) in str(caught.value)


PAGE = b"""# HELP q Waiting.
# TYPE q gauge
q{engine="0"} 3
q{engine="1"} 4.5
q_by_reason{engine="0"} 9
other 7
bare 2 1700000000000
q{engine="2" 1
last NaN"""


def values(page: bytes, name: str, **labels: str) -> list[float]:
    return [s.value for s in Reader([name]).read(page).select(Selector(name, labels))]


def test_only_series_of_the_whole_name_are_found() -> None:
    assert values(PAGE, "q") == [3.0, 4.5]


def test_labels_choose_among_series() -> None:
    assert values(PAGE, "q", engine="1") == [4.5]


def test_a_broken_line_spoils_no_other_and_is_counted() -> None:
    assert Reader(["q"]).read(PAGE).unreadable == 1


def test_a_page_full_of_one_metric_is_read_in_part_and_spoils_no_other() -> None:
    page = b"".join(b'q{m="%d"} 1\n' % number for number in range(50_000)) + b"r 2\n"
    found = Reader(["q", "r"]).read(page)
    assert len(found.select(Selector("q"))) == MAX_METRIC_BYTES // LEAST_LINE == 1024
    assert [sample.value for sample in found.select(Selector("r"))] == [2.0]
    assert found.unreadable == 1


def test_long_lines_use_up_what_a_metric_may_have_and_overlong_ones_do_not() -> None:
    long, overlong = b'q{m="%s"} 1\n' % (b"a" * 10_000), b'q{m="%s"} 1\n' % (b"a" * 300_000)
    found = Reader(["q"]).read(overlong + b"".join(long.replace(b"1", b"2") for _ in range(40)))
    assert len(found.select(Selector("q"))) == 26  # of 10,010 bytes: 262,144 bytes hold 26
    assert found.unreadable == 2


def test_the_first_and_the_last_line_are_found_without_line_ends() -> None:
    assert values(b"q 1\nr 2", "q") == [1.0]
    assert values(b"q 1\nr 2", "r") == [2.0]


def test_a_timestamp_is_not_a_value() -> None:
    assert values(PAGE, "bare") == [2.0]


def test_windows_line_ends_are_read() -> None:
    assert values(b"q 1\r\nr 2\r\n", "q") == [1.0]


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(noise: bytes) -> None:
    Reader(["q"]).read(b"q" + noise + b"\nq " + noise)


@given(st.text(max_size=40), st.floats(allow_nan=False))
def test_a_sample_is_read_back_whatever_its_label(label: str, value: float) -> None:
    escaped = label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    page = f'q{{l="{escaped}"}} {value}\n'.encode()
    assert values(page, "q") == [value]
