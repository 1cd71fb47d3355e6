"""The chart's ``values.schema.json``, made from its values and translations."""

from __future__ import annotations

from typing import Any

from epp.config.schema import OLD_API_VERSION
from epp.reference.schema import config_schema, refused
from tests.charts.derived.documented import WHOLE, defaults, translations, values

Schema = dict[str, Any]

PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65_535}
NUMBER: Schema = {"type": "integer", "minimum": 0}
SECRET: Schema = {"type": "array", "items": {"type": "object", "required": ["name"]}}
OBJECTS: Schema = {"type": "array", "items": {"type": "object"}}
NAMES: Schema = {"type": "array", "uniqueItems": True, "items": {"type": "string", "minLength": 1}}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}

SET_ELSEWHERE = [
    "grpc-port", "grpc-health-port", "metrics-port", "pool-name", "pool-namespace", "pool-group",
    "endpoints", "config-file", "cert-path", "drain-timeout", "secure-serving",
    "ha-enable-leader-election", "metrics-endpoint-auth", "all-pools", "pool-ports",
]  # fmt: skip
"""Flags that are values of their own; twice, one would silently win."""


SAID = frozenset({"title", "description", "default", "enumDescriptions"})
"""Keywords that decide nothing."""


def _enum(*names: Any) -> Schema:
    return {"enum": list(names)}


SPECIAL: dict[str, Schema] = {
    "mode": _enum("gateway", "standalone"),
    "provider.name": _enum("istio", "gke", "kgateway", "agentgateway", "envoy-gateway", "none"),
    "image.pullPolicy": _enum("Always", "IfNotPresent", "Never"),
    "image.pullSecrets": SECRET,
    "picker.replicas": NUMBER,
    "picker.endpoints": {"type": "array", "items": {"type": "string", "pattern": ":[0-9]+$"}},
    "picker.flags": {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z][a-z0-9-]*$", "not": {"enum": SET_ELSEWHERE}},
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    },
    "picker.env": {"type": "array", "items": {"type": "object", "required": ["name"]}},
    "scraping.engine": _enum("vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm", "triton"),
    "scraping.scheme": _enum("http", "https"),
    "scraping.path": {"type": "string", "pattern": "^/"},
    "picker.preStopSeconds": NUMBER,
    "picker.drainSeconds": NUMBER,
    "picker.topologySpreadConstraints": OBJECTS,
    "picker.tolerations": OBJECTS,
    "picker.extraPorts": OBJECTS,
    "picker.volumes": OBJECTS,
    "picker.volumeMounts": OBJECTS,
    "picker.podAnnotations": TEXTS,
    "picker.podLabels": TEXTS,
    "picker.nodeSelector": TEXTS,
    "config": {
        "type": ["object", "string"],
        "if": {
            "type": "object",
            "not": {
                "properties": {"apiVersion": {"const": OLD_API_VERSION}},
                "required": ["apiVersion"],
            },
        },
        "then": {"$ref": "#/definitions/Config"},
    },
    "configFiles": TEXTS,
    "pool.create": _enum("auto", True, False),
    "pool.matchLabels": {**TEXTS, "maxProperties": 64},
    "pool.targetPorts": {
        "type": "array",
        "minItems": 1,
        "maxItems": 8,
        "uniqueItems": True,
        "items": {
            "type": "object",
            "properties": {"number": PORT},
            "required": ["number"],
            "additionalProperties": False,
        },
    },
    "pool.appProtocol": _enum("", "http", "kubernetes.io/h2c"),
    "pool.failureMode": _enum("FailOpen", "FailClose"),
    "pools.names": NAMES,
    "pools.ports": {"type": "array", "uniqueItems": True, "items": PORT},
    "pools.configMaps": NAMES,
    "objectives": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "priority": {"type": "integer"}},
            "required": ["name", "priority"],
            "additionalProperties": False,
        },
    },
    "route.hostnames": {"type": "array", "items": {"type": "string"}},
    "route.headerMatches": TEXTS,
    "gateway.port": PORT,
    "envoy.placement": _enum("sidecar", "service"),
    "envoy.bootstrap": _enum("lean", "stock"),
    "envoy.port": PORT,
    "envoy.replicas": NUMBER,
    "envoy.logLevel": _enum("trace", "debug", "info", "warn", "error", "critical", "off"),
    "service.type": _enum("ClusterIP", "LoadBalancer", "NodePort"),
    "service.extraPorts": OBJECTS,
    "networkPolicy.extProcFrom": OBJECTS,
    "networkPolicy.metricsFrom": OBJECTS,
    "podDisruptionBudget.maxUnavailable": {"type": ["integer", "string"]},
    "monitoring.kind": _enum("ServiceMonitor", "PodMonitoring"),
    "monitoring.rules.groups": OBJECTS,
    "tracing.sampling.samplerArg": {"type": ["string", "number"]},
    **{f"picker.ports.{name}": PORT for name in ("extProc", "health", "metrics")},
}


