"""Finds where a function of a few numbers is least; pure.

**Source:** `least` is Nelder and Mead, "A Simplex Method for Function Minimization", 1965, with its
usual coefficients: reflection 1, expansion 2, contraction and shrinking 0.5. `least_squares` is Gauss
and Newton's way, damped as by Marquardt, "An Algorithm for Least-Squares Estimation of Nonlinear
Parameters", 1963.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Point = tuple[float, ...]
Loss = Callable[[Point], float]
Misses = Callable[[Point], Sequence[float]]

LEAST = 1e-3  #: of a number that is found by `least_squares`
WIDTH = 0.5  #: of its first differences; narrower where they lead nowhere
NARROWEST = 0.1
DAMPING = (0.0, 1e-3, 1e-2, 0.1, 1.0, 10.0)  #: what is tried, of the diagonal
GAIN = 0.02  #: of the sum of squares, which a step is worth


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


def least_squares(misses: Misses, start: Sequence[float], most: int) -> Point:
    """Return numbers above zero whose ``misses`` have the least squares, with about ``most`` calls.

    Args:
        misses: as many at each point; to be made small.
        start: where to begin, in units in which a step of `WIDTH` is a small one.
        most: calls.
    """
    calls = 0

    def at(values: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        return np.array(misses(tuple(values.tolist())))

    point = np.array(start)
    now, width = at(point), WIDTH
    while calls < most and width >= NARROWEST:
        slopes = _slopes(at, point, width)
        normal = slopes.T @ slopes
        for damping in DAMPING:
            damped = normal + damping * np.diag(np.diag(normal)) + 1e-9 * np.eye(len(point))
            moved = np.maximum(point - np.linalg.solve(damped, slopes.T @ now), LEAST)
            then = at(moved)
            if then @ then < (1 - GAIN) * (now @ now):
                point, now = moved, then
                break
        else:
            width /= 2
    return tuple(point.tolist())


def _slopes(at: Callable[[np.ndarray], np.ndarray], point: np.ndarray, width: float) -> np.ndarray:
    """Return by how much each miss changes with each number, by differences to both sides."""
    columns = []
    for i in range(len(point)):
        above, below = point.copy(), point.copy()
        above[i] += width
        below[i] = max(below[i] - width, LEAST)
        columns.append((at(above) - at(below)) / (above[i] - below[i]))
    return np.array(columns).T


def _tried(loss: Loss, base: Point, other: Point, share: float) -> tuple[float, Point]:
    point = tuple(b + share * (o - b) for b, o in zip(base, other, strict=True))
    return loss(point), point


def _mean(points: Sequence[Point]) -> Point:
    return tuple(sum(values) / len(points) for values in zip(*points, strict=True))
