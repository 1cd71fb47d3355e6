"""The endpoints we know. Collectors write, the router reads; one thread, no locks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from epp.model import GROUP, Endpoint, EndpointId, Load

Forget = Callable[[EndpointId], None]
Changed = Callable[[], None]


class Pool:
    """Endpoints by id, read as immutable snapshots.

    A snapshot is a tuple, rebuilt at most once per change, so any number of
    requests share it and none sees half an update. State kept elsewhere about an endpoint
    dies with it: whoever keeps some registers with `on_forget`.
    """

    def __init__(self, name: str = "default") -> None:
        self.name = name
        self.protocol = ""  #: that its endpoints speak, as Kubernetes names it; "": not told
        self.synced = False  #: True once a collector has listed the endpoints for the first time
        self._endpoints: dict[EndpointId, Endpoint] = {}
        self._all: tuple[Endpoint, ...] | None = ()
        self._routable: tuple[Endpoint, ...] | None = ()
        self._short: frozenset[str] = frozenset()  # groups with a rank that is none of those here
        self._forget: list[Forget] = []
        self._changed: list[Changed] = []

    def on_members(self, changed: Changed) -> None:
        """Call ``changed()`` whenever an endpoint came or is gone; not for what is known of it."""
        self._changed.append(changed)

    def off_members(self, changed: Changed) -> None:
        """Undo `on_members`; unknown is not an error."""
        if changed in self._changed:
            self._changed.remove(changed)

    def on_forget(self, forget: Forget) -> None:
        """Call ``forget(id)`` whenever an endpoint is gone or its process restarted."""
        self._forget.append(forget)

    def off_forget(self, forget: Forget) -> None:
        """Undo `on_forget`; unknown is not an error."""
        if forget in self._forget:
            self._forget.remove(forget)

    def __len__(self) -> int:
        return len(self._endpoints)

    def get(self, endpoint_id: EndpointId) -> Endpoint | None:
        """The endpoint of that id, if it is here."""
        return self._endpoints.get(endpoint_id)

    def put(self, endpoint: Endpoint) -> None:
        """Add an endpoint, or replace the one with its id (its knowledge stays)."""
        new = endpoint.id not in self._endpoints
        self._endpoints[endpoint.id] = endpoint
        self._all = self._routable = None
        if new:
            self._members_changed()

    def remove(self, endpoint_id: EndpointId) -> None:
        """Drop an endpoint and all that is known of it; an unknown one is not an error."""
        if self._endpoints.pop(endpoint_id, None) is not None:
            self._all = self._routable = None
            self._tell(endpoint_id)
            self._members_changed()

    def restarted(self, endpoint_id: EndpointId) -> None:
        """The endpoint's process is another one: its load and its caches are void."""
        self.set_load(endpoint_id, None)
        self._tell(endpoint_id)

    def set_load(self, endpoint_id: EndpointId, load: Load | None) -> None:
        """Record a scrape, or (None) that the last one is stale. Unknown endpoints are ignored."""
        if (endpoint := self._endpoints.get(endpoint_id)) is not None:
            self.put(msgspec.structs.replace(endpoint, load=load))

    def set_reachable(self, endpoint_id: EndpointId, *, reachable: bool) -> None:
        """Record whether anything listens there. Unknown endpoints are ignored."""
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is not None and endpoint.reachable is not reachable:
            self.put(msgspec.structs.replace(endpoint, reachable=reachable))

    def set_short_groups(self, groups: frozenset[str]) -> None:
        """Record of which groups a rank is no endpoint: it has yet to start, say."""
        if groups != self._short:
            self._short, self._routable = groups, None

    def snapshot(self) -> tuple[Endpoint, ...]:
        """Every endpoint, as of now. O(1) unless something changed since the last call."""
        if self._all is None:
            self._all = tuple(self._endpoints.values())
        return self._all

    def routable(self) -> tuple[Endpoint, ...]:
        """Those that may get a new request.

        Not draining, reachable and awake, and of no group that lacks a rank which is. If that
        leaves nothing, the rules about health are ignored rather than the traffic refused: first that of
        groups, then reachability and sleep, never draining.
        """
        if self._routable is None:
            every = self.snapshot()
            staying = [e for e in every if not e.draining]
            well = [e for e in staying if e.reachable and not (e.load and e.load.asleep)]
            all_well = len(well) == len(every) and not self._short
            whole = well if all_well else _of_whole_groups(well, every, short=self._short)
            self._routable = tuple(whole or well or staying)
        return self._routable

    def _members_changed(self) -> None:
        for changed in tuple(self._changed):
            changed()

    def _tell(self, endpoint_id: EndpointId) -> None:
        for forget in tuple(self._forget):
            forget(endpoint_id)


def _of_whole_groups(
    well: Sequence[Endpoint], every: Sequence[Endpoint], *, short: frozenset[str]
) -> list[Endpoint]:
    """Return those of ``well`` whose group has no rank that is not among them."""
    lacking = Counter(dict.fromkeys(short, 1))
    lacking.update(group for e in every if (group := e.labels.get(GROUP)))
    lacking.subtract(group for e in well if (group := e.labels.get(GROUP)))
    return [e for e in well if not lacking[e.labels.get(GROUP, "")]]
