"""``epp traffic replay``: plays a trace, shows how it goes, writes what came as a trace again."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from epp.terminal.console import Console
from epp.traffic.figures import percentile
from epp.traffic.files import write_trace
from epp.traffic.replay.ask import Target
from epp.traffic.replay.plan import Pace, Talk, plan
from epp.traffic.replay.player import Player, Sent
from epp.traffic.replay.prompts import Prompts
from epp.traffic.trace import Trace, TraceError, trace_of

SHOWN_SECONDS = 0.5  #: between pictures
UNNAMED = "all"


def run(parsed: argparse.Namespace, trace: Trace) -> int:
    """Replay ``trace`` as the flags say; return 1 if a request failed."""
    pace = Pace(
        speed=parsed.speed, think_speed=parsed.think_speed, smooth=not parsed.keep_ticks,
        most=parsed.requests,
    )  # fmt: skip
    target = Target(
        url=parsed.url, model=parsed.model, api=parsed.api, headers=headers_of(parsed.header),
        timeout=parsed.timeout,
    )  # fmt: skip
    talks = plan(trace, pace)
    sent: list[Sent] = []
    prompts = Prompts(trace.block_tokens, parsed.seed, parsed.prompt)
    player = Player(target, prompts, sent.append)
    console = Console(stderr=True)
    try:
        asyncio.run(_shown(player, talks, sent, console, parsed.concurrency))
    except KeyboardInterrupt:
        console.print("stopped; what was answered counts")
    console.print(table(sent))
    if why := reasons(sent):
        console.print(f"errors: {why}", markup=False, highlight=False, soft_wrap=True)
    if parsed.output and sent:
        replayed = trace_of([each.record() for each in sent], trace.block_tokens)
        write_trace(replayed, parsed.output, "epp")
    return 1 if any(each.answer.error for each in sent) or not sent else 0


def headers_of(given: Sequence[str]) -> dict[str, str]:
    """Read ``NAME=VALUE`` pairs.

    Raises:
        TraceError: one is none.
    """
    pairs = [each.partition("=") for each in given]
    if bad := [name for name, equals, _ in pairs if not equals or not name]:
        raise TraceError(f"--header takes NAME=VALUE, not {bad[0]!r}")
    return {name.strip(): value for name, _, value in pairs}


async def _shown(
    player: Player, talks: Sequence[Talk], sent: list[Sent], console: Console, concurrency: int
) -> None:
    """Play, with a live picture."""
    total = sum(len(talk.steps) for talk in talks)
    progress = Progress(
        TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[flying]} in flight"), console=console,
    )  # fmt: skip
    bar = progress.add_task("requests", total=total, flying=0)
    playing = asyncio.create_task(
        player.closed_loop(talks, concurrency) if concurrency else player.open_loop(talks),
        name="play",
    )
    try:
        with Live(progress, console=console, auto_refresh=False, transient=True) as live:
            while not playing.done():
                await asyncio.wait((playing,), timeout=SHOWN_SECONDS)
                progress.update(bar, completed=len(sent), flying=player.in_flight)
                live.update(Group(progress, table(sent)), refresh=True)
    finally:
        playing.cancel()
        await asyncio.wait((playing,))
    playing.result()


def table(sent: Sequence[Sent]) -> Table:
    """Return what came so far: a row for each class, and one for all."""
    shown = Table("class", "requests", "errors", "TTFT p50", "p99", "TPOT p50", "hit rate",
                  "sent late p99")  # fmt: skip
    names = sorted({each.step.record.business or UNNAMED for each in sent})
    for name in names:
        shown.add_row(
            escape(name), *_row([s for s in sent if (s.step.record.business or UNNAMED) == name])
        )
    if len(names) > 1:
        shown.add_row("total", *_row(sent))
    return shown


def reasons(sent: Sequence[Sent]) -> str:
    """Say why requests failed and how many each, the most frequent first; "" if none did."""
    counted = Counter(each.answer.error for each in sent if each.answer.error)
    return ", ".join(f"{count} x {why}" for why, count in counted.most_common())


def _row(sent: Sequence[Sent]) -> list[str]:
    answers = [each.answer for each in sent]
    ttfts = [each.ttft for each in answers if each.ttft is not None]
    tpots = [each.tpot for each in answers if each.tpot is not None]
    known = [each for each in answers if each.cached_tokens is not None]
    prompt = sum(each.prompt_tokens for each in known)
    cached = sum(each.cached_tokens or 0 for each in known)
    return [
        str(len(sent)),
        str(sum(1 for each in answers if each.error)),
        _ms(percentile(ttfts, 50)),
        _ms(percentile(ttfts, 99)),
        _ms(percentile(tpots, 50)),
        f"{cached / prompt:.1%}" if prompt else "-",
        _ms(percentile([each.delay for each in sent], 99)),
    ]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"
