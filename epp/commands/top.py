"""``epp top``: the live page's numbers in a terminal, or line by line for another program."""

from __future__ import annotations

import argparse
import contextlib
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any
from urllib.parse import quote

import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from epp.commands.asking import Admin, Refused, admin_of, ask
from epp.errors import ConfigError
from epp.terminal.console import Console

PATH = "/debug/live"
SERVER_ERROR = 500  #: statuses from here on may pass
PERIOD_SECONDS = 1.0
PATIENCE_SECONDS = 3.0
BLOCKS = "▁▂▃▄▅▆▇█"
NONE = "–"  #: not measured
ABOVE = 9  #: lines that are not pods
STYLES = {"ready": "green", "unreachable": "red"}
HEADS = {
    "name": "POD",
    "state": "STATE",
    "running": "RUN",
    "waiting": "WAIT",
    "kv_usage": "KV",
    "in_flight": "FLIGHT",
    "in_flight_tokens": "PREFILL",
    "requests_per_second": "REQ/S",
    "error_share": "ERRORS",
    "hit_rate": "HIT",
    "age": "SCRAPED",
}
COUNTS = ("running", "waiting", "in_flight", "in_flight_tokens")
WIDE_ONLY = ("in_flight_tokens", "age")  #: columns left out of narrow terminals
GAP = 2  #: blanks between columns
LEAST = {
    "state": 11,
    "kv_usage": 6,
    "error_share": 6,
    "hit_rate": 6,
    "in_flight_tokens": 9,
}  #: characters that a number is never cut to less than
WIDE = 100  #: characters from which there is room for all columns
FILE_WIDTH = 240  #: characters of a line where no terminal says: no name is cut

Pod = Mapping[str, Any]


class Summary(msgspec.Struct, frozen=True):
    """See `epp.page.live.Summary`."""

    requests_per_second: float | None = None
    error_share: float | None = None
    hit_rate: float | None = None
    engine_hit_rate: float | None = None
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    ttft_waiting: float | None = None
    ttft_picker: float | None = None
    ttft_engine: float | None = None
    decision_p50: float | None = None
    decision_p99: float | None = None


