"""Which endpoints the pods of a cluster make: pods and their pool in, changes of the `Pool` out.

It is told of pods and of the pool in any order, and twice if need be. It does no I/O.

A pod that is not ready, or is being deleted, gets nothing new and keeps what it has: its requests
stay booked and its cache stays known until it is gone. One that was never ready is not here, but
the other pods of its group get nothing until it is.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from epp.collect.parse.inference_pools import PoolSpec
from epp.collect.parse.pods import Pod, endpoints_of
from epp.model import GROUP, Endpoint
from epp.pool import Pool

Name = tuple[str, str]  #: namespace and name: at any time of one pod only


class Members:
    """Keeps a `Pool` as the pods are.

    Args:
        pool: what is written.
        report: is told what of a pod cannot be read.
    """

    def __init__(self, pool: Pool, *, report: Callable[[str], None] = lambda _: None) -> None:
        self.spec: PoolSpec | None = None  #: what the pool asks for; None as long as there is none
        self._pool = pool
        self._report = report
        self._pods: dict[Name, Pod] = {}
        self._endpoints: dict[Name, tuple[Endpoint, ...]] = {}
        self._awaited: dict[Name, str] = {}  # groups of pods that have no endpoint yet

    def follow(self, spec: PoolSpec | None) -> None:
        """Have the endpoints that ``spec`` asks for; None has none."""
        if spec != self.spec:
            self.spec = spec
            for name, pod in self._pods.items():
                self._apply(name, pod, before=pod)

    def put(self, pod: Pod) -> None:
        """Take a pod as it is now."""
        name = pod.namespace, pod.name
        before = self._pods.get(name)
        if before is not None and before.uid != pod.uid:
            self._drop(name)
            before = None
        if pod.problem and (before is None or before.problem != pod.problem):
            self._report(f"pod {pod.namespace}/{pod.name}: {pod.problem}")
        self._pods[name] = pod
        self._apply(name, pod, before=before or pod)

    def gone(self, pod: Pod) -> None:
        """Take away a pod; one that another took the name of is gone already."""
        name = pod.namespace, pod.name
        here = self._pods.get(name)
        if here is not None and here.uid == pod.uid:
            self._drop(name)

    def _drop(self, name: Name) -> None:
        self._pods.pop(name, None)
        for endpoint in self._endpoints.pop(name, ()):
            self._pool.remove(endpoint.id)
        self._await(name, "")

    def _apply(self, name: Name, pod: Pod, *, before: Pod) -> None:
        old = self._endpoints.get(name, ())
        new = self._wanted(pod, known=bool(old))
        staying = {endpoint.id for endpoint in new}
        for endpoint in old:
            if endpoint.id not in staying:
                self._pool.remove(endpoint.id)
        another = _another_process(before, pod)
        for endpoint in new:
            self._put(endpoint, another=another)
        if new:
            self._endpoints[name] = new
        else:
            self._endpoints.pop(name, None)
        self._await(name, "" if new or pod.serving else self._group(pod))

    def _await(self, name: Name, group: str) -> None:
        """Note that a group lacks this pod; "" if none does."""
        if self._awaited.get(name, "") == group:
            return
        self._awaited.pop(name, None)
        if group:
            self._awaited[name] = group
        self._pool.set_short_groups(frozenset(self._awaited.values()))

    def _group(self, pod: Pod) -> str:
        """Return which group of the pool's a pod is of, or is going to be; "" if of none."""
        spec = self.spec
        chosen = spec is not None and not pod.over and spec.chooses(pod.labels)
        return pod.labels.get(GROUP, "") if chosen else ""

    def _wanted(self, pod: Pod, *, known: bool) -> tuple[Endpoint, ...]:
        spec = self.spec
        if spec is None or pod.gone or not spec.chooses(pod.labels):
            return ()
        return endpoints_of(pod, spec.ports) if known or pod.ready else ()

    def _put(self, endpoint: Endpoint, *, another: bool) -> None:
        old = self._pool.get(endpoint.id)
        if old is not None and not another:
            endpoint = msgspec.structs.replace(endpoint, load=old.load, reachable=old.reachable)
        if endpoint != old:
            self._pool.put(endpoint)
        if old is not None and another:
            self._pool.restarted(endpoint.id)


def _another_process(before: Pod, after: Pod) -> bool:
    """Whether what was known of the pod's engine is void."""
    return (
        before.host != after.host
        or before.restarts != after.restarts
        or (after.asleep and not before.asleep)
    )
