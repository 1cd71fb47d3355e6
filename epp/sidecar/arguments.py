"""The flags of ``epp sidecar``: those of the Go sidecar where it has them, and a file of them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from epp.config.units import parse_duration, parse_quantity
from epp.disagg.connectors import CONNECTORS
from epp.errors import ConfigError
from epp.sidecar.options import ENCODER_CONNECTORS, SidecarOptions
from epp.terminal.arguments import count, port, positive, truth, words

IGNORED = {
    "decode-chunk-size": "answers are not made in chunks",
    "p2p-connector-port": "only the offloading connector has it",
    "enable-p2p-pull": "only the offloading connector has it",
    "max-idle-conns-per-host": "idle connections are closed after 3 s",
    "tracing": "spans are the picker's and the engine's",
    "enable-speculative-prefill": "a next turn is not computed before it is asked for",
    "tls-min-version": "TLS 1.2 at least",
    "tls-cipher-suites": "those of OpenSSL's default",
    "metrics-cert-dir": "metrics are told in the clear",
    **{
        f"moriio-{name}": "MoRI-IO is not spoken"
        for name in (
            "write-mode", "parallel-dispatch", "parallel-decode-wait-timeout", "local-pod-ip",
            "decode-notify-port", "decode-handshake-port", "prefill-notify-port",
            "prefill-handshake-port", "tp-size", "dp-size", "dp-size-local", "remote-hosts",
            "decode-hosts",
        )
    },
}  # fmt: skip
"""Flags of the Go sidecar that change nothing here, and why. **Source:** llm-d-router,
pkg/sidecar/proxy/options.go."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    for title, flags in _GROUPS.items():
        group = parser.add_argument_group(title)
        for flag, (read, text) in flags.items():
            _add(group, flag, read, text)
    parser.add_argument(
        "--configuration", default="", metavar="YAML", help="these flags as a mapping"
    )
    parser.add_argument(
        "--configuration-file", default="", metavar="FILE", help="the same in a file"
    )
    ignored = parser.add_argument_group("accepted, and ignored with a warning")
    for flag, why in IGNORED.items():
        ignored.add_argument(f"--{flag}", nargs="?", const="true", help=why)


def options_of(parsed: argparse.Namespace) -> SidecarOptions:
    """Return the options; a flag wins over the configuration, and that over the environment.

    Raises:
        ConfigError: the configuration cannot be read, or has what no flag has.
    """
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in vars(parsed).items()}
    told = {**_configured(parsed), **{k: v for k, v in given.items() if v is not None}}
    port_of_sglang = os.environ.get("SGLANG_BOOTSTRAP_PORT", "")
    if port_of_sglang and told.get("kv_connector") == "sglang":
        told.setdefault("mooncake_bootstrap_port", _port("SGLANG_BOOTSTRAP_PORT", port_of_sglang))
    names = [name for name in SidecarOptions.__struct_fields__ if name in told]
    return SidecarOptions(**{name: told[name] for name in names})


def warnings(parsed: argparse.Namespace) -> Sequence[str]:
    """Return what is to be said about flags that change nothing."""
    known = vars(parsed)
    said = [
        f"--{flag} is ignored: {why}"
        for flag, why in IGNORED.items()
        if known.get(flag.replace("-", "_")) is not None
    ]
    if known.get("ec_connector"):
        said.append("--ec-connector is ignored: the engine encodes by itself")
    return said


def run(parsed: argparse.Namespace) -> int:
    """Run a sidecar until it is told to stop."""
    from epp.sidecar import server  # noqa: PLC0415 - the HTTP server is only needed here

    options = options_of(parsed)
    return server.run(options, warnings(parsed))


