"""The pods of a namespace, each handed to the pools whose selector it matches.

One watch serves all pools. A pod is compared only with pools that share a label with it, so that a
change of one pod does not cost more the more pools there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from epp.collect.kube.members import Members, Name
from epp.collect.parse.inference_pools import PoolSpec
from epp.collect.parse.pods import Pod

Label = tuple[str, str]


class Crowd:
    """All pods, and the members of each pool."""

    def __init__(self) -> None:
        self._pods: dict[Name, Pod] = {}
        self._members: dict[str, Members] = {}
        self._holders: defaultdict[Name, set[str]] = defaultdict(set)  #: pools told of a pod
        self._index: defaultdict[Label, set[str]] = defaultdict(
            set
        )  #: pools by one of their labels
        self._labels: dict[str, Label] = {}  #: that label of each pool in `_index`

    def add(self, pool: str, members: Members) -> None:
        """Keep ``members`` for a pool; it has no endpoints before `follow`."""
        self._members[pool] = members

    def drop(self, pool: str) -> None:
        """Forget a pool: its endpoints go, and what is known of them."""
        self.follow(pool, None)
        del self._members[pool]
        for holders in self._holders.values():
            holders.discard(pool)

    def follow(self, pool: str, spec: PoolSpec | None) -> None:
        """Have a pool's endpoints as ``spec`` asks for; None has none. O(pods) if it changed."""
        members = self._members[pool]
        if members.spec == spec:
            return
        members.follow(spec)
        self._note(pool, spec)
        for name, pod in self._pods.items():
            if pool in self._holders[name] or (spec is not None and spec.chooses(pod.labels)):
                self._tell(name, pod, pool)

    def put(self, pod: Pod) -> None:
        """Take a pod as it is now."""
        name = pod.namespace, pod.name
        self._pods[name] = pod
        for pool in self._holders[name] | self._sharing(pod.labels):
            self._tell(name, pod, pool)

    def gone(self, pod: Pod) -> None:
        """Take away a pod; one that another took the name of is gone already."""
        name = pod.namespace, pod.name
        here = self._pods.get(name)
        if here is None or here.uid != pod.uid:
            return
        del self._pods[name]
        for pool in self._holders.pop(name, ()):
            self._members[pool].gone(pod)

    def _tell(self, name: Name, pod: Pod, pool: str) -> None:
        members, holders = self._members[pool], self._holders[name]
        if members.spec is not None and members.spec.chooses(pod.labels):
            members.put(pod)
            holders.add(pool)
        elif pool in holders:
            members.put(pod)
            members.gone(pod)
            holders.discard(pool)

    def _sharing(self, labels: Mapping[str, str]) -> set[str]:
        found: set[str] = set()
        for label in labels.items():
            found |= self._index.get(label, set())
        return found

    def _note(self, pool: str, spec: PoolSpec | None) -> None:
        """File the pool under its rarest label."""
        old = self._labels.pop(pool, None)
        if old is not None:
            self._index[old].discard(pool)
            if not self._index[old]:
                del self._index[old]
        if spec is not None and spec.labels:
            rarest = min(
                sorted(spec.labels.items()), key=lambda label: len(self._index.get(label, ()))
            )
            self._labels[pool] = rarest
            self._index[rarest].add(pool)
