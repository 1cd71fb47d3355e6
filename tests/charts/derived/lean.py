"""Lean mode under other people's gateways: what they must be told of `epp gateway`'s bootstrap."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from epp.gateway.bootstrap import bootstrap
from epp.gateway.options import GatewayOptions
from epp.gateway.render import dumped

FOLDER = Path(__file__).parents[3] / "gateway/kubernetes"
PICKER = "qwen-epp.models.svc.cluster.local"

MANAGER_FIELDS = (
    "accessLog", "earlyHeaderMutationExtensions", "preserveExternalRequestId",
    "streamIdleTimeout", "httpProtocolOptions",
)  # fmt: skip
"""What the connection manager needs beside its filters; gateways set the rest."""


class Lean:
    """The parts of the lean bootstrap for a picker in a cluster."""

    def __init__(self, *, tls: bool) -> None:
        options = GatewayOptions(
            picker_host=PICKER, picker_tls=tls, lean_ttft=True, lean_usage=True
        )
        whole = bootstrap(options)
        self.listener: dict[str, Any] = whole["staticResources"]["listeners"][0]
        self.engines, self.picker = whole["staticResources"]["clusters"]
        self.manager = self.listener["filterChains"][0]["filters"][0]["typedConfig"]
        *self.answers, self.filter, _ = self.manager["httpFilters"]
        self.log = self.manager["accessLog"][0]["typedConfig"]

    def manager_patch(self) -> dict[str, Any]:
        """What is merged into the connection manager."""
        fields = {name: self.manager[name] for name in MANAGER_FIELDS}
        return {
            "name": "envoy.filters.network.http_connection_manager",
            "typedConfig": {"@type": self.manager["@type"], **fields},
        }


def manifests() -> dict[Path, str]:
    """Return the manifests that embed parts of the bootstrap, with the text they should have."""
    istio, envoy_gateway = Lean(tls=True), Lean(tls=False)
    answers = dict(zip(("STREAMS", "WHOLE", "TTFT"), istio.answers, strict=True))
    parts = {
        "istio-lean.yaml": {
            "PICKER": istio.picker,
            "ENGINES": istio.engines,
            "FILTER": istio.filter,
            "MANAGER": istio.manager_patch(),
            "BUFFER": {"perConnectionBufferLimitBytes": _buffer(istio)},
        },
        "envoy-gateway-lean.yaml": {"ENGINES": envoy_gateway.engines},
        "istio-lean-answers.yaml": answers,
        "envoy-gateway-lean-answers.yaml": answers,
    }
    return {
        FOLDER / name: _filled((FOLDER / name).read_text(), values)
        for name, values in parts.items()
    }


def _buffer(lean: Lean) -> Any:
    return lean.listener["perConnectionBufferLimitBytes"]


def _filled(text: str, parts: dict[str, Any]) -> str:
    """Replace what stands under each ``# part NAME`` at its indentation or deeper."""
    lines: list[str] = []
    skipping = -1
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if skipping >= 0 and (indent >= skipping and line.strip()):
            continue
        skipping = -1
        lines.append(line)
        if line.lstrip().startswith("# part "):
            name = line.split()[2]
            lines += textwrap.indent(dumped(parts[name]), " " * indent).splitlines()
            skipping = indent
    return "\n".join(lines) + "\n"
