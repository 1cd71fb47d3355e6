"""Checks Kubernetes objects offline, as strictly as an API server would."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

SCHEMAS = Path(__file__).parents[1] / "data/manifests.yaml"
VERSION = "1.37"


class Wrong(AssertionError):
    """An object that an API server would refuse."""


@cache
def _custom() -> dict[str, Any]:
    return dict(yaml.safe_load(SCHEMAS.read_text()))


def check(it: dict[str, Any]) -> None:
    """Check one object: its fields, their types and bounds.

    Raises:
        Wrong: and what is.
    """
    _check(json.dumps(it))


@cache
def _check(text: str) -> None:
    it = json.loads(text)
    what = f"{it['apiVersion']} {it['kind']} {it['metadata']['name']}"
    spec = _custom().get(f"{it['apiVersion']} {it['kind']}")
    try:
        if spec is None:
            kubernetes_validate.validate(it, VERSION, strict=True)
        else:
            jsonschema.validate(it["spec"], spec)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
        place = "/".join(str(part) for part in error.path)
        raise Wrong(f"{what}: {place}: {error.message}") from error
    except kubernetes_validate.SchemaNotFoundError as error:
        raise Wrong(f"{what}: there is no such kind") from error
