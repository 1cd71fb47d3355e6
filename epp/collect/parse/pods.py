"""What a pod says of itself, and the endpoints it makes. Pure.

Each target port of a pod is an endpoint of its own: a data-parallel rank. Its identity is the pod's
UID and the port, so a pod that is created again under its old name, or an address that
another pod gets, is another endpoint.

**Source:** Kubernetes' Pod (``core/v1``); the pod annotations and labels of llm-d's endpoint
picker, with the older GAIE names; the label ``sleeping`` of vLLM's production stack; the labels of
Kubernetes' LeaderWorkerSet.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from epp.collect.parse.endpoints import DRAINING_LABEL, FIRST_RANK_LABEL, is_rank
from epp.model import GROUP, NO_LABELS, Endpoint, EndpointId

ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""Annotations, the current name first: which of the target ports the pod really serves."""
LEADER_WORKER_GROUP = "leaderworkerset.sigs.k8s.io/group-key"
"""Label that a LeaderWorkerSet gives the pods of each of its groups; `GROUP` wins over it."""
SLEEPING_LABEL = "sleeping"  #: "true": the engine sleeps, its caches are gone
OVER = frozenset({"Succeeded", "Failed"})  #: phases after which no container runs again

Family = Literal["", "ipv4", "ipv6"]  #: which address of a dual-stack pod; "": the cluster's first


class _Metadata(msgspec.Struct):
    name: str
    uid: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = msgspec.field(default=None, name="deletionTimestamp")


class _Port(msgspec.Struct):
    container_port: int | None = msgspec.field(default=None, name="containerPort")


class _Container(msgspec.Struct):
    ports: list[_Port] | None = None


class _Spec(msgspec.Struct):
    containers: list[_Container] | None = None
    host_network: bool | None = msgspec.field(default=None, name="hostNetwork")


class _Condition(msgspec.Struct):
    type: str
    status: str = ""


class _Address(msgspec.Struct):
    ip: str | None = None


class _ContainerStatus(msgspec.Struct):
    restarts: int | None = msgspec.field(default=None, name="restartCount")


class _Status(msgspec.Struct, rename={"pod_ip": "podIP", "pod_ips": "podIPs"}):
    phase: str | None = None
    pod_ip: str | None = None
    pod_ips: list[_Address] | None = None
    conditions: list[_Condition] | None = None
    containers: list[_ContainerStatus] | None = msgspec.field(
        default=None, name="containerStatuses"
    )


class _Object(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec | None = None
    status: _Status | None = None


class Pod(msgspec.Struct, frozen=True):
    """One pod, as far as routing needs it."""

    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str] = NO_LABELS
    host: str = ""  #: its address, normalised; "" as long as it has none, and when it has no more
    ready: bool = False  #: the condition Ready is True
    leaving: bool = False  #: being deleted, or marked as draining
    asleep: bool = False  #: its label says that the engine sleeps
    over: bool = False  #: its containers have ended for good
    restarts: int = 0  #: of all its containers together
    active: frozenset[int] | None = None  #: the ports it says it serves; None: it does not say
    problem: str = ""  #: what of its annotations cannot be read

    @property
    def serving(self) -> bool:
        """Whether it may get new requests."""
        return self.ready and not (self.leaving or self.asleep or self.gone)

    @property
    def gone(self) -> bool:
        """Whether nothing can be reached there at all."""
        return self.over or not self.host


def read_pod(manifest: Mapping[str, Any], family: Family = "") -> Pod:
    """Read one pod; ``family`` chooses the address of a pod that has several.

    Raises:
        ValueError: it is no pod that an API server would keep.
    """
    try:
        found = msgspec.convert(manifest, _Object)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    about, status, spec = found.metadata, found.status or _Status(), found.spec or _Spec()
    labels, notes = about.labels or {}, about.annotations or {}
    active, problem = _active(notes)
    if GROUP not in labels and LEADER_WORKER_GROUP in labels:
        labels = {GROUP: labels[LEADER_WORKER_GROUP], **labels}
    if FIRST_RANK_LABEL in notes:
        labels = {FIRST_RANK_LABEL: notes[FIRST_RANK_LABEL], **labels}
    if not problem and not is_rank(labels.get(FIRST_RANK_LABEL, "0")):
        problem = f"{FIRST_RANK_LABEL}: {labels[FIRST_RANK_LABEL]!r} is no rank"
    if active is None and spec.host_network:
        active = _declared(spec)
    return Pod(
        uid=about.uid or f"{about.namespace}/{about.name}",
        namespace=about.namespace,
        name=about.name,
        labels=labels,
        host=_host(status, family),
        ready=any(c.type == "Ready" and c.status == "True" for c in status.conditions or ()),
        leaving=about.deletion_timestamp is not None
        or "true" in (labels.get(DRAINING_LABEL), notes.get(DRAINING_LABEL)),
        asleep=labels.get(SLEEPING_LABEL) == "true",
        over=status.phase in OVER,
        restarts=sum(c.restarts or 0 for c in status.containers or ()),
        active=active,
        problem=problem,
    )


def as_pod(manifest: Mapping[str, Any], family: Family = "") -> Pod:
    """Read one pod; one that cannot be read is a pod without an address, and says why."""
    try:
        return read_pod(manifest, family)
    except ValueError as error:
        about = manifest.get("metadata") or {}
        uid, namespace, name = (str(about.get(key, "")) for key in ("uid", "namespace", "name"))
        return Pod(uid, namespace, name, problem=str(error))


def endpoints_of(pod: Pod, ports: tuple[int, ...]) -> tuple[Endpoint, ...]:
    """Return the endpoints of a pod with an address; ``ports`` are the pool's, in order."""
    return tuple(
        Endpoint(
            id=EndpointId(f"{pod.uid}:{port}"),
            host=pod.host,
            port=port,
            name=pod.name,
            namespace=pod.namespace,
            rank=rank,
            labels=pod.labels,
            draining=not pod.serving,
        )
        for rank, port in enumerate(ports)
        if pod.active is None or port in pod.active
    )


def _host(status: _Status, family: Family) -> str:
    found = [each.ip for each in status.pod_ips or () if each.ip]
    if status.pod_ip and status.pod_ip not in found:
        found.insert(0, status.pod_ip)
    addresses = [ipaddress.ip_address(text) for text in found]
    wanted = [a for a in addresses if family in ("", f"ipv{a.version}")]
    chosen = next(iter(wanted or addresses), None)
    return "" if chosen is None else chosen.compressed


def _active(notes: Mapping[str, str]) -> tuple[frozenset[int] | None, str]:
    """The annotated ports, and what of them cannot be read.

    A list without one readable port does not count: a typo takes no pod out of service. An
    empty one does: the pod says that it serves nothing.
    """
    key = next((name for name in ACTIVE_PORTS if name in notes), None)
    if key is None:
        return None, ""
    parts = [part.strip() for part in notes[key].split(",") if part.strip()]
    good = frozenset(int(part) for part in parts if _is_port(part))
    bad = [part for part in parts if not _is_port(part)]
    problem = f"annotation {key}: {bad[0]!r} is no port" if bad else ""
    return (None if bad and not good else good), problem


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= 65_535


def _declared(spec: _Spec) -> frozenset[int] | None:
    """The ports a host-network pod declares, None if it declares none.

    Several such pods share their node's address: a port that only another one declares is the other
    one's.
    """
    declared = [
        port.container_port
        for container in spec.containers or ()
        for port in container.ports or ()
        if port.container_port
    ]
    return frozenset(declared) or None
