"""``request-attribute-reporter``: values worked out by hand, and every way to fail softly.

**Source:** llm-d's plugin of that name: numbers are doubles, results are cut to whole numbers and
go to ``envoy.lb`` unless told otherwise. CEL specification: no operator mixes number types.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from epp.model import Usage
from epp.observe.reporter import MAX_EXPRESSION, RequestAttributeReporter
from tests.support import build

USAGE = Usage(prompt_tokens=10, completion_tokens=3, cached_tokens=4)


def reporter(*attributes: dict[str, Any]) -> RequestAttributeReporter:
    params = msgspec.convert({"attributes": attributes}, RequestAttributeReporter.Params)
    return RequestAttributeReporter(params, build.tools())


def attribute(expression: str, condition: str = "", **key: str) -> dict[str, Any]:
    return {"key": {"name": "cost", **key}, "expression": expression, "condition": condition}


def value(expression: str, condition: str = "", usage: Usage = USAGE) -> float | None:
    """The reported value; None if nothing was reported."""
    made = reporter(attribute(expression, condition))
    found = made.report(build.request(), build.pick(), usage)
    return found["envoy.lb"]["cost"] if found else None


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("usage.prompt_tokens", 10),
        ("usage.completion_tokens", 3),
        ("usage.total_tokens", 13),
        ("usage.prompt_tokens + usage.completion_tokens", 13),
        ("usage.prompt_tokens_details.cached_tokens", 4),
        ("usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens", 6),
        ("usage.prompt_tokens * 0.25", 2),  # 2.5, cut
        ("usage.prompt_tokens * -0.25", -2),  # cut towards 0
        ("usage.prompt_tokens / 4.0", 2),  # 2.5, cut
        ("usage.prompt_tokens * 2", 20),  # integers, since doubles do not fit
        ("usage.prompt_tokens / 4", 2),
        ("usage.prompt_tokens * 1 + usage.completion_tokens * 4", 22),
        ("(has(usage.prompt_tokens) ? usage.prompt_tokens : 0) + 1", 11),
        ("has(usage.reasoning_tokens) ? usage.reasoning_tokens : 7", 7),
        ("int(usage.prompt_tokens) % 4", 2),
        ("usage['prompt_tokens']", 10),
        ("  usage.prompt_tokens\n", 10),
    ],
)
def test_an_expression_has_the_value_worked_out_by_hand(expression: str, expected: int) -> None:
    assert value(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "usage.reasoning_tokens",  # not there
        "usage.prompt_tokens / 0",
        "usage.prompt_tokens / 0.0",  # infinite
        "0.0 / 0.0",  # not a number
        "usage.prompt_tokens + 9223372036854775807",  # over 64 bits
        "usage.prompt_tokens > 5.0",  # a truth, no number
        "'ten'",
        "usage",
        "null",
        "usage.prompt_tokens + 'x'",
    ],
)
def test_what_is_no_finite_number_is_not_reported(expression: str) -> None:
    assert value(expression) is None


def test_a_failing_attribute_leaves_the_others() -> None:
    made = reporter(
        attribute("usage.none", name="a"),
        attribute("usage.prompt_tokens", name="b"),
        attribute("usage.completion_tokens", name="c", namespace="mine"),
    )
    found = made.report(build.request(), build.pick(), USAGE)
    assert found == {"envoy.lb": {"b": 10.0}, "mine": {"c": 3.0}}


@pytest.mark.parametrize(
    ("condition", "reported"),
    [
        ("", True),
        ("true", True),
        ("false", False),
        ("has(usage.completion_tokens)", True),
        ("has(usage.reasoning_tokens)", False),
        ("usage.completion_tokens > 2.0 && usage.prompt_tokens > 9.0", True),
        ("usage.completion_tokens > 3.0", False),
        ("usage.completion_tokens", False),  # 3 is not true
        ("usage.reasoning_tokens > 1.0", False),  # an error is not true
    ],
)
def test_a_value_is_reported_where_its_condition_is_true(condition: str, reported: bool) -> None:
    assert value("usage.prompt_tokens", condition) == (10 if reported else None)


def test_an_answer_without_usage_reports_nothing_unless_the_expression_says_what() -> None:
    nothing = Usage()
    assert value("usage.prompt_tokens", usage=nothing) is None
    assert value("usage.total_tokens", usage=nothing) is None
    guarded = "has(usage.total_tokens) ? usage.total_tokens : 0.0"
    assert value(guarded, usage=nothing) == 0
    assert value(guarded, usage=Usage(prompt_tokens=0)) == 0
    assert value("usage.total_tokens", usage=Usage(completion_tokens=5)) == 5


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("usage.", "usage."),
        ("usage.prompt_tokens +", "usage.prompt_tokens +"),
        ("@", "@"),
        ("(" * 500 + "1" + ")" * 500, "parse"),
        ("request.body", "there is no 'request', only 'usage'"),
        ("prompt_tokens", "there is no 'prompt_tokens', only 'usage'"),
        ("[1, 2].map(x, x * 2).size()", "loops such as 'map' are not supported"),
        ("usage.all(k, true) ? 1 : 0", "loops such as 'all' are not supported"),
        ("[1] . exists_one (x, true) ? 1 : 0", "loops such as 'exists_one' are not supported"),
    ],
)
def test_what_can_never_work_is_refused_when_the_picker_starts(expression: str, said: str) -> None:
    for attributes in (attribute(expression), attribute("1", expression)):
        with pytest.raises(ValueError, match=re.escape(said)) as raised:
            reporter(attributes)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attributes": []},
        {"attributes": [attribute("1")] * 17},
        {"attributes": [attribute("")]},
        {"attributes": [attribute("1" * (MAX_EXPRESSION + 1))]},
        {"attributes": [attribute("1", name="")]},
        {"attributes": [attribute("1", namespace="")]},
        {"attributes": [{**attribute("1"), "unit": "tokens"}]},
        {},
    ],
)
def test_parameters_are_strict(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, RequestAttributeReporter.Params)


def test_a_panic_of_the_library_reports_nothing() -> None:
    class Panic(BaseException):
        """As the Rust binding raises them: no `Exception`."""

    class Panicking:
        def execute(self, variables: Any) -> Any:
            raise Panic

    made = reporter(attribute("1", name="a"), attribute("2", name="b"))
    made._attributes[0]._expression = Panicking()
    assert made.report(build.request(), build.pick(), USAGE) == {"envoy.lb": {"b": 2.0}}


WITHOUT = """
import sys
sys.modules["cel"] = None
from epp.cli import main
sys.exit(main(["serve", "--endpoints=127.0.0.1:9", "--tracing=false", "--config-text", '''
plugins:
- {type: request-attribute-reporter,
   parameters: {attributes: [{key: {name: cost}, expression: usage.total_tokens}]}}
''']))
"""


def test_without_the_extra_a_picker_that_needs_it_does_not_start() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 2
    assert "needs the module 'cel': pip install '.[cel]'" in ended.stderr.splitlines()[-1]
