"""Counts by label set, and their text. Built for a cheap write: the read pays.

`prometheus_client`'s own counters take a lock and a look-up by labels at each increment, and
every metric with an older name would be counted twice. Here a count is a Python list's element,
and the older names are added up when the page is made, which may happen in another
thread: writers never wait for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from epp.telemetry.table import Spec
from epp.telemetry.text import printable

Labels = tuple[str, ...]
Live = Callable[[], float | Mapping[Labels, float]]


_NO_LABELS: Labels = ()


class Number:
    """A counter's or gauge's value for one label set."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, more: float = 1.0) -> None:
        self.value += more


class Histogram:
    """A histogram's counts for one label set."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.counts = [0] * (len(bounds) + 1)  #: by bucket, not cumulative; the last is +Inf
        self.sum = 0.0
        self._bounds = bounds

    def observe(self, value: float) -> None:
        """Count ``value``; a bound belongs to the bucket below it."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class Family:
    """One metric with all its label sets."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.numbers: dict[Labels, Number] = {}
        self.histograms: dict[Labels, Histogram] = {}

    def number(self, *labels: str) -> Number:
        """The value of one label set, made at the first call."""
        found = self.numbers.get(labels)
        if found is None:
            found = self.numbers[labels] = Number()
        return found

    def histogram(self, *labels: str) -> Histogram:
        """The counts of one label set, made at the first call."""
        found = self.histograms.get(labels)
        if found is None:
            found = self.histograms[labels] = Histogram(self.spec.buckets)
        return found

    def drop(self, labels: Labels) -> None:
        """Forget one label set; an unknown one is not an error."""
        self.numbers.pop(labels, None)
        self.histograms.pop(labels, None)

    def metrics(self) -> Iterator[Metric]:
        """The metric and its older twin, as the exposition wants them."""
        spec = self.spec
        numbers = {labels: cell.value for labels, cell in list(self.numbers.items())}
        histograms = {
            labels: (cell.counts[:], cell.sum) for labels, cell in list(self.histograms.items())
        }
        yield _metric(spec, spec.name, spec.labels, numbers, histograms)
        if spec.twin is not None:
            places, names = _places(spec)
            yield _metric(
                spec, spec.twin.name, names, _add(numbers, places), _merge(histograms, places)
            )


class Store:
    """All families; a collector for `prometheus_client`'s registry."""

    def __init__(self, specs: Iterable[Spec]) -> None:
        self._families = {spec.name: Family(spec) for spec in specs}
        self._live: dict[str, Live] = {}
        self._live_histograms: dict[str, Callable[[], Mapping[Labels, Histogram]]] = {}

    def __getitem__(self, name: str) -> Family:
        return self._families[name]

    def live(self, name: str, value: Live) -> None:
        """Ask ``value`` for this gauge whenever the page is made.

        It returns one number, or one by label set; a label set that it leaves out is gone.

        Raises:
            KeyError: there is no such metric.
        """
        self._live[self._families[name].spec.name] = value

    def live_histograms(self, name: str, value: Callable[[], Mapping[Labels, Histogram]]) -> None:
        """Show whenever the page is made what ``value`` returns, and nothing else, under ``name``.

        Raises:
            KeyError: there is no such metric.
        """
        self._live_histograms[self._families[name].spec.name] = value

    def refresh(self) -> None:
        """Ask for the live values; in the thread that writes what they read."""
        for name, value in self._live.items():
            answer = value()
            self.replace(name, answer if isinstance(answer, Mapping) else {_NO_LABELS: answer})
        for name, histograms in self._live_histograms.items():
            self._families[name].histograms = dict(histograms())

    def replace(self, name: str, values: Mapping[Labels, float]) -> None:
        """Make these the family's only label sets."""
        numbers: dict[Labels, Number] = {}
        for labels, value in values.items():
            numbers[labels] = cell = Number()
            cell.value = value
        self._families[name].numbers = numbers

    def collect(self, without: Container[str] = ()) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`. Safe beside writers in another thread."""
        for name, family in self._families.items():
            if (family.numbers or family.histograms) and name not in without:
                yield from family.metrics()


def _places(spec: Spec) -> tuple[list[int], Labels]:
    """Where the twin's labels stand among the metric's own, and what they are called there."""
    pairs = [label.partition("=") for label in (spec.twin.labels if spec.twin else ())]
    return (
        [spec.labels.index(own) for own, _, _ in pairs],
        tuple(old or own for own, _, old in pairs),
    )


def _add(numbers: Mapping[Labels, float], places: list[int]) -> dict[Labels, float]:
    sums: dict[Labels, float] = {}
    for labels, value in numbers.items():
        key = tuple(labels[place] for place in places)
        sums[key] = sums.get(key, 0.0) + value
    return sums


def _merge(
    histograms: Mapping[Labels, tuple[list[int], float]], places: list[int]
) -> dict[Labels, tuple[list[int], float]]:
    merged: dict[Labels, tuple[list[int], float]] = {}
    for labels, (counts, total) in histograms.items():
        key = tuple(labels[place] for place in places)
        before = merged.get(key)
        if before is not None:
            counts = [a + b for a, b in zip(counts, before[0], strict=True)]  # noqa: PLW2901
            total += before[1]  # noqa: PLW2901 - both are this label set's running sums
        merged[key] = (counts, total)
    return merged


def _metric(
    spec: Spec,
    name: str,
    labels: Labels,
    numbers: Mapping[Labels, float],
    histograms: Mapping[Labels, tuple[list[int], float]],
) -> Metric:
    text = f"[ALPHA] {spec.help}"
    if spec.kind == "histogram":
        return _histogram(HistogramMetricFamily(name, text, labels=labels), spec, histograms)
    family = (
        CounterMetricFamily(name, text, labels=labels)
        if spec.kind == "counter"
        else GaugeMetricFamily(name, text, labels=labels)
    )
    for values, number in numbers.items():
        family.add_metric([printable(value) for value in values], number)
    return family


def _histogram(
    family: HistogramMetricFamily,
    spec: Spec,
    histograms: Mapping[Labels, tuple[list[int], float]],
) -> Metric:
    bounds = [*(_text(bound) for bound in spec.buckets), "+Inf"]
    for values, (counts, total) in histograms.items():
        cumulative = list(zip(bounds, accumulate(counts), strict=True))
        shown = [printable(value) for value in values]
        family.add_metric(shown, buckets=cumulative, sum_value=total)
    return family


def _text(bound: float) -> str:
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]
