"""The dashboard and the alert rules use what the picker writes, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.clock import SystemClock
from epp.errors import NoEndpoints
from epp.ledger import Ledger
from epp.model import Outcome
from epp.peers.sharing import Settings, Sharing
from epp.serve.counts import watch_peers
from epp.telemetry.metrics import Metrics
from epp.telemetry.table import METRICS
from tests.support import build
from tests.support.peers import Lane

ROOT = Path(__file__).parents[2]
FILES = ROOT / "charts" / "epp" / "files"
GUIDE = ROOT / "docs" / "dashboards.md"

#: Labels that Prometheus adds to what it scrapes.
SCRAPED = {"namespace", "job", "instance"}
WORDS = {
    "sum", "max", "min", "count", "topk", "by", "on", "and", "or", "rate", "absent", "histogram_quantile",
}  # fmt: skip
RATED = ("_total", "_bucket", "_sum", "_count")


@cache
def written() -> Mapping[str, set[str]]:
    """Every series there can be, with its labels."""
    found: dict[str, set[str]] = {}
    for spec in METRICS:
        if spec.kind == "histogram":
            found[f"{spec.name}_bucket"] = {*spec.labels, "le"}
            found[f"{spec.name}_sum"] = found[f"{spec.name}_count"] = set(spec.labels)
        else:
            found[spec.name] = set(spec.labels)
    page = Metrics().render()[0].decode()
    process = re.findall(r"^(process_\w+) ", page, re.MULTILINE)
    return {**found, **{name: set() for name in process}}


class Expression:
    """What an expression in PromQL uses, by its form only."""

    def __init__(self, text: str) -> None:
        bare = re.sub(r'"[^"]*"', '""', text)
        self.matched = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", bare))
        self.grouped = {
            label.strip()
            for labels in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", bare)
            for label in labels.split(",")
        }
        rest = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|on)\s*\([^)]*\)", " ", bare)
        self.metrics = set(re.findall(r"[a-zA-Z_]\w*", rest)) - WORDS
        self.rated = set(re.findall(r"rate\((\w+)", text))


def dashboard() -> Any:
    return json.loads((FILES / "epp-dashboard.json").read_text())


def panels() -> list[Any]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[Any]:
    groups = yaml.safe_load((FILES / "alert-rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for rule in rules():
        yield rule["alert"], rule["expr"]


def shown(text: str) -> set[str]:
    """Labels that a legend or an annotation names."""
    return set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))


EXPRESSIONS = pytest.mark.parametrize("text", [pytest.param(e, id=i) for i, e in expressions()])


@EXPRESSIONS
def test_every_metric_is_written_by_the_picker(text: str) -> None:
    used = Expression(text).metrics
    assert used
    assert used <= set(written())


@EXPRESSIONS
def test_every_label_belongs_to_a_metric_of_its_expression(text: str) -> None:
    expression = Expression(text)
    known = set().union(*(written()[name] for name in expression.metrics)) | SCRAPED
    assert expression.grouped | expression.matched <= known


@EXPRESSIONS
def test_counters_are_rated_and_gauges_are_not(text: str) -> None:
    expression = Expression(text)
    assert expression.rated == {name for name in expression.metrics if name.endswith(RATED)}


@EXPRESSIONS
def test_parentheses_are_closed(text: str) -> None:
    for opening, closing in ("()", "{}", "[]"):
        assert text.count(opening) == text.count(closing)


def test_a_wrong_name_would_be_noticed() -> None:
    expression = Expression('sum by (le) (rate(no_such_total{job=~"$job", colour="a"}[5m])) > 0')
    assert expression.metrics == {"no_such_total"}
    assert expression.grouped | expression.matched == {"le", "job", "colour"}


def test_legends_name_labels_that_are_left() -> None:
    for panel in panels():
        for target in panel["targets"]:
            expression = Expression(target["expr"])
            left = expression.grouped or {"instance"}
            assert shown(target["legendFormat"]) <= left, panel["title"]


def test_no_two_panels_overlap_and_none_leaves_the_grid() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_each_panel_says_what_it_shows_and_what_is_missing() -> None:
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["noValue"] == "not measured"
        assert panel["datasource"]["uid"] == "${datasource}"


def test_a_ratio_is_shown_as_one() -> None:
    for panel in panels():
        ratio = any(" / " in target["expr"] for target in panel["targets"])
        assert not ratio or panel["fieldConfig"]["defaults"]["unit"] == "percentunit"


def test_each_alert_waits_has_a_severity_and_says_what_is_wrong() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) >= 10
    for rule in rules():
        assert re.fullmatch(r"\d+m", rule["for"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_annotations_name_labels_that_are_left() -> None:
    for rule in rules():
        said = shown(" ".join(rule["annotations"].values()))
        assert said <= Expression(rule["expr"]).grouped, rule["alert"]


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    told = re.findall(r"^### (Epp\w+)$", GUIDE.read_text(), re.MULTILINE)
    assert sorted(told) == sorted(rule["alert"] for rule in rules())


def test_the_alerts_about_the_pool_look_at_what_a_page_holds() -> None:
    """Metrics may be declared and never written; these are on a page of a picker that runs."""
    metrics = Metrics()
    endpoint = build.endpoint("a", load=build.load(queued=1, running=1, kv_usage=0.5))
    metrics.watch_pool("pool", lambda: (endpoint,), Ledger())
    watch_peers(metrics, Lane(Sharing(Settings(()), SystemClock())).circle)
    metrics.scheduled(0.001)
    metrics.reloaded(ok=False)
    metrics.plugin_disabled("slow", "slow-scorer")
    metrics.plugin_failed("slow", "raised")
    metrics.reaped()
    metrics.refused(NoEndpoints())
    metrics.refresh()
    page = metrics.render()[0].decode()
    assert f'outcome="{Outcome.FAILED.value}"' in page
    for rule in rules():
        for name in Expression(rule["expr"]).metrics:
            assert re.search(rf"^{name}[ {{]", page, re.MULTILINE), name