def _port(name: str, text: str) -> int:
    try:
        return port(text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{name}: {error}") from None


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _bytes(text: str) -> int:
    try:
        return parse_quantity(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


Read = Callable[[str], Any] | Sequence[str]
Flags = Mapping[str, tuple[Read, str]]

_GROUPS: Mapping[str, Flags] = {
    "where it listens, and its engine": {
        "host": (str, "address to listen on"),
        "port": (port, "that the gateway sends to; 0 takes a free one"),
        "model-server-host": (str, "of the engine"),
        "model-server-port,vllm-port": (port, "of the engine"),
        "data-parallel-size": (positive, "ranks: each listens, and is asked, one port further on"),
        "metrics-port": (port, "/metrics, /healthz and /readyz of the sidecar itself; 0: none"),
    },
    "the two legs": {
        "kv-connector": (tuple(CONNECTORS), "how the engines hand a KV cache over"),
        "ec-connector": (ENCODER_CONNECTORS, "accepted; the engine encodes by itself"),
        "prefill-timeout": (_seconds, "for the prefill leg, second tries included"),
        "prefill-max-retries": (count, "at the same endpoint, after 502, 503 or 504"),
        "prefill-retry-backoff": (_seconds, "before each of them"),
        "enable-prefiller-sampling": (truth, "ask named endpoints in a random order"),
        "on-prefill-failure": (
            ("decode", "error"),
            "decode: the engine computes the prompt itself; error: 502, as the Go sidecar",
        ),
        "kv-lease": (_seconds, "for which prefill engines keep a cache; none is read later"),
        "connect-timeout": (_seconds, "for a connection"),
        "mooncake-bootstrap-port": (
            port,
            "of prefill engines, SGLang's too; of those $SGLANG_BOOTSTRAP_PORT wins over the default",
        ),
    },
    "who may be asked for a prefill": {
        "enable-ssrf-protection": (truth, "only the endpoints below; others get 403"),
        "allowed-prefillers": (str, "a fixed list, HOST:PORT,..."),
        "inference-pool": (
            str,
            "NAMESPACE/NAME of a cluster: its pods; by default $INFERENCE_POOL",
        ),
        "pool-group": (str, "API group of the pool"),
        "kubeconfig": (str, "by default the service account"),
    },
    "TLS": {
        "secure-proxy,secure-serving": (truth, "TLS on our port; self-signed without --cert-path"),
        "cert-path": (str, "folder with tls.crt and tls.key, read again when they change"),
        "enable-tls": (words, "of prefiller, decoder: those that are asked over TLS"),
        "tls-insecure-skip-verify": (words, "of these, whose certificates are not verified"),
        "tls-ca-file": (str, "who signed their certificates; by default the system's authorities"),
    },
    "bounds": {
        "max-requests": (positive, "under way at once; 503 beyond"),
        "max-body-bytes": (_bytes, "of a request; 413 beyond"),
        "max-buffered-bytes": (_bytes, "of all requests together; 503 beyond"),
        "body-timeout": (_seconds, "for a request's body, 408 beyond"),
        "idle-timeout": (_seconds, "without a byte from the engine, 504 beyond"),
        "drain-timeout": (_seconds, "for what is under way, at SIGTERM"),
    },
    "logs": {
        "v": (count, "klog verbosity"),
        "log-format": (("json", "console"), "of stderr"),
    },
}


def _add(group: Any, names: str, read: Read, text: str) -> None:
    first = names.partition(",")[0]
    field = _field(first)
    default = getattr(SidecarOptions(), field)
    shown = ",".join(default) if isinstance(default, tuple) else default
    if shown not in ("", None):
        text += f" (default {str(shown).lower() if isinstance(shown, bool) else shown})"
    arguments: dict[str, Any] = {"help": text, "default": None, "dest": field}
    if not callable(read):
        arguments["choices"] = read
    elif read is truth:
        arguments.update(type=truth, nargs="?", const=True)
    elif read is words:  # a flag that is given twice is one list, as in Go
        arguments.update(type=words, action="extend", metavar="WORDS")
    else:
        arguments.update(type=read, metavar=read.__name__.strip("_").upper())
    short = ["-v"] if first == "v" else []
    group.add_argument(*short, *(f"--{name}" for name in names.split(",")), **arguments)


def _field(flag: str) -> str:
    return "verbosity" if flag == "v" else flag.replace("-", "_")


def _configured(parsed: argparse.Namespace) -> dict[str, Any]:
    """Read the configuration, each value as its flag's would be."""
    pool = os.environ.get("INFERENCE_POOL", "")
    found: dict[str, Any] = {"inference_pool": pool} if pool else {}
    for text, where in _texts(parsed):
        try:
            told = msgspec.yaml.decode(text, type=dict[str, Any] | None)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{where}: {error}") from error
        for name, value in (told or {}).items():
            found.update(_one(name, value, where))
    return found


def _texts(parsed: argparse.Namespace) -> list[tuple[str, str]]:
    texts = []
    if parsed.configuration_file:
        texts.append((Path(parsed.configuration_file).read_text(), parsed.configuration_file))
    if parsed.configuration:
        texts.append((parsed.configuration, "--configuration"))
    return texts


def _one(name: str, value: Any, where: str) -> dict[str, Any]:
    flag = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)
    flags = {
        spelled: (names.partition(",")[0], read)
        for group in _GROUPS.values()
        for names, (read, _) in group.items()
        for spelled in names.split(",")
    }
    if flag in IGNORED:
        return {}
    if flag not in flags:
        raise ConfigError(f"{where}: {name} is no flag of epp sidecar")
    first, read = flags[flag]
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    try:
        told = read(text) if callable(read) else text
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{where}: {name}: {error}") from error
    if not callable(read) and told not in read:
        raise ConfigError(f"{where}: {name} is one of {', '.join(read)}, not {text!r}")
    return {_field(first): told}