class History(msgspec.Struct, frozen=True):
    """What of `epp.page.live.History` is drawn."""

    requests_per_second: list[float | None] = []
    hit_rate: list[float | None] = []


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What of an answer is shown."""

    sort: str = "name"  #: a column
    rows: int | None = None  #: most pods; all if None
    width: int = FILE_WIDTH  #: characters of a line


class Answer(msgspec.Struct, frozen=True):
    """What ``/debug/live`` says; what an older picker does not tell is not measured."""

    pool: str
    ready: bool
    summary: Summary
    in_flight: int
    states: dict[str, int]
    history: History
    columns: list[str]
    pods: list[list[Any]]

    def table(self) -> list[Pod]:
        """The pods by column."""
        return [dict(zip(self.columns, pod, strict=True)) for pod in self.pods]


def run(parsed: argparse.Namespace) -> int:
    """Show the picker at ``parsed.admin`` until interrupted, or once; return the exit status.

    Raises:
        ConfigError: there is no picker, or, with ``--once``, it gives no usable answer.
        BrokenPipeError: nobody reads any more.
    """
    told = partial(fetch, admin_of(parsed), pool=parsed.pool)
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    if parsed.once:
        for part in render(told(), View(sort=parsed.sort, width=console.width)):
            console.print(part)
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        if console.is_terminal:
            _show(told, console, parsed.sort)
        else:
            _write(told, console, parsed.sort)
    return 0


def fetch(admin: Admin, *, pool: str = "") -> Answer:
    """Ask the picker about a pool; "" is the only one.

    Raises:
        ConfigError: it does not answer within `PATIENCE_SECONDS`, or not as a picker does.
    """
    try:
        path = f"{PATH}?pool={quote(pool)}" if pool else PATH
        return msgspec.json.decode(ask(admin, path, seconds=PATIENCE_SECONDS), type=Answer)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{admin.url}{PATH} is not as a picker has it: {error}") from error


def render(answer: Answer, view: View) -> Sequence[RenderableType]:
    """Lay an answer out."""
    return [_head(answer), _summary(answer), Text(), pods_table(answer.table(), view)]


def ordered(pods: Sequence[Pod], column: str) -> list[Pod]:
    """Sort: words upwards, numbers from the largest; what is not measured comes last."""
    named = sorted(pods, key=lambda pod: str(pod["name"]))
    if column in ("name", "state"):
        return sorted(named, key=lambda pod: str(pod[column]))
    return sorted(named, key=lambda pod: (pod[column] is None, -(pod[column] or 0.0)))


def pods_table(pods: Sequence[Pod], view: View) -> Table:
    """One line a pod."""
    left = 0 if view.rows is None else max(len(pods) - view.rows, 0)
    caption = f"{left} more; --sort chooses which come first" if left else None
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="bold", caption=caption)
    columns = [name for name in HEADS if view.width >= WIDE or name not in WIDE_ONLY]
    for column in columns:
        justify: Any = "left" if column in ("name", "state") else "right"
        most = max(view.width - sum(map(_width, columns)), 12) if column == "name" else None
        least = None if column == "name" else _width(column) - GAP
        table.add_column(
            HEADS[column], justify=justify, no_wrap=True, min_width=least, max_width=most
        )
    for pod in ordered(pods, view.sort)[: view.rows]:
        cells = _cells(pod)
        table.add_row(*(cells[column] for column in columns))
    return table


def line(points: Sequence[float | None], *, most: float = 0.0) -> str:
    """A row of blocks, the tallest for the largest value; a blank where nothing was measured."""
    told = [point for point in points if point is not None]
    top = max([most, *told]) or 1.0
    steps = len(BLOCKS) - 1
    return "".join(" " if p is None else BLOCKS[round(p / top * steps)] for p in points)


def _show(told: Callable[[], Answer], console: Console, sort: str) -> None:
    """Show it on the screen, each second anew. Raises as `_frames` does."""

    def view() -> View:
        return View(sort=sort, rows=max(console.height - ABOVE, 1), width=console.width)

    with Live(console=console, screen=True, auto_refresh=False) as live:
        for parts in _frames(told, view):
            began = time.monotonic()
            live.update(Group(*parts), refresh=True)
            time.sleep(_rest(began))


def _write(told: Callable[[], Answer], console: Console, sort: str) -> None:
    """Write it, with all pods, again each second. Raises as `_frames` does.

    Raises:
        BrokenPipeError: nobody reads any more. It is noticed at once.
    """
    for parts in _frames(told, lambda: View(sort=sort, width=console.width)):
        began = time.monotonic()
        console.print(*parts, Text(), sep="\n")
        console.file.flush()
        if _left(console.file, _rest(began)):
            raise BrokenPipeError


def _left(file: IO[str], seconds: float) -> bool:
    """Whether the reader of ``file`` goes within ``seconds``."""
    poll = select.poll()
    poll.register(file, 0)  # for nothing but that
    return bool(poll.poll(seconds * 1000))


def _rest(began: float) -> float:
    return max(PERIOD_SECONDS - (time.monotonic() - began), 0.1)


def _frames(
    told: Callable[[], Answer], view: Callable[[], View]
) -> Iterator[Sequence[RenderableType]]:
    """Ask, and lay out what comes, for ever; once it answered, or says that it cannot yet.

    Raises:
        ConfigError: nobody answers at all, or somebody else does.
    """
    known = False
    while True:
        try:
            parts = render(told(), view())
            known = True
        except ConfigError as error:
            known = known or (isinstance(error, Refused) and error.status >= SERVER_ERROR)
            if not known:
                raise
            parts = [Text(str(error), style="red")]
        yield parts


def _head(answer: Answer) -> Text:
    states = ", ".join(f"{count} {state}" for state, count in answer.states.items() if count)
    ready = ("ready", "green") if answer.ready else ("not ready", "red")
    return Text.assemble(
        (f"pool {answer.pool}  ", "bold"), ready, f"  pods: {states or 'none'}  ",
        f"in flight: {answer.in_flight}",
    )  # fmt: skip


def _summary(answer: Answer) -> Table:
    summary, history = answer.summary, answer.history
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row(
        "requests/s", _number(summary.requests_per_second), line(history.requests_per_second)
    )
    table.add_row("prefix hit rate", _hits(summary), line(history.hit_rate, most=1.0))
    table.add_row("errors", _percent(summary.error_share))
    table.add_row("time to first byte", _pair(summary.ttft_p50, summary.ttft_p99))
    table.add_row("its parts, mean", _parts(summary))
    table.add_row("time of a decision", _pair(summary.decision_p50, summary.decision_p99))
    return table


def _hits(summary: Summary) -> str:
    told = summary.engine_hit_rate
    return _percent(summary.hit_rate) + ("" if told is None else f" (engines: {_percent(told)})")


def _parts(summary: Summary) -> str:
    parts = {
        "waiting": summary.ttft_waiting,
        "picker": summary.ttft_picker,
        "engine": summary.ttft_engine,
    }
    told = [f"{name} {_seconds(value)}" for name, value in parts.items() if value is not None]
    return ", ".join(told) or "not measured"


def _cells(pod: Pod) -> Mapping[str, Text]:
    age = pod["age"]
    cells = {
        "name": str(pod["name"]),
        **{each: _whole(pod[each]) for each in COUNTS},
        **{each: _short(pod[each]) for each in ("kv_usage", "error_share", "hit_rate")},
        "requests_per_second": f"{pod['requests_per_second']:.1f}",
        "age": NONE if age is None else f"{age:.1f} s",
    }
    state = Text(str(pod["state"]), style=STYLES.get(pod["state"], "yellow"))
    return {**{name: Text(cell) for name, cell in cells.items()}, "state": state}


def _width(column: str) -> int:
    """Characters that a column takes; the names take what is left."""
    return 0 if column == "name" else max(len(HEADS[column]), LEAST.get(column, 5)) + GAP


def _whole(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def _short(share: float | None) -> str:
    return NONE if share is None else f"{share:.1%}"


def _percent(share: float | None) -> str:
    return "not measured" if share is None else f"{share:.1%}"


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:,.1f}"


def _pair(median: float | None, high: float | None) -> str:
    if median is None or high is None:
        return "not measured"
    return f"p50 {_seconds(median)}, p99 {_seconds(high)}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.3g} ms"
