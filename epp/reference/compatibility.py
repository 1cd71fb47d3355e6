"""``docs/compatibility.md``: what of the Go router is the same here, what differs, what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from epp.catalog import NOT_YET
from epp.config import dialects
from epp.reference import fields, go_router
from epp.reference.comments import paragraphs
from epp.reference.groups import BY_TYPE
from epp.reference.otherwise import OTHERWISE
from epp.reference.parameters import value_text
from epp.reference.plugins import table
from epp.reference.schema import REFUSED, is_refused
from epp.serve.options import ServeOptions
from epp.telemetry.table import METRICS, PREFIX, Spec
from epp.terminal.go_flags import IGNORED, MOVED

DIFFERS = "Differs from llm-d: "
NOTHING = "Accepted and does nothing: "
UNKNOWN = "unknown: refused"
REFUSES = "not supported yet: refused"

HEAD = """\
# Compatibility

Made from the code by `make docs`; do not edit.

What a deployment made for the Go router finds here. The Go router is llm-d-router, and before it
the endpoint picker of the Gateway API Inference Extension (GAIE): same ext_proc protocol, headers,
metadata, ports (9002, 9003, 9090), health services and configuration file. Older spellings of the
configuration are translated, each with a warning; `epp check FILE` shows the result.

* [Plugin types](#plugin-types)
* [Configuration](#configuration)
* [Flags](#flags)
* [Metrics](#metrics)
* [Where we do otherwise on purpose](#where-we-do-otherwise-on-purpose)
"""

FLAG_NOTES: Mapping[str, str] = {
    "tracing": "not given, only `OTEL_TRACES_EXPORTER` or an OTLP endpoint turns it on; needs "
    "`epp[tracing]`",
    "allow-experimental-plugins": "files of `inference.networking.x-k8s.io/v1alpha1` are older than "
    "the flag: they may name such plugins anyhow, with a warning",
    "pool-name": "with a list of endpoints, only the pool's name in metrics; not given, that name is "
    "the Deployment's by `$POD_NAME`",
    "pool-namespace": "`$NAMESPACE`, then the service account's or the kubeconfig's",
    "pool-group": "v1alpha2 of `inference.networking.x-k8s.io` counts where v1 is not served",
    "ha-enable-leader-election": "while the API server is away the last leader stays ready",
    "metrics-endpoint-auth": "not given, true only if a cluster tells the endpoints; every page but "
    "`/healthz` and `/readyz` is guarded; without a cluster, true binds the port to 127.0.0.1",
    "metrics-client-ca-file": "needs `--metrics-cert-dir`",
    "enable-grpc-stream-metrics": "`extproc_streams_inflight` is always written",
    "grpc-max-recv-msg-size": "the default here is as large as a body may be",
    "grpc-max-send-msg-size": "the default here is as large as a body may be",
    "zap-encoder": "sets `--log-format`",
    "zap-log-level": "sets `-v`",
}
DEFAULTS: Mapping[str, str] = {
    "refresh-metrics-interval": "bookings know what a scrape cannot yet",
}
"""Of durations: where the default is another one, and why."""
_NO_PROGRAMS = "program-aware-fairness is not supported, as nothing waits in the picker"
NO_METRICS: Mapping[str, str] = {
    "plugin_data_scope_violations_total": "plugins declare no data that they may read or write, "
    "since endpoints and requests are frozen",
    "program_aware_jains_fairness_index": _NO_PROGRAMS,
    "program_aware_avg_wait_time_milliseconds": _NO_PROGRAMS,
    "program_aware_attained_service_tokens": _NO_PROGRAMS,
}
"""Metrics of the Go router that have no meaning here, and why."""
FIELDS: Mapping[str, str] = {"v": "verbosity"}  #: of `ServeOptions`, where the name differs
OWN_FLAGS = ("plugin-path",)  #: beside the fields of `ServeOptions`
NO_FLAGS = frozenset({"warnings", "plugin_paths", "verbosity"})  #: fields that are no flags


def page() -> str:
    """Return the text of ``docs/compatibility.md``."""
    sections = [_plugins(), fields.section(), _flags(), _metrics(), _otherwise()]
    return "\n".join([HEAD, *sections])


class Status(msgspec.Struct, frozen=True):
    """What becomes of a plugin type of the Go router."""

    word: str
    note: str = ""


def status(type_: str) -> Status:
    """Say what becomes of a configuration that names ``type_``."""
    if type_ in BY_TYPE:
        return _supported(BY_TYPE[type_])
    if type_ in NOT_YET:
        return Status(f"not supported yet: {NOT_YET[type_].policy}", NOT_YET[type_].why)
    today, _ = dialects.translate({"plugins": [{"type": type_}]})
    named = [each["type"] for each in today.get("plugins", [])]
    if named[:1] == [type_]:
        return Status(UNKNOWN)
    becomes = [status(each) for each in named]
    worst = next((each for each in becomes if each.word == REFUSES), becomes[0])
    return Status(f"read as `{'`, `'.join(named)}`: {worst.word}", worst.note)


def _supported(class_: Any) -> Status:
    first, *rest = paragraphs(class_)
    if is_refused(class_):
        return Status(REFUSES, first.removeprefix(REFUSED).rstrip("."))
    if first.startswith(NOTHING):
        return Status("accepted, does nothing", first.removeprefix(NOTHING).rstrip("."))
    found = [said.split(DIFFERS, 1)[1] for said in rest if DIFFERS in said]
    return Status(
        "supported, with a difference" if found else "supported", " ".join(found).rstrip(".")
    )


def _plugins() -> str:
    rows = [
        (kind if i == 0 else "", _link(type_), said.word, said.note)
        for kind, types in go_router.PLUGINS.items()
        for i, type_ in enumerate(types)
        for said in [status(type_)]
    ]
    theirs = {type_ for types in go_router.PLUGINS.values() for type_ in types}
    ours = [_link(type_) for type_ in BY_TYPE if type_ not in theirs]
    return "\n".join(
        [
            "## Plugin types",
            "",
            "Refused types end the start with an error that says why. Ignored ones are left out",
            "with a warning. An endpoint whose load is unknown is never preferred, whatever the",
            "scorer; several of the Go router's let it look idle.",
            "",
            table(("kind", "type", "here", "note"), rows),
            "",
            f"Not in the Go router: {', '.join(ours)}.",
            "",
        ]
    )


def _link(type_: str) -> str:
    return f"[`{type_}`](plugins.md#{type_})" if type_ in BY_TYPE else f"`{type_}`"


def _flags() -> str:
    rows = [
        (f"`--{name}`" if len(name) > 1 else f"`-{name}`", _shown(default), *flag(name))
        for name, default in go_router.FLAGS.items()
    ]
    ours = sorted({*_our_fields(), *OWN_FLAGS} - go_router.FLAGS.keys())
    return "\n".join(
        [
            "## Flags",
            "",
            "Of `epp serve`; flags without a verb are its own too. `-poolName`, the spelling of the",
            "first releases, is read as `--pool-name`.",
            "",
            table(("flag", "default there", "here", "note"), rows),
            "",
            f"Not in the Go router: {', '.join(f'`--{name}`' for name in ours)}.",
            "",
        ]
    )


def flag(name: str) -> tuple[str, str]:
    """Say what becomes of a flag: a word, and a note."""
    if name in IGNORED:
        fits = IGNORED[name].fits
        quiet = f"; no warning for `{fits[0]}`" if fits else ""
        return "accepted, ignored", IGNORED[name].instead + quiet
    if name in MOVED:
        return "works, deprecated", f"use {MOVED[name]}"
    note = FLAG_NOTES.get(name, "")
    field = FIELDS.get(name, name.replace("-", "_"))
    if field in ServeOptions.__struct_fields__:
        return "works", _default_note(name, field) or note
    return ("mapped", note) if note else (UNKNOWN, "")


def _default_note(name: str, field: str) -> str:
    """The default here and the flag's note, where the default is another one."""
    (found,) = (each for each in msgspec.structs.fields(ServeOptions) if each.name == field)
    if not isinstance(found.default, bool):
        why = DEFAULTS.get(name)
        return "" if why is None else f"the default here is {found.default * 1000:g}ms: {why}"
    here, note = value_text(found.default), FLAG_NOTES.get(name, "")
    if here == go_router.FLAGS[name]:
        return ""
    return "; ".join(filter(None, [f"the default here is {here}", note]))


def _our_fields() -> list[str]:
    names = [name for name in ServeOptions.__struct_fields__ if name not in NO_FLAGS]
    return [name.replace("_", "-") for name in names]


def _shown(default: str) -> str:
    return "removed" if default == "removed" else f"`{default}`" if default else "–"


def _metrics() -> str:
    known = {spec.name: spec for spec in METRICS}
    there = [PREFIX + name for name in go_router.METRICS]
    written = [_metric(known[name]) for name in there if name in known]
    none = {PREFIX + name for name in NO_METRICS}
    missing = [f"`{name}`" for name in there if name not in known and name not in none]
    ours = [_metric(spec)[:3] for spec in METRICS if spec.name not in there]
    return "\n".join(
        [
            "## Metrics",
            "",
            "Buckets are the Go router's too. A metric with an older name is written under both.",
            "",
            table(("name", "kind", "labels", "older name", "its labels"), written),
            "",
            f"Not written yet: {', '.join(missing)}.",
            "",
            *(f"`{PREFIX}{name}` is not written: {why}." for name, why in NO_METRICS.items()),
            "",
            "Not in the Go router:",
            "",
            table(("name", "kind", "labels"), ours),
            "",
        ]
    )


def _metric(spec: Spec) -> tuple[str, ...]:
    labels = ", ".join(spec.labels)
    if spec.twin is None:
        return f"`{spec.name}`", spec.kind, labels, "", ""
    older = ", ".join(label.rpartition("=")[2] for label in spec.twin.labels)
    return f"`{spec.name}`", spec.kind, labels, f"`{spec.twin.name}`", older


def _otherwise() -> str:
    rows: Sequence[Sequence[str]] = [
        (each.there, each.here, f"`{each.test.rpartition('::')[2]}`") for each in OTHERWISE
    ]
    return "\n".join(
        [
            "## Where we do otherwise on purpose",
            "",
            table(("the Go router", "here", "shown by"), rows),
            "",
        ]
    )
