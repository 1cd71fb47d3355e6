"""Keeps plugins that are not ours from breaking traffic.

A call that raises, returns something of the wrong shape, or takes too long is as if the plugin
had no say in that request. Each is counted; after ten in a row the plugin is left out for a
minute, then tried again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from epp.clock import Clock
from epp.errors import EppError
from epp.model import Endpoint, InferenceRequest, Pick
from epp.plugin import Profiles

OnFault = Callable[[str, str], None]
"""Told of a fault: the plugin's name, and "raised", "bad-result", "too-slow" or "disabled"."""

BUDGET_SECONDS = 0.005
FAULTS_IN_A_ROW = 10
REST_SECONDS = 60.0


class _Guard:
    """Calls a plugin's methods, or does not."""

    def __init__(self, inner: Any, name: str, clock: Clock, on_fault: OnFault) -> None:
        self._inner = inner
        self._name = name
        self._clock = clock
        self._on_fault = on_fault
        self._faults = 0
        self._rests_until = -math.inf

    def call(self, method: str, instead: Any, check: Callable[[Any], bool], *args: Any) -> Any:
        """Return what the plugin says, or ``instead``."""
        began = self._clock.now()
        if began < self._rests_until:
            return instead
        try:
            result = getattr(self._inner, method)(*args)
            fits = check(result)
        except EppError:
            raise  # its say: the request is answered with this
        except Exception:  # noqa: BLE001 - whatever it raises is its own fault
            self._fault("raised")
            return instead
        slow = self._clock.now() - began > BUDGET_SECONDS
        if slow or not fits:
            self._fault("too-slow" if fits else "bad-result")
            return instead
        self._faults = 0
        return result

    def _fault(self, kind: str) -> None:
        self._on_fault(self._name, kind)
        self._faults += 1
        if self._faults >= FAULTS_IN_A_ROW:
            self._faults = 0
            self._rests_until = self._clock.now() + REST_SECONDS
            self._on_fault(self._name, "disabled")


def guard(inner: Any, name: str, clock: Clock, on_fault: OnFault) -> Any:
    """Return a plugin that does what ``inner`` does, guarded.

    The result has exactly those plugin methods that ``inner`` has, so it satisfies the same
    protocols.
    """
    guarded = _Guard(inner, name, clock, on_fault)
    methods = {
        method: wrap(guarded) for method, wrap in _WRAPPERS.items() if hasattr(inner, method)
    }
    for plain in ("dump_state",):
        if hasattr(inner, plain):
            methods[plain] = getattr(inner, plain)
    namespace = {method: staticmethod(function) for method, function in methods.items()}
    namespace["type"] = type(inner).type
    return type(f"Guarded{type(inner).__name__}", (), namespace)()


def _keeping(method: str) -> Callable[[_Guard], Any]:
    def wrap(guarded: _Guard) -> Any:
        def call(request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
            def known(result: Any) -> bool:
                ids = {endpoint.id for endpoint in endpoints}
                return isinstance(result, Sequence) and all(
                    isinstance(each, Endpoint) and each.id in ids for each in result
                )

            kept: Sequence[Endpoint] = guarded.call(method, endpoints, known, request, endpoints)
            return kept

        return call

    return wrap


def _score(guarded: _Guard) -> Any:
    def score(request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Sequence[float]:
        def right(result: Any) -> bool:
            return len(result) == len(endpoints) and all(
                isinstance(each, int | float) and not math.isnan(each) for each in result
            )

        scores: Sequence[float] = guarded.call(
            "score", [0.0] * len(endpoints), right, request, endpoints
        )
        return scores

    return score


def _pick(guarded: _Guard) -> Any:
    def pick(endpoints: Sequence[Endpoint], scores: Sequence[float]) -> Sequence[Endpoint]:
        best = max(range(len(endpoints)), key=scores.__getitem__)

        def some(result: Any) -> bool:
            return len(result) > 0 and all(isinstance(each, Endpoint) for each in result)

        chosen: Sequence[Endpoint] = guarded.call(
            "pick", [endpoints[best]], some, endpoints, scores
        )
        return chosen

    return pick


def _handle(guarded: _Guard) -> Any:
    def handle(request: InferenceRequest, profiles: Profiles) -> Pick:
        def a_pick(result: Any) -> bool:
            return isinstance(result, Pick) and len(result.endpoints) > 0

        pick: Pick | None = guarded.call("handle", None, a_pick, request, profiles)
        return pick or Pick(profiles.run(profiles.names[0], request).chosen)

    return handle


def _admit(guarded: _Guard) -> Any:
    def admit(request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        guarded.call("admit", None, lambda _: True, request, endpoints)

    return admit


def _request(method: str) -> Callable[[_Guard], Any]:
    def wrap(guarded: _Guard) -> Any:
        def call(request: InferenceRequest, *rest: Any) -> InferenceRequest:
            def right(result: Any) -> bool:
                return isinstance(result, InferenceRequest)

            done: InferenceRequest = guarded.call(method, request, right, request, *rest)
            return done

        return call

    return wrap


def _anything(method: str, instead: Any) -> Callable[[_Guard], Any]:
    def wrap(guarded: _Guard) -> Any:
        def call(*args: Any) -> Any:
            return guarded.call(method, instead, lambda _: True, *args)

        return call

    return wrap


def _headers(method: str) -> Callable[[_Guard], Any]:
    def wrap(guarded: _Guard) -> Any:
        def right(result: Any) -> bool:
            return all(isinstance(k, str) and isinstance(v, str) for k, v in result.items())

        def call(*args: Any) -> Any:
            return guarded.call(method, {}, right, *args)

        return call

    return wrap


_WRAPPERS: dict[str, Callable[[_Guard], Any]] = {
    "filter": _keeping("filter"),
    "screen": _keeping("screen"),
    "score": _score,
    "pick": _pick,
    "handle": _handle,
    "admit": _admit,
    "enrich": _request("enrich"),
    "prepare": _request("prepare"),
    "picked": _anything("picked", None),
    "ended": _anything("ended", None),
    "forget": _anything("forget", None),
    "disaggregate": _anything("disaggregate", instead=False),
    "saturation": _anything("saturation", instead=0.0),
    "answer_headers": _headers("answer_headers"),
    "add_headers": _headers("add_headers"),
}
