"""Which pool a gateway means by a name: its own, or that of a cluster made for it. Pure.

Gateways make the names of clusters out of those of pools, each in its way. Nothing is guessed: a
name that fits two pools fits none.

**Source:** names of clusters as they are seen in each gateway's Envoy: Istio
(``outbound|54321||POOL-ip-HASH.NAMESPACE.svc.DOMAIN``, where HASH is the beginning of SHA-256 of
the pool's name and a long POOL is cut off), kgateway and Envoy AI Gateway
(``endpointpicker_POOL_NAMESPACE_original_dst``, ``..._NAMESPACE_POOL_PORT``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from epp.errors import NoPool, UnknownPool
from epp.extproc.hints import Hints

LONGEST_SERVICE = 63  #: characters of a Service's name
HASH = 8  #: characters
REMEMBERED = 4096  #: clusters
SHOWN = 80  #: characters of a name in an error


class Names:
    """The pools of one namespace by all their names.

    Args:
        namespace: of the pools.
        pools: their names.
        ports: which pool owns a port of ours; one that several name has no owner.
    """

    def __init__(
        self, namespace: str, pools: Iterable[str], ports: Mapping[int, str] | None = None
    ) -> None:
        self._namespace = namespace
        self._pools = frozenset(pools)
        self._ports = dict(ports or {})
        self._told = {spelling: name for name in self._pools for spelling in self._spelled(name)}
        self._services = {_service(name): name for name in self._pools}
        self._clusters: dict[str, str | None] = dict(self._told)

    def owner(self, port: int) -> str | None:
        """The pool whose own port this is."""
        return self._ports.get(port)

    def find(self, hints: Hints) -> str:
        """Return the pool that is meant.

        Raises:
            UnknownPool: the gateway names something that is no pool of ours.
            NoPool: it names nothing.
        """
        if hints.told:
            names, found = hints.told, self._only(map(self._told.get, hints.told))
        else:
            names = (*hints.clusters, *hints.routes)
            found = self._only(map(self._cluster, hints.clusters)) or self._only(
                map(self._told.get, hints.routes)
            )
        if found:
            return found
        if names:
            shown = ", ".join(repr(name[:SHOWN]) for name in names)
            raise UnknownPool(f"this picker serves no pool of that name: the gateway says {shown}")
        raise NoPool(
            "the gateway does not say which pool the request is for: have its ext_proc filter ask "
            "for the attribute xds.cluster_name, or give each pool a port of its own"
        )

    def _spelled(self, name: str) -> Iterator[str]:
        yield name
        yield f"{self._namespace}/{name}"

    def _only(self, found: Iterable[str | None]) -> str | None:
        names = {name for name in found if name}
        return names.pop() if len(names) == 1 else None

    def _cluster(self, cluster: str) -> str | None:
        """The pool of a cluster; one look-up if it was asked for before."""
        if cluster in self._clusters:
            return self._clusters[cluster]
        found = self._only(self._read(cluster))
        if len(self._clusters) < REMEMBERED:
            self._clusters[cluster] = found
        return found

    def _read(self, cluster: str) -> Iterator[str | None]:
        if "|" in cluster:
            service, _, rest = cluster.rpartition("|")[2].partition(".")
            here = rest.partition(".")[0] == self._namespace
            yield (self._services.get(service) or self._of(service)) if here else None
            return
        parts = cluster.split("_")  # in no name of Kubernetes there is one
        for before, after in pairwise(parts):
            if after == self._namespace:
                yield self._of(before)
            if before == self._namespace:
                yield self._of(after) or self._of(after.removesuffix("-svc"))

    def _of(self, name: str) -> str | None:
        return name if name in self._pools else None


def _service(pool: str) -> str:
    """The Service that Istio makes for a pool."""
    end = f"-ip-{hashlib.sha256(pool.encode()).hexdigest()[:HASH]}"
    return pool[: LONGEST_SERVICE - len(end)] + end
