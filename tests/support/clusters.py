"""A pool kept by a fake cluster."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Self

from epp.collect.kube.cluster import Cluster
from epp.collect.kube.wanted import Wanted
from epp.kube.pace import Backoff, Pace
from epp.kube.reflect import Habits
from epp.pool import Pool
from epp.rules import RuleBook
from tests.support.kube import FakeKube
from tests.support.pages import running
from tests.support.pods import ALPHA, LLM_D, V1

NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
POOLS = f"/apis/{V1}/v1/namespaces/{NAMESPACE}/inferencepools"
ALPHA_POOLS = f"/apis/{ALPHA}/v1alpha2/namespaces/{NAMESPACE}/inferencepools"
OBJECTIVES = f"/apis/{LLM_D}/v1alpha2/namespaces/{NAMESPACE}/inferenceobjectives"
OLD_OBJECTIVES = f"/apis/{ALPHA}/v1alpha2/namespaces/{NAMESPACE}/inferenceobjectives"
REWRITES = f"/apis/{LLM_D}/v1alpha2/namespaces/{NAMESPACE}/inferencemodelrewrites"
OLD_REWRITES = f"/apis/{ALPHA}/v1alpha2/namespaces/{NAMESPACE}/inferencemodelrewrites"
POLICIES = frozenset({OBJECTIVES, OLD_OBJECTIVES, REWRITES, OLD_REWRITES})

QUICK = Habits(pace=Pace(missing=0.2, backoff=Backoff(first=0.02, limit=0.2, longest_asked=0.2)))
WANTED = Wanted(NAMESPACE, "pool")


class Followed:
    """What a cluster made of a pool."""

    def __init__(self, kube: FakeKube) -> None:
        self.kube = kube
        self.pool = Pool()
        self.book = RuleBook()
        self.heard: list[str] = []
        self.forgotten: list[str] = []
        self.pool.on_forget(self.forgotten.append)

    @property
    def known(self) -> list[str]:
        return sorted(endpoint.address for endpoint in self.pool.snapshot())

    @property
    def asked(self) -> list[str]:
        return sorted(endpoint.address for endpoint in self.pool.routable())

    def put(self, *pods: dict[str, Any]) -> None:
        for each in pods:
            self.kube.put(PODS, each)


def kubeconfig(folder: Path, kube: FakeKube, namespace: str = "default") -> str:
    """The flag that names a file for this cluster."""
    path = folder / "kubeconfig"
    path.write_text(json.dumps({
        "current-context": "c",
        "contexts": [{"name": "c",
                      "context": {"cluster": "k", "user": "u", "namespace": namespace}}],
        "clusters": [{"name": "k", "cluster": {"server": kube.url}}],
        "users": [{"name": "u", "user": {}}],
    }))  # fmt: skip
    return f"--kubeconfig={path}"


@contextlib.asynccontextmanager
async def followed(
    *pods: dict[str, Any],
    pools: Iterable[dict[str, Any]] = (),
    wanted: Wanted = WANTED,
    missing: Iterable[str] = (),
    leads: bool = True,
) -> AsyncIterator[Followed]:
    """A fake cluster with these objects, and a pool that follows it."""
    async with FakeKube() as kube:
        kube.faults.missing.update(missing)
        made = Followed(kube)
        made.put(*pods)
        for each in pools:
            kube.put(POOLS, each)
        cluster = Cluster(
            kube.access(), wanted, book=made.book, report=made.heard.append, habits=QUICK,
            leads=lambda: leads,
        )  # fmt: skip
        async with running(cluster.run(made.pool)):
            yield made


class Lines(logging.Handler):
    """Collects what a logger says while it is open."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._logger = logging.getLogger(name)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname.lower()}: {record.getMessage()}")

    def __enter__(self) -> Self:
        self._level = self._logger.level
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)

    def about(self, *words: str) -> list[str]:
        return [line for line in self.lines if all(word in line for word in words)]
