"""Manifests of pods, pools and policies, as an API server shows them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

LABELS = {"app": "vllm"}
V1 = "inference.networking.k8s.io"
ALPHA = "inference.networking.x-k8s.io"
LLM_D = "llm-d.ai"


def pod(name: str = "a", host: str | None = "10.0.0.1", **facts: Any) -> dict[str, Any]:
    """A running, ready pod of `LABELS`.

    ``facts``: uid, namespace, labels, annotations, ready, phase, deleting, restarts, hosts
    (a dual-stack pod's), ports (declared), host_network.
    """
    fact = {"uid": f"uid-{name}", "namespace": "default", "labels": LABELS, "ready": True} | facts
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": fact["namespace"],
        "uid": fact["uid"],
        "labels": dict(fact["labels"]),
        "annotations": dict(fact.get("annotations", {})),
    }
    if fact.get("deleting"):
        metadata |= {
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "deletionGracePeriodSeconds": 30,
        }
    ports = [{"containerPort": port} for port in fact.get("ports", ())]
    status: dict[str, Any] = {
        "phase": fact.get("phase", "Running"),
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True" if fact["ready"] else "False"},
        ],
        "containerStatuses": [{"name": "engine", "restartCount": fact.get("restarts", 0)}],
    }
    if host is not None:
        status |= {"podIP": host, "podIPs": [{"ip": ip} for ip in fact.get("hosts", (host,))]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": [{"name": "engine", "image": "engine", "ports": ports}],
            **({"hostNetwork": True} if fact.get("host_network") else {}),
        },
        "status": status,
    }


def inference_pool(
    name: str = "pool",
    *,
    labels: Mapping[str, str] = LABELS,
    ports: tuple[int, ...] = (8000,),
    config: str = "",
    picker_port: int = 9002,
) -> dict[str, Any]:
    """An InferencePool of v1; ``config`` is the annotation that names its configuration."""
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    if config:
        metadata["annotations"] = {"epp/config": config}
    reference = {"group": "", "kind": "Service", "name": "epp", "port": {"number": picker_port}}
    return {
        "apiVersion": f"{V1}/v1",
        "kind": "InferencePool",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": dict(labels)},
            "targetPorts": [{"number": port} for port in ports],
            "appProtocol": "http",
            "endpointPickerRef": reference,
        },
    }


def alpha_pool(
    name: str = "pool", *, labels: Mapping[str, str] = LABELS, port: int = 8000
) -> dict[str, Any]:
    """An InferencePool of v1alpha2."""
    return {
        "apiVersion": f"{ALPHA}/v1alpha2",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {
            "selector": dict(labels),
            "targetPortNumber": port,
            "extensionRef": {"name": "epp"},
        },
    }


def config_map(name: str, **texts: str) -> dict[str, Any]:
    """A ConfigMap; ``config_yaml`` is its key ``config.yaml``."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "data": {key.replace("_", "."): text for key, text in texts.items()},
    }


def objective(
    name: str, priority: int | None, *, pool: str = "pool", group: str = V1
) -> dict[str, Any]:
    """An InferenceObjective of a pool; ``group`` is the pool's."""
    spec: dict[str, Any] = {"poolRef": {"group": group, "kind": "InferencePool", "name": pool}}
    if priority is not None:
        spec["priority"] = priority
    return {
        "apiVersion": f"{LLM_D}/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "generation": 1},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "Pending"}]},
    }


def rewrite(
    name: str, *rules: Mapping[str, Any], created: str = "2026-01-01T00:00:00Z", pool: str = "pool"
) -> dict[str, Any]:
    """An InferenceModelRewrite of a pool."""
    return {
        "apiVersion": f"{LLM_D}/v1alpha2",
        "kind": "InferenceModelRewrite",
        "metadata": {
            "name": name, "namespace": "default", "uid": f"uid-{name}", "generation": 1,
            "creationTimestamp": created,
        },
        "spec": {
            "poolRef": {"group": V1, "kind": "InferencePool", "name": pool},
            "rules": [copy.deepcopy(dict(rule)) for rule in rules],
        },
    }  # fmt: skip


def rule(*models: str, to: Mapping[str, int | None]) -> dict[str, Any]:
    """One rule of a rewrite: which models, to which targets with which weights."""
    targets = [
        {"modelRewrite": model} | ({} if weight is None else {"weight": weight})
        for model, weight in to.items()
    ]
    matches = [{"model": {"type": "Exact", "value": model}} for model in models]
    return {"targets": targets} | ({"matches": matches} if matches else {})
