"""Keeps plugins that are not ours from breaking traffic.

A call that raises, returns something of the wrong shape, or takes too long is as if the plugin
had no say in that request. Each is counted; after ten in a row of one method the plugin is left
out for a minute, then tried again. It always hears of lost endpoints: what it knows of them
must go.

A call that never returns cannot be helped: there is one thread.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from epp.clock import Clock
from epp.errors import EppError
from epp.model import Endpoint, EndpointId, InferenceRequest, Pick, PrefillLeg
from epp.plugin import Legs, Prefilled, Profiles

OnFault = Callable[[str, str], None]
"""Told of a fault: the plugin's name, and "raised", "bad-result" or "too-slow"; and when the plugin
is left out ("disabled") and tried again ("enabled")."""

BUDGET_SECONDS = 0.005  #: of the loop's time, for one call
WAIT_SECONDS = 0.1  #: for what an enricher waits for; the loop goes on meanwhile
PREFILL_SECONDS = 60.0  #: for a prefill elsewhere
FAULTS_IN_A_ROW = 10
REST_SECONDS = 60.0


class _Guard:
    """Calls a plugin's methods, or does not."""

    def __init__(self, inner: Any, name: str, clock: Clock, on_fault: OnFault) -> None:
        self._inner = inner
        self._name = name
        self.clock = clock
        self._on_fault = on_fault
        self._faults: dict[str, int] = {}  # in a row, by method
        self._rests_until: float | None = None

    def call(
        self,
        method: str,
        instead: Any,
        check: Callable[[Any], bool],
        *args: Any,
        may_raise: type[Exception] = EppError,
    ) -> Any:
        """Return what the plugin says, or ``instead``."""
        began = self.clock.now()
        if self.resting(began):
            return instead
        try:
            result = getattr(self._inner, method)(*args)
        except may_raise:
            raise  # its say: a request is answered with an `EppError`
        except (Exception, SystemExit):  # noqa: BLE001 - whatever it raises is its own fault
            self.fault(method, "raised")
            return instead
        slow = self.clock.now() - began > BUDGET_SECONDS
        if not _fits(check, result):
            self.fault(method, "bad-result")
            return instead
        if slow:
            self.fault(method, "too-slow")
            return instead
        self.good(method)
        return result

    def always(self, method: str, *args: Any) -> None:
        """Call it even while the plugin rests, and whatever it takes."""
        try:
            getattr(self._inner, method)(*args)
        except (Exception, SystemExit):  # noqa: BLE001 - as in `call`
            self.fault(method, "raised")

    async def wait(
        self,
        method: str,
        instead: Any,
        waits: Awaitable[Any],
        kind: type,
        *,
        seconds: float = WAIT_SECONDS,
    ) -> Any:
        """Return what an awaitable that the plugin returned says, or ``instead``."""
        try:
            result = await asyncio.wait_for(waits, seconds)
        except EppError:
            raise
        except TimeoutError:
            self.fault(method, "too-slow")
            return instead
        except (Exception, SystemExit):  # noqa: BLE001 - as in `call`
            self.fault(method, "raised")
            return instead
        if not isinstance(result, kind):
            self.fault(method, "bad-result")
            return instead
        self.good(method)
        return result

    def resting(self, now: float) -> bool:
        """Whether the plugin is left out now; tells when a rest is over."""
        if self._rests_until is None:
            return False
        if now < self._rests_until:
            return True
        self._rests_until = None
        self._on_fault(self._name, "enabled")
        return False

    def good(self, method: str) -> None:
        """Note a call that did as it should."""
        if self._faults:
            self._faults.pop(method, None)

    def fault(self, method: str, kind: str) -> None:
        """Note a call that did not; after too many in a row the plugin rests."""
        self._on_fault(self._name, kind)
        self._faults[method] = self._faults.get(method, 0) + 1
        if self._faults[method] >= FAULTS_IN_A_ROW and self._rests_until is None:
            self._faults.clear()
            self._rests_until = self.clock.now() + REST_SECONDS
            self._on_fault(self._name, "disabled")


def _fits(check: Callable[[Any], bool], result: Any) -> bool:
    try:
        return check(result)
    except Exception:  # noqa: BLE001 - of a shape that cannot even be looked at
        return False


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
            ids = {endpoint.id for endpoint in endpoints}
            return len(result) > 0 and all(each.id in ids for each in result)

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


def _prepare(guarded: _Guard) -> Any:
    def prepare(request: InferenceRequest) -> InferenceRequest:
        done: InferenceRequest = guarded.call("prepare", request, _is_request, request)
        return done

    return prepare


def _enrich(guarded: _Guard) -> Any:
    def right(result: Any) -> bool:
        return _is_request(result) or inspect.isawaitable(result)

    def enrich(
        request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> InferenceRequest | Awaitable[InferenceRequest]:
        done = guarded.call("enrich", request, right, request, endpoints)
        if _is_request(done):
            return done  # type: ignore[no-any-return]
        return guarded.wait("enrich", request, done, InferenceRequest)

    return enrich


def _prefill(guarded: _Guard) -> Any:
    async def prefill(request: InferenceRequest, pick: Pick, legs: Legs) -> Prefilled:
        alone = Prefilled(request.body, PrefillLeg(None, "plugin", guarded.clock.now()))
        waits = guarded.call("prefill", None, inspect.isawaitable, request, pick, legs)
        if waits is None:
            return alone
        done: Prefilled = await guarded.wait(
            "prefill", alone, waits, Prefilled, seconds=PREFILL_SECONDS
        )
        return done

    return prefill


def _is_request(result: Any) -> bool:
    return isinstance(result, InferenceRequest)


def _forget(guarded: _Guard) -> Any:
    def forget(endpoint_id: EndpointId) -> None:
        guarded.always("forget", endpoint_id)

    return forget


def _share(guarded: _Guard) -> Any:
    def share(request: InferenceRequest, pick: Pick) -> bytes:
        fact: bytes = guarded.call(
            "share", b"", lambda result: isinstance(result, bytes), request, pick
        )
        return fact

    return share


def _heard(guarded: _Guard) -> Any:
    def heard(fact: bytes, endpoint: Endpoint, prefill: Endpoint | None) -> None:
        # What cannot be read is the other picker's fault.
        guarded.call("heard", None, lambda _: True, fact, endpoint, prefill, may_raise=ValueError)

    return heard


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


def _report(guarded: _Guard) -> Any:
    def right(result: Any) -> bool:
        return all(
            isinstance(space, str) and isinstance(name, str) and math.isfinite(value)
            for space, values in result.items()
            for name, value in values.items()
        )

    def call(*args: Any) -> Any:
        return guarded.call("report", {}, right, *args)

    return call


_WRAPPERS: dict[str, Callable[[_Guard], Any]] = {
    "filter": _keeping("filter"),
    "screen": _keeping("screen"),
    "score": _score,
    "pick": _pick,
    "handle": _handle,
    "admit": _admit,
    "enrich": _enrich,
    "prepare": _prepare,
    "prefill": _prefill,
    "picked": _anything("picked", None),
    "ended": _anything("ended", None),
    "forget": _forget,
    "disaggregate": _anything("disaggregate", instead=False),
    "saturation": _anything("saturation", instead=0.0),
    "request_headers": _headers("request_headers"),
    "answer_headers": _headers("answer_headers"),
    "report": _report,
    "share": _share,
    "heard": _heard,
}
