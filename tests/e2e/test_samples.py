"""Envoy itself accepts every bootstrap that ``epp gateway`` prints."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epp.gateway.options import GatewayOptions
from epp.gateway.render import render
from epp.local.fleet import envoy_binary

pytestmark = pytest.mark.e2e

FOLDER = Path(__file__).parents[2] / "gateway"
LISTED: dict[str, Any] = {"endpoints": ("127.0.0.1:8000", "[::1]:8001")}
NAMED: dict[str, Any] = {"endpoints": ("engine-0.engines:8000", "engine-1.engines:8000")}
OVERRIDE: dict[str, Any] = {"routing": "override-host", "fail_open": True}


def validate(bootstrap: Path) -> None:
    checked = subprocess.run(
        [envoy_binary(), "--mode", "validate", "-c", str(bootstrap)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr[-2000:]
    assert "deprecated" not in checked.stderr.lower(), checked.stderr[-2000:]


@pytest.mark.parametrize("sample", sorted(FOLDER.glob("*.yaml")), ids=lambda sample: sample.stem)
def test_envoy_accepts_the_sample(sample: Path) -> None:
    validate(sample)


@pytest.mark.parametrize(
    "fields",
    [
        {"picker_tls": True, "picker_host": "picker.example"},
        {"picker_tls": False, "picker_host": "::1"},
        {"mode": "stock", "picker_tls": False},
        {"mode": "stock", "message_timeout": 0.5},
        {"lean_usage": True, "lean_ttft": True},
        {**LISTED, **OVERRIDE},
        {"mode": "stock", **NAMED, **OVERRIDE, "num_retries": 0},
        {"mode": "direct", **NAMED},
    ],
    ids=str,
)
def test_envoy_accepts_the_options(fields: dict[str, Any], tmp_path: Path) -> None:
    bootstrap = tmp_path / "envoy.yaml"
    bootstrap.write_text(render(msgspec.structs.replace(GatewayOptions(), **fields)))
    validate(bootstrap)


def test_envoy_refuses_what_is_no_bootstrap(tmp_path: Path) -> None:
    bootstrap = tmp_path / "envoy.yaml"
    bootstrap.write_text("static_resources: {listeners: 1}\n")
    with pytest.raises(AssertionError):
        validate(bootstrap)
