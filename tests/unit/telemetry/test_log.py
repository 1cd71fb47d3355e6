"""Log lines."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from epp.clock import ManualClock
from epp.model import Ending, Outcome
from epp.observe.decisions import DecisionLog
from epp.telemetry.log import ConsoleFormatter, JsonFormatter, Seldom, level_of, set_up
from tests.support import build


def record(text: str = "hello", level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("epp.app", level, "app.py", 7, text, (), None)
    made.created = 1_700_000_000.25
    if fields:
        made.fields = fields
    return made


def line(made: logging.LogRecord) -> dict[str, object]:
    text = JsonFormatter().format(made)
    assert "\n" not in text
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def test_a_line_has_the_routers_keys() -> None:
    assert line(record()) == {
        "level": "info",
        "ts": "2023-11-14T22:13:20.250+00:00",
        "caller": "epp.app:7",
        "msg": "hello",
    }


def test_fields_are_added_and_replace_no_standard_key() -> None:
    shown = line(record(msg="evil", **{"x-request-id": "r-1", "odd": {1, 2} and object}))
    assert shown["msg"] == "hello"
    assert shown["x-request-id"] == "r-1"
    assert "object" in str(shown["odd"])


def test_a_request_id_that_is_not_utf_8_is_spelled_out() -> None:
    shown = line(record("about '\udcff'", **{"x-request-id": "r\udcfe"}))
    assert (shown["msg"], shown["x-request-id"]) == ("about '\\udcff'", "r\\udcfe")
    assert ConsoleFormatter().format(record(id="\udcfe")).endswith('\t{"id":"\\\\udcfe"}')


@pytest.mark.parametrize(
    ("level", "word"),
    [
        (logging.DEBUG, "debug"),
        (logging.INFO, "info"),
        (logging.WARNING, "warn"),
        (logging.ERROR, "error"),
        (logging.CRITICAL, "error"),
    ],
)
def test_level_words(level: int, word: str) -> None:
    assert line(record(level=level))["level"] == word


def test_a_line_break_in_a_message_stays_in_its_line() -> None:
    assert line(record("a\nb"))["msg"] == "a\nb"


def test_a_traceback_is_one_field() -> None:
    made = record()
    try:
        [].pop()
    except IndexError:
        made.exc_info = sys.exc_info()
    assert "IndexError" in str(line(made)["stacktrace"])


def test_the_console_has_the_same_for_people() -> None:
    shown = ConsoleFormatter().format(record(**{"x-request-id": "r-1"}))
    assert shown.split("\t") == [
        "2023-11-14T22:13:20.250+00:00",
        "info",
        "epp.app:7",
        "hello",
        '{"x-request-id":"r-1"}',
    ]


@pytest.mark.parametrize(
    ("verbosity", "level"),
    [
        (-1, logging.ERROR),
        (0, logging.WARNING),
        (1, logging.WARNING),
        (2, logging.INFO),
        (3, logging.INFO),
        (4, logging.DEBUG),
        (5, logging.DEBUG),
    ],
)
def test_verbosity(verbosity: int, level: int) -> None:
    assert level_of(verbosity) == level


def test_a_repeated_message_is_held_back_and_counted() -> None:
    clock, said = ManualClock(), list[str]()
    seldom = Seldom(clock, said.append, seconds=60)
    for _ in range(3):
        seldom("ouch")
    seldom("other")
    clock.advance(60)
    seldom("ouch")
    assert said == ["ouch", "other", "ouch (2 more like this held back)"]


def test_messages_of_one_kind_are_held_back_together() -> None:
    said = list[str]()
    seldom = Seldom(ManualClock(), said.append)
    seldom("a failed", kind="failed")
    seldom("b failed", kind="failed")
    assert said == ["a failed"]


def test_the_kinds_kept_are_bounded() -> None:
    clock, said = ManualClock(), list[str]()
    seldom = Seldom(clock, said.append, kinds=2)
    for text in ("a", "b", "c"):
        clock.advance(1)
        seldom(text)
    seldom("a")  # forgotten for "c": said again
    seldom("c")
    assert said == ["a", "b", "c", "a"]


def logged(capsys: pytest.CaptureFixture[str], **set_up_options: object) -> list[dict[str, object]]:
    """What one decision, at verbosity 4, writes to stderr."""
    root, ours = logging.getLogger(), logging.getLogger("epp")
    before = (root.handlers[:], root.level, ours.level)
    try:
        set_up(4, "json", **set_up_options)  # type: ignore[arg-type]
        asked = build.request(
            model="a", target_model="b", objective="batch", priority=-1, prompt=b"secret"
        )
        observer = DecisionLog()
        observer.picked(asked, build.pick("a"))
        observer.ended(asked, build.pick("a"), Ending(Outcome.COMPLETED, 1.0, status=200))
    finally:
        root.handlers[:], root.level, ours.level = before[0], before[1], before[2]
        root.manager._clear_cache()  # type: ignore[attr-defined]
    text = capsys.readouterr().err
    assert "secret" not in text
    return [json.loads(each) for each in text.splitlines()]


ROUTERS = {
    "x-request-id": "r-1",
    "objectiveKey": "batch",
    "incomingModelName": "a",
    "targetModelName": "b",
    "priority": -1,
}


def test_a_decision_is_logged_with_the_routers_keys(capsys: pytest.CaptureFixture[str]) -> None:
    picked, ended = logged(capsys)
    assert {key: picked[key] for key in ROUTERS} == ROUTERS
    assert {key: ended[key] for key in ROUTERS} == ROUTERS
    assert (picked["msg"], picked["destination"]) == ("picked", "10.0.0.1:8000")
    assert (ended["msg"], ended["outcome"], ended["status"]) == ("ended", "completed", 200)
    assert set(picked) - set(ROUTERS) == {"level", "ts", "caller", "msg", "destination", "profile"}


def test_what_is_logged_within_a_trace_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    for trace, keys in (("0af7", ["0af7", "0af7"]), ("", [None, None])):
        lines = logged(capsys, trace_id=lambda trace=trace: trace)
        assert [line.get("trace_id") for line in lines] == keys
        assert lines[0]["x-request-id"] == "r-1"
