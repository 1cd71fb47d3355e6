"""``epp explain``: why one request went where it went, as a table in the terminal."""

from __future__ import annotations

import argparse
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from epp.commands.asking import Admin, admin_of, ask
from epp.errors import ConfigError
from epp.terminal.console import Console
from epp.terminal.output import printable

PATIENCE_SECONDS = 5.0
LEAST_WIDTH = 120  #: characters that the tables need
NONE = "–"  #: not known
PARTS = ("wait", "decision", "remote_prefill", "queue", "prefill", "rest")
"""Of the time to the first byte; those after the decision are ``engine`` where not known."""

Receipt = Mapping[str, Any]  #: see `observe.receipts`
Row = Mapping[str, Any]  #: one endpoint of a receipt's profile


def run(parsed: argparse.Namespace) -> int:
    """Print what the picker knows of request ``parsed.id``; return the exit status.

    Raises:
        ConfigError: the picker cannot be asked, or keeps no decision about it.
    """
    console = Console()
    if console.width < LEAST_WIDTH:
        console = Console(width=LEAST_WIDTH)  # a folded line can be read, a lost column cannot
    for part in explained(fetch(parsed.id, admin_of(parsed))):
        console.print(part)
    return 0


def fetch(request_id: str, admin: Admin) -> Receipt:
    """Ask the picker.

    Raises:
        ConfigError: it cannot be asked, or keeps no decision about this request.
    """
    query = urllib.parse.urlencode({"request_id": request_id}, errors="surrogateescape")
    body = ask(admin, f"/debug/explain?{query}", seconds=PATIENCE_SECONDS)
    try:
        return dict(msgspec.json.decode(body))
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise ConfigError(f"{admin.url} does not answer as a picker does: {error}") from error


def explained(receipt: Receipt) -> Iterator[RenderableType]:
    """Put a receipt into words and tables."""
    yield Text.assemble(
        ("request ", "dim"), printable(receipt["request_id"]),
        ("  model ", "dim"), printable(receipt["model"]) or NONE,
        ("  format ", "dim"), receipt["format"], ("  prompt ", "dim"),
        f"{receipt['prompt_tokens']} tokens", f"  {receipt['seconds_ago']:.1f} s ago",
    )  # fmt: skip
    yield Text.assemble(
        ("picked ", "dim"), (receipt["picked"], "bold green"),
        f" by profile {receipt['profile'] or NONE}, {reason(receipt)}",
    )  # fmt: skip
    yield from _stages(receipt)
    if receipt["fallbacks"]:
        yield Text.assemble(("else ", "dim"), ", ".join(receipt["fallbacks"]))
    yield Text.assemble(
        ("waited ", "dim"), _ms(receipt["wait_seconds"]),
        ("  decided in ", "dim"), _ms(receipt["decision_seconds"]),
    )  # fmt: skip
    for profile in receipt["profiles"]:
        yield from _profile(profile, receipt)
    yield _ended(receipt)
    yield from _leg((receipt["ended"] or {}).get("prefill_leg"))
    yield from first_byte(receipt)


def _stages(receipt: Receipt) -> Iterator[Text]:
    """Say where the prompt was to be computed, and why."""
    why = receipt.get("prefill_reason")
    if receipt["prefill"] or why:
        where = receipt["prefill"] or "the same endpoint"
        yield Text.assemble(("prefill on ", "dim"), where, f", {why}" if why else "")


def _leg(leg: Receipt | None) -> Iterator[Text]:
    """Say what became of a prefill that the picker ran."""
    if leg is None:
        return
    if leg["endpoint"]:
        said = Text.assemble(("prefill done on ", "dim"), leg["endpoint"])
    else:
        said = Text.assemble(("prefill not done elsewhere: ", "dim"), (leg["reason"], "yellow"))
    if leg["seconds"] is None:
        said.append(", beside its request")
    elif leg["attempts"]:
        said.append(f", in {_ms(leg['seconds'])}")
    if leg.get("lost_seconds"):
        said.append(f", {_ms(leg['lost_seconds'])} of them at another endpoint that failed")
    yield said


def first_byte(receipt: Receipt) -> Iterator[Text]:
    """Say what the first byte was expected to wait for at the pick, and what it waited for."""
    ended = receipt["ended"] or {}
    for words, parts in (
        ("first byte expected after ", receipt.get("expected_ttft")),
        ("first byte came after ", ended.get("ttft")),
    ):
        if parts is not None:
            said = Text.assemble((words, "dim"), _ms(parts["total_seconds"]), (":", "dim"))
            known = [part for part in PARTS if parts[f"{part}_seconds"] is not None]
            for part in known if "rest" in known else [*known, "engine"]:
                said.append(f"  {part.replace('_', ' ')} ", "dim")
                said.append(_ms(parts[f"{part}_seconds"]))
            yield said


