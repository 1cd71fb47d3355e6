"""A comparison as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from epp.traffic.study.compare import Comparison, Ttft


def shown(comparison: Comparison, names: tuple[str, str]) -> str:
    """Return tables of what was compared; ``names`` of the two traces."""
    first, second = names
    lines = [f"requests: {comparison.requests[0]} {first}, {comparison.requests[1]} {second}", ""]
    lines += _table(
        ("", f"mean {first}", f"mean {second}", "Wasserstein", "of mean"),
        (
            (each.name, f"{each.first_mean:.4g}", f"{each.second_mean:.4g}",
             "-" if each.distance is None else f"{each.distance:.3g}",
             "-" if each.share is None else f"{each.share:.1%}")
            for each in comparison.distances
        ),
    )  # fmt: skip
    lines += ["", "an LRU cache of so many tokens finds"]
    lines += _table(
        ("tokens", first, second, "difference"),
        (
            (f"{each.cache_tokens:,}", f"{each.first:.1%}", f"{each.second:.1%}",
             f"{100 * (each.second - each.first):+.1f} points")
            for each in comparison.hits
        ),
    )  # fmt: skip
    for ttft in comparison.ttfts:
        lines += ["", *_ttft(ttft, names)]
    return "\n".join(lines)


def _ttft(ttft: Ttft, names: tuple[str, str]) -> Iterable[str]:
    for name, each in zip(names, (ttft.first, ttft.second), strict=True):
        yield (
            f"TTFT p{ttft.percent:g} {name}: {each.value * 1000:.0f} ms "
            f"({each.low * 1000:.0f} to {each.high * 1000:.0f})"
        )
    yield "they differ" if ttft.differ else "the difference may be chance"
    if ttft.needed is None:
        yield "too few requests to say how sure it is"
    else:
        yield f"to know it within a tenth: {ttft.needed:,} requests"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [head, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in cells
    ]
