"""Pods that no kubelet runs: created by an administrator, their status written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.support.cluster.install import ENGINES, LABELS, Installed

KEEP = "epp.example.org/keep"  #: a finalizer: a deleted pod stays until it is taken off
NOBODY = "epp-tests"  #: a scheduler that there is not, so that no kubelet gets the pod


def manifest(name: str, port: int, labels: Mapping[str, str] = LABELS) -> dict[str, Any]:
    """A pod as its owner writes it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels), "finalizers": [KEEP]},
        "spec": {
            "schedulerName": NOBODY,
            "serviceAccountName": ENGINES,
            "automountServiceAccountToken": False,
            "containers": [
                {"name": "engine", "image": "epp", "ports": [{"containerPort": port}]}
            ],
        },
    }  # fmt: skip


def status(host: str, *, ready: bool = True, restarts: int = 0) -> dict[str, Any]:
    """What a kubelet writes of a pod that runs at ``host``."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kinds = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
    return {
        "phase": "Running",
        "podIP": host,
        "podIPs": [{"ip": host}],
        "conditions": [
            {"type": kind, "status": str(true), "lastTransitionTime": now}
            for kind, true in kinds.items()
        ],
        "containerStatuses": [
            {
                "name": "engine",
                "image": "epp",
                "imageID": "epp",
                "ready": ready,
                "started": True,
                "restartCount": restarts,
                "state": {"running": {"startedAt": now}},
            }
        ],
    }


class Pods:
    """The pods of one namespace."""

    def __init__(self, release: Installed, port: int) -> None:
        self._release = release
        self._port = port

    def path(self, name: str) -> str:
        return self._release.path("v1", "pods", name)

    async def start(
        self, name: str, host: str, *, ready: bool = True, labels: Mapping[str, str] = LABELS
    ) -> None:
        """Create a pod and have it run."""
        await self._release.add(manifest(name, self._port, labels))
        await self.tell(name, status(host, ready=ready))

    async def tell(self, name: str, said: Mapping[str, Any]) -> None:
        """Write a pod's status."""
        await self._release.admin.patch(f"{self.path(name)}/status", {"status": said})

    async def delete(self, name: str) -> None:
        """Mark a pod as being deleted; it stays until `end`."""
        await self._release.admin.delete(self.path(name))

    async def end(self, name: str) -> None:
        """Let a deleted pod go."""
        await self._release.admin.patch(self.path(name), {"metadata": {"finalizers": None}})
        self._release.made.remove(self.path(name))
