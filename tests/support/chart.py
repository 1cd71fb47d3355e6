"""The Helm chart, rendered by Helm's own code in this process, as parsed objects."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart, lint

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/epp"
VALUES = ROOT / "tests/data/charts"
PROVIDERS = ("istio", "gke", "kgateway", "agentgateway", "envoy-gateway", "none")
POOL: dict[str, Any] = {"pool": {"matchLabels": {"app": "vllm"}}}

Objects = list[dict[str, Any]]


def read(name: str) -> dict[str, Any]:
    """Return one of the values files."""
    return dict(yaml.safe_load((VALUES / f"{name}.yaml").read_text()))


class _Once(yaml.CSafeLoader):
    """Refuses a key that is there twice, as an API server does that checks fields."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        made = super().construct_mapping(node, deep)
        if len(made) != len(node.value):
            raise AssertionError(f"a key is there twice {node.start_mark}")
        return made


@cache
def _chart() -> Chart:
    return Chart.load(str(CHART))


def render(values: dict[str, Any], *, release: str = "qwen", namespace: str = "models") -> Objects:
    """Return what the chart makes of ``values``.

    Raises:
        helm_python.HelmError: the values are refused.
    """
    return copy.deepcopy(_rendered(json.dumps(values), release, namespace))


@cache
def _rendered(values: str, release: str, namespace: str) -> Objects:
    texts = _chart().render(json.loads(values), name=release, namespace=namespace)
    return [
        each
        for path, text in texts.items()
        if path.endswith(".yaml")
        for each in yaml.load_all(text, _Once)
        if each
    ]


def notes(values: dict[str, Any]) -> str:
    """Return what an installation with ``values`` prints."""
    texts = _chart().render(values, name="qwen", namespace="models")
    return next(text for path, text in texts.items() if path.endswith("NOTES.txt"))


def complaints(values: dict[str, Any]) -> list[str]:
    """Return what `helm lint --strict` has against the chart with ``values``."""
    report = lint(str(CHART), values, strict=True)
    messages = [str(each) for each in report["messages"] if each["severity"] > 1]
    return messages + [str(error) for error in report["errors"] or []]


def one(objects: Objects, kind: str, name: str | None = None) -> dict[str, Any]:
    """Return the only object of ``kind``, or of that name."""
    found = all_of(objects, kind)
    if name is not None:
        found = [each for each in found if each["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} objects are a {kind} {name or ''}"
    return found[0]


def all_of(objects: Objects, kind: str) -> Objects:
    """Return the objects of ``kind``."""
    return [each for each in objects if each["kind"] == kind]


def container(objects: Objects, name: str = "epp") -> dict[str, Any]:
    """Return a container of any Deployment by its name."""
    found = [
        each
        for deployment in all_of(objects, "Deployment")
        for each in deployment["spec"]["template"]["spec"]["containers"]
        if each["name"] == name
    ]
    assert len(found) == 1, f"{len(found)} containers are named {name}"
    return dict(found[0])
