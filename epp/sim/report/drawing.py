"""Lines in a frame, as SVG; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import msgspec

WIDTH, HEIGHT = 860, 320
LEFT, RIGHT, TOP, BOTTOM = 60, 190, 12, 42
COLOURS = (
    "#3366cc", "#d9480f", "#2b8a3e", "#862e9c", "#c2255c", "#1098ad", "#5c940d", "#868e96",
)  # fmt: skip
DASHES = ("", "6 3", "2 2")


class Line(msgspec.Struct, frozen=True):
    """A line with its name."""

    name: str
    points: tuple[tuple[float, float], ...]


class Plot(msgspec.Struct, frozen=True):
    """Lines with common axes."""

    title: str
    across: str
    up: str
    lines: tuple[Line, ...]
    logarithmic: bool = False  #: the axis across; its values are > 0 then


def drawn(plot: Plot) -> str:
    """Return the plot as an ``<svg>`` element."""
    points = [point for line in plot.lines for point in line.points]
    if not points:
        return "<p>Nothing to draw.</p>"
    place = _placed(plot, points)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot.title)}">',
        *_axes(plot, place),
    ]
    for i, line in enumerate(plot.lines):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place.at, line.points))
        style = f'stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="2" fill="none"'
        dash = f' stroke-dasharray="{DASHES[i // len(COLOURS) % len(DASHES)]}"'
        parts.append(f'<polyline points="{path}" {style}{dash}/>')
        y = TOP + 14 + 18 * i
        x = WIDTH - RIGHT + 12
        parts.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 22}" y2="{y - 4}" {style}{dash}/>')
        parts.append(f'<text x="{x + 28}" y="{y}">{escape(line.name)}</text>')
    return "".join([*parts, "</svg>"])


class _Place:
    """From values to places in the picture."""

    def __init__(self, low: float, high: float, top: float, *, logarithmic: bool) -> None:
        self.low, self.high, self.top = low, high, top
        self._logarithmic = logarithmic

    def at(self, point: tuple[float, float]) -> tuple[float, float]:
        """Return where a point is drawn."""
        return self.across(point[0]), self.up(point[1])

    def across(self, value: float) -> float:
        """Return the distance from the left."""
        low, high = self.low, self.high
        if self._logarithmic:
            value, low, high = math.log(value), math.log(low), math.log(high)
        share = (value - low) / ((high - low) or 1.0)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def up(self, value: float) -> float:
        """Return the distance from the top."""
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)


def _placed(plot: Plot, points: Sequence[tuple[float, float]]) -> _Place:
    across = [x for x, _ in points]
    top = max(y for _, y in points) or 1.0
    return _Place(min(across), max(across), top, logarithmic=plot.logarithmic)


def _axes(plot: Plot, place: _Place) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    middle, half = (LEFT + right) / 2, (TOP + bottom) / 2
    across, up = escape(plot.across), escape(plot.up)
    turned = f'text-anchor="middle" transform="rotate(-90 14 {half})"'
    parts = [
        f'<path d="M{LEFT} {TOP}V{bottom}H{right}" stroke="currentColor" fill="none"/>',
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{across}</text>',
        f'<text x="14" y="{half}" {turned}>{up}</text>',
    ]
    for value in _ticks(place.low, place.high, logarithmic=plot.logarithmic):
        x = place.across(value)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{value:g}</text>')
    for value in _ticks(0.0, place.top, logarithmic=False):
        y = place.up(value)
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" '
            'stroke="currentColor" opacity=".12"/>'
        )
    return parts


def _ticks(low: float, high: float, *, logarithmic: bool) -> list[float]:
    """Return round values from ``low`` to ``high``."""
    if logarithmic:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        every = [float(f"1e{power}") for power in range(first, last + 1)]
        return [value for value in every if low <= value <= high]
    span = high - low
    if span <= 0:
        return [low]
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(times for times in (1, 2, 5, 10) if span / (step * times) <= 5)
    first_tick = math.ceil(low / step)
    return [round(i * step, 10) for i in range(first_tick, math.floor(high / step) + 1)]