def schema() -> Schema:
    """Return the schema: unknown values are errors, in this chart's tree and in the others'."""
    says = {value.path: value.says for value in values() if value.says}
    whole = _of("", defaults(), says)
    whole["properties"]["global"] = {"type": "object"}
    known = {path for translation in translations() for path in translation.came}
    for translation in translations():
        says_where = f"-> {translation.to}" if translation.to else f"ignored: {translation.ignored}"
        for path in translation.came:
            if path.rpartition(".")[0] in known:
                continue  # a flag, and those may have any name
            _add(whole, path.split("."), {"description": says_where})
    about = {"$schema": "https://json-schema.org/draft-07/schema#", "title": "epp"}
    return {**about, **whole, "definitions": configuration()}


def configuration() -> Schema:
    """Return what ``config`` may hold, as definitions of draft 7.

    Older spellings carry the older ``apiVersion``, and are left to the picker, which translates
    them; so are configurations that are texts.
    """
    definitions: Schema = {name: _plain(each) for name, each in config_schema()["$defs"].items()}
    definitions["PluginSpec"]["properties"]["type"] = {
        "type": "string", "minLength": 1, "not": {"enum": refused()},
    }  # fmt: skip
    return definitions


def _plain(schema: Any) -> Any:
    """Point into ``definitions``, leave out what decides nothing, and allow null by conditions.

    Of an ``anyOf``, Helm says only that nothing in it fits.
    """
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"$ref": schema["$ref"].replace("#/$defs/", "#/definitions/")}
    *others, last = schema.get("anyOf", [None, None])
    if last == {"type": "null"} and len(others) == 1:
        return {"if": {"not": last}, "then": _plain(others[0])}
    # Names of properties are no keywords.
    return {
        key: {name: _plain(each) for name, each in inner.items()}
        if key == "properties" else _plain(inner)
        for key, inner in schema.items() if key not in SAID
    }  # fmt: skip


def _of(path: str, default: Any, says: dict[str, str]) -> Schema:
    described: Schema = {"description": says[path]} if path in says else {}
    if path in SPECIAL:
        return {**described, **SPECIAL[path]}
    if isinstance(default, dict) and default and path not in WHOLE:
        inner = {
            key: _of(f"{path}.{key}".lstrip("."), value, says) for key, value in default.items()
        }
        described |= {"type": "object", "properties": inner, "additionalProperties": False}
        return described
    names = {bool: "boolean", str: "string", int: "integer", dict: "object", list: "array"}
    return {**described, "type": names[type(default)]}


def _add(into: Schema, path: list[str], leaf: Schema) -> None:
    head, *rest = path
    properties = into["properties"]
    if not rest:
        properties[head] = leaf
        return
    properties.setdefault(head, {"type": "object", "properties": {}, "additionalProperties": False})
    _add(properties[head], rest, leaf)
