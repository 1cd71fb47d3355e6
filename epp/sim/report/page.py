"""A report as one HTML file: tables and drawings, nothing fetched from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from epp.sim.fleet.story import Outcome
from epp.sim.report.drawing import Line, Plot, drawn
from epp.sim.report.figures import Summary
from epp.sim.report.seeds import Difference
from epp.sim.report.tables import DIFFERENCE, difference_of, seen_of

POINTS = 200  #: of a line, at most

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --rule: #c8c8c8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #161616; --rule: #4a4a4a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 11px; }
"""


def page_of(runs: Sequence[tuple[Summary, Outcome]], differences: Sequence[Difference] = ()) -> str:
    """Return the page of these runs."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>epp sim</title><style>{_STYLE}</style></head><body>",
        "<h1>Simulated fleet</h1>",
        "<p>Figures of a simulation in virtual time, not of a measurement.</p>",
        _seen([summary for summary, _ in runs]),
        _spread([summary for summary, _ in runs]),
        _differences(differences),
        *(_plot(each) for each in plots_of(runs)),
        "</body></html>",
    ]
    return "\n".join(filter(None, parts))


def plots_of(runs: Sequence[tuple[Summary, Outcome]]) -> list[Plot]:
    """Return what is drawn: of the first seed of each policy."""
    first: dict[str, Outcome] = {}
    for summary, outcome in runs:
        first.setdefault(summary.policy, outcome)
    return [
        Plot("TTFT: share of requests that got their first token within", "seconds", "share",
             tuple(_cumulated(name, each) for name, each in first.items()), logarithmic=True),
        Plot("Requests waiting in all engines", "seconds of the run", "requests",
             tuple(_moments(name, each, "waiting") for name, each in first.items())),
        Plot("Requests in the fullest engine", "seconds of the run", "requests",
             tuple(_moments(name, each, "fullest") for name, each in first.items())),
        Plot("KV blocks in use, mean of the engines", "seconds of the run", "share",
             tuple(_moments(name, each, "kv_usage") for name, each in first.items())),
    ]  # fmt: skip


def _cumulated(name: str, outcome: Outcome) -> Line:
    times = sorted(story.ttft for story in outcome.stories if story.ttft is not None)
    count = len(times)
    picked = range(0, count, max(count // POINTS, 1))
    return Line(name, tuple((max(times[i], 1e-3), (i + 1) / count) for i in picked))


def _moments(name: str, outcome: Outcome, what: str) -> Line:
    moments = outcome.moments[:: max(len(outcome.moments) // POINTS, 1)]
    if what == "fullest":
        points = tuple((each.at, float(max(each.requests, default=0))) for each in moments)
    else:
        points = tuple((each.at, float(getattr(each, what))) for each in moments)
    return Line(name, points)


def _plot(plot: Plot) -> str:
    return f"<h2>{escape(plot.title)}</h2>\n{drawn(plot)}"


def _seen(found: Sequence[Summary]) -> str:
    rows = [[run.policy, run.seed, *seen_of(run.all)] for run in found]
    heads = "policy,seed,requests,TTFT p50,p90,p99,TPOT p50,E2E p90,goodput,shed,failed"
    return "<h2>What clients saw</h2>" + _table(heads.split(","), rows)


def _spread(found: Sequence[Summary]) -> str:
    rows = []
    for run in found:
        each, routing = run.all, run.routing
        shares = (
            each.hit_rate, each.ideal_hit_rate, routing.reachable_hit_rate,
            routing.predicted_hit_rate, each.regret, routing.imbalance, routing.fairness,
        )  # fmt: skip
        numbers = [f"{share:.3f}" for share in shares]
        more = [
            routing.herd, f"{routing.flaps:.3f}", f"{routing.elsewhere:.3f}", each.preemptions
        ]  # fmt: skip
        rows.append([run.policy, run.seed, *numbers, *more])
    heads = "policy,seed,hit rate,ideal,one LRU,predicted,regret,imbalance,fairness,herd,flaps,elsewhere,preempted"
    return "<h2>How requests were spread</h2>" + _table(heads.split(","), rows)


def _differences(differences: Sequence[Difference]) -> str:
    if not differences:
        return ""
    rows = [difference_of(each) for each in differences]
    return "<h2>The second scenario against the first</h2>" + _table(DIFFERENCE, rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
