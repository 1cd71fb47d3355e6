"""Renders Envoy bootstraps as YAML."""

from __future__ import annotations

import re
from typing import Any

import yaml

from epp.errors import ConfigError
from epp.gateway.options import GatewayOptions


def render(options: GatewayOptions) -> str:
    """Return the bootstrap for ``options``.

    Raises:
        ConfigError: the options contradict each other, or the ``gateway`` extra is missing.
    """
    check(options)
    try:
        from epp.gateway.bootstrap import bootstrap  # noqa: PLC0415 - an optional dependency
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Envoy's configuration types are missing ({error.name}): pip install '.[gateway]' "
            "in the folder of epp's sources"
        ) from error
    return dumped(bootstrap(options))


class _Dumper(yaml.SafeDumper):
    """Writes scripts line by line."""


def _string(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def dumped(value: Any) -> str:
    """Return ``value`` as YAML to be read."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=100)
    return text


def check(options: GatewayOptions) -> None:
    """Refuse options that contradict each other.

    Raises:
        ConfigError: and why.
    """
    if options.fail_open and (options.mode == "direct" or options.routing != "override-host"):
        raise ConfigError(
            "--fail-open needs --routing=override-host: with original-dst there is no destination "
            "without the picker"
        )
    _check_pools(options)
    if (options.lean_usage or options.lean_ttft) and options.mode != "lean":
        raise ConfigError("--lean-usage and --lean-ttft need --mode=lean")


def _check_pools(options: GatewayOptions) -> None:
    pools = options.pools
    if pools and (options.mode == "direct" or options.routing != "original-dst"):
        raise ConfigError("--pools needs --mode=lean or stock, and --routing=original-dst")
    if len(set(pools)) < len(pools):
        raise ConfigError(f"--pools {','.join(pools)}: one stands twice")
    taken = ("picker", "mirror") if options.mirror else ("picker",)
    for pool in pools:
        if pool in taken or not _POOL.fullmatch(pool):
            raise ConfigError(f"--pools: {pool!r} cannot be a cluster's and a pool's name")


_POOL = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")  #: as Kubernetes names objects


__all__ = ["GatewayOptions", "dumped", "render"]
