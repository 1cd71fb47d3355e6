"""What of a cluster is wanted, and where its API has it. Pure.

**Source:** llm-d's endpoint picker: InferencePool of ``inference.networking.k8s.io/v1``, or of
``inference.networking.x-k8s.io/v1alpha2`` where that is older; InferenceObjective and
InferenceModelRewrite of ``llm-d.ai/v1alpha2``, or of the same older group.
"""

from __future__ import annotations

import msgspec

from epp.collect.parse.inference_pools import PoolSpec
from epp.collect.parse.pods import Family
from epp.collect.parse.policies import PoolName

GROUP = "inference.networking.k8s.io"
OLDER_GROUP = "inference.networking.x-k8s.io"
VERSIONS = {GROUP: "v1", OLDER_GROUP: "v1alpha2"}
POLICY_GROUPS = ("llm-d.ai", OLDER_GROUP)
POLICY_VERSION = "v1alpha2"


class Wanted(msgspec.Struct, frozen=True):
    """An InferencePool, or pods by their labels."""

    namespace: str
    pool: str = ""  #: an InferencePool's name
    group: str = GROUP  #: its API group
    selector: str = ""  #: without a pool: labels, as Kubernetes writes selectors
    fixed: PoolSpec | None = None  #: without a pool: the ports
    family: Family = ""

    @property
    def pods(self) -> str:
        """The pods' collection."""
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools' collections, the one to prefer first."""
        groups = (GROUP, OLDER_GROUP) if self.group == GROUP else (self.group,)
        return tuple(
            self._collection(group, VERSIONS.get(group, "v1"), "inferencepools") for group in groups
        )

    def policies(self, plural: str) -> tuple[str, ...]:
        """Collections of ``inferenceobjectives`` or ``inferencemodelrewrites``."""
        return tuple(self._collection(g, POLICY_VERSION, plural) for g in POLICY_GROUPS)

    @property
    def pool_name(self) -> PoolName:
        """What a policy for this pool refers to."""
        groups = {GROUP, OLDER_GROUP} if self.group == GROUP else {self.group}
        return PoolName(self.pool, frozenset(groups))

    def __str__(self) -> str:
        if self.pool:
            return f"InferencePool {self.pool} ({self.group}) in namespace {self.namespace}"
        return f"pods with {self.selector} in namespace {self.namespace}"

    def _collection(self, group: str, version: str, plural: str) -> str:
        return f"/apis/{group}/{version}/namespaces/{self.namespace}/{plural}"
