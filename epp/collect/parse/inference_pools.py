"""An InferencePool, in either version: which pods, and which of their ports. Pure.

**Source:** Gateway API Inference Extension: InferencePool of ``inference.networking.k8s.io/v1``
(``selector.matchLabels``, ``targetPorts``, ``appProtocol``, ``endpointPickerRef``) and of
``inference.networking.x-k8s.io/v1alpha2`` (flat ``selector``, ``targetPortNumber``,
``extensionRef``). The annotation is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

MAX_PORTS = 8
LARGEST_PORT = 65_535
CONFIG = "epp/config"  #: annotation: ``CONFIGMAP`` or ``CONFIGMAP/KEY`` in the pool's namespace


class PoolSpec(msgspec.Struct, frozen=True):
    """Which endpoints a pool has."""

    ports: tuple[int, ...]  #: of each pod; the place of one in here is its rank
    labels: Mapping[str, str] | None = None  #: a pod must have all; None: it was chosen elsewhere
    problem: str = ""  #: why this can have no endpoints; "" if it can
    name: str = ""  #: the pool's
    config: str = ""  #: where its configuration is; "": none of its own
    picker_port: int = 0  #: where its picker is asked; 0: not told
    protocol: str = ""  #: its pods' ``appProtocol``; "": not told

    def chooses(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod with these labels belongs to it."""
        if self.labels is None:
            return True
        return bool(self.labels) and all(labels.get(k) == v for k, v in self.labels.items())


def read_pool(manifest: Mapping[str, Any]) -> PoolSpec:
    """Read a pool; whatever is left out, null or of another type is missing, never an error."""
    spec = _mapping(manifest.get("spec"))
    labels, ports = _labels(spec), _ports(spec)
    problem = ""
    if not labels:
        problem = "its selector names no label, so it has no pods"
    elif not ports:
        problem = "it names no target port, so its pods have no endpoints"
    about = _mapping(manifest.get("metadata"))
    config = _mapping(about.get("annotations")).get(CONFIG)
    return PoolSpec(
        ports,
        labels,
        problem,
        str(about.get("name", "")),
        config.strip() if isinstance(config, str) else "",
        _picker_port(spec),
        protocol if isinstance(protocol := spec.get("appProtocol"), str) else "",
    )


def parse_ports(text: str) -> tuple[int, ...]:
    """Read ``8000,8001``: one to eight different ports.

    Raises:
        ValueError: it is not that; names the culprit.
    """
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdigit() and 0 < int(part) <= LARGEST_PORT):
            raise ValueError(f"{part!r} is not a port (1 to {LARGEST_PORT})")
    ports = tuple(int(part) for part in parts)
    if len(set(ports)) != len(ports):
        raise ValueError(f"a port stands twice in {text!r}")
    if len(ports) > MAX_PORTS:
        raise ValueError(f"{len(ports)} ports are more than {MAX_PORTS}")
    return ports


def _labels(spec: Mapping[str, Any]) -> dict[str, str]:
    selector = _mapping(spec.get("selector"))
    nested = selector.get("matchLabels")
    labels = selector if isinstance(nested, str) else _mapping(nested) or selector
    return {k: v for k, v in labels.items() if isinstance(v, str)}


def _ports(spec: Mapping[str, Any]) -> tuple[int, ...]:
    listed = spec.get("targetPorts")
    numbers = [_mapping(each).get("number") for each in listed] if isinstance(listed, list) else []
    numbers = numbers or [spec.get("targetPortNumber")]
    good = [n for n in numbers if isinstance(n, int) and 0 < n <= LARGEST_PORT]
    return tuple(dict.fromkeys(good))


def _picker_port(spec: Mapping[str, Any]) -> int:
    reference = _mapping(spec.get("endpointPickerRef"))
    port = _mapping(reference.get("port")).get("number")
    if not reference:
        port = _mapping(spec.get("extensionRef")).get("portNumber")
    return port if isinstance(port, int) and 0 < port <= LARGEST_PORT else 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
