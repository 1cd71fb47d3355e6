"""Finds where a function of a few numbers is least; pure.

**Source:** Nelder and Mead, "A Simplex Method for Function Minimization", 1965, with its usual
coefficients: reflection 1, expansion 2, contraction and shrinking 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Point = tuple[float, ...]
Loss = Callable[[Point], float]


def least(loss: Loss, start: Sequence[float], steps: Sequence[float], most: int) -> Point:
    """Return the best point found with about ``most`` calls of ``loss``.

    Args:
        loss: to be made small.
        start: where to begin.
        steps: how far to look first, in each direction.
        most: calls.
    """
    corners = [tuple(start)]
    for i, step in enumerate(steps):
        moved = list(start)
        moved[i] += step
        corners.append(tuple(moved))
    known = sorted((loss(corner), corner) for corner in corners)
    calls = len(known)
    while calls < most:
        worst, second = known[-1], known[-2]
        middle = _mean([corner for _, corner in known[:-1]])
        reflected = _tried(loss, middle, worst[1], -1.0)
        calls += 1
        if reflected[0] < known[0][0]:
            expanded = _tried(loss, middle, worst[1], -2.0)
            calls += 1
            known[-1] = min(expanded, reflected)
        elif reflected[0] < second[0]:
            known[-1] = reflected
        else:
            contracted = _tried(loss, middle, worst[1], 0.5)
            calls += 1
            if contracted[0] < worst[0]:
                known[-1] = contracted
            else:
                best = known[0][1]
                known[1:] = [_tried(loss, best, corner, 0.5) for _, corner in known[1:]]
                calls += len(known) - 1
        known.sort()
    return known[0][1]


def _tried(loss: Loss, base: Point, other: Point, share: float) -> tuple[float, Point]:
    point = tuple(b + share * (o - b) for b, o in zip(base, other, strict=True))
    return loss(point), point


def _mean(points: Sequence[Point]) -> Point:
    return tuple(sum(values) / len(points) for values in zip(*points, strict=True))