def reason(receipt: Receipt) -> str:
    """Say what decided between the endpoint picked and the next best one."""
    profile = _deciding(receipt)
    if profile is None:
        return "without scores"
    chosen = _row(profile, receipt["picked"])
    others = [row for row in profile["endpoints"] if row is not chosen]
    if chosen is None or not others:
        return "the only candidate"
    second = others[0]
    ahead = chosen["total"] - second["total"]
    where = f"{second['endpoint']} would have been second" if ahead >= 0 else "which was not first"
    if ahead == 0:
        return f"by chance: {second['endpoint']} scored the same"
    if ahead < 0:
        return f"{where}: {second['endpoint']} scored {-ahead:.3f} more"
    return f"{ahead:.3f} ahead{_most_of(profile, chosen, second)}; {where}"


def _most_of(profile: Receipt, chosen: Row, second: Row) -> str:
    """Name the scorer that put ``chosen`` furthest ahead."""
    leads = [
        (scorer["weight"] * (mine - other), scorer["scorer"])
        for scorer, mine, other in zip(
            profile["scorers"], chosen["scores"], second["scores"], strict=True
        )
        if mine is not None and other is not None
    ]
    if not leads or (lead := max(leads))[0] <= 0:
        return ""
    return f", most by {lead[1]} ({lead[0]:+.3f})"


def _deciding(receipt: Receipt) -> Receipt | None:
    profiles = receipt["profiles"]
    named = [each for each in profiles if each["profile"] == receipt["profile"]]
    return next(iter([*named, *profiles]), None)


def _row(profile: Receipt, address: str) -> Row | None:
    return next((row for row in profile["endpoints"] if row["endpoint"] == address), None)


def _profile(profile: Receipt, receipt: Receipt) -> Iterator[RenderableType]:
    for each in profile["filters"]:
        if each["removed"]:
            some = ", ".join(each["some"])
            more = ", ..." if each["removed"] > len(each["some"]) else ""
            yield Text(f"{each['filter']} removed {each['removed']}: {some}{more}")
    yield Text(f"profile {profile['profile']}: {_shown(profile)}")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("endpoint", no_wrap=True)
    table.add_column("total", justify="right", no_wrap=True)
    for scorer in profile["scorers"]:
        words = scorer["scorer"].removesuffix("-scorer").replace("-", " ")  # wraps by words
        width = max(map(len, words.split()), default=1)
        title = Text(f"{words}\nx {scorer['weight']:g}")
        table.add_column(title, justify="right", min_width=width)
    for head in ("cached", "in flight", "tokens", "waiting", "running", "KV"):
        table.add_column(head, justify="right", min_width=max(map(len, head.split())))
    sent = {receipt["picked"], receipt["prefill"]}
    for row in profile["endpoints"]:
        style = "bold green" if row["endpoint"] in sent else ""
        table.add_row(*map(Text, _cells(row)), style=style)
    yield table


def _shown(profile: Receipt) -> str:
    count, shown = profile["candidates"], len(profile["endpoints"])
    noun = "candidate" if count == 1 else "candidates"
    return f"{count} {noun}" + (f", {shown} of them shown" if shown < count else "")


def _cells(row: Row) -> list[str]:
    name = f"{row['endpoint']} {row['name']}" if row["name"] not in ("", row["endpoint"]) else ""
    return [
        name or row["endpoint"],
        f"{row['total']:.3f}",
        *(NONE if score is None else f"{score:.3f}" for score in row["scores"]),
        *(_number(row[key]) for key in ("predicted_cached_tokens", "in_flight_requests",
                                        "in_flight_tokens", "queued", "running")),
        NONE if row["kv_usage"] is None else f"{row['kv_usage']:.0%}",
    ]  # fmt: skip


def _ended(receipt: Receipt) -> Text:
    ended = receipt["ended"]
    if ended is None:
        return Text("not ended yet")
    said = Text.assemble(("ended ", "dim"), f"{ended['outcome']} {ended['status'] or NONE}")
    served = ended["served"]
    if served and not ended["served_as_picked"]:
        said.append(f"  served by {served}, not as picked", "bold yellow")
    for words, value in (
        ("first byte after", _ms(ended["ttft_seconds"])),
        ("whole after", _ms(ended["duration_seconds"])),
        ("attempts", _number(ended["attempts"])),
        ("prompt", _number(ended["prompt_tokens"])),
        ("cached", _number(ended["cached_tokens"])),
        ("predicted", _number(receipt["predicted_cached_tokens"])),
        ("output", _number(ended["completion_tokens"])),
    ):  # fmt: skip
        said.append(f"  {words} ", "dim").append(value)
    if ended["flags"]:
        said.append(f"  {ended['flags']}", "yellow")
    return said


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:g}" if value < 1e6 else f"{value:.0f}"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.2f} ms"
