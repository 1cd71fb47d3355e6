"""Whether and where traces go, by the flag and OpenTelemetry's variables."""

from __future__ import annotations

import pytest

from epp.errors import ConfigError
from epp.telemetry.trace_settings import TraceSettings, settings_of

GRPC = "http://localhost:4317"
HTTP = "http://localhost:4318"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def told(flag: bool | None = None, **environment: str) -> TraceSettings | None:
    return settings_of(flag, environment)


def some(flag: bool | None = None, **environment: str) -> TraceSettings:
    found = told(flag, **environment)
    assert found is not None
    return found


def test_nothing_is_traced_unless_somebody_asks() -> None:
    assert told() is None
    assert told(OTEL_SERVICE_NAME="x", OTEL_TRACES_SAMPLER="always_on") is None
    assert told(**{ENDPOINT: " "}) is None


@pytest.mark.parametrize(
    "environment",
    [
        {ENDPOINT: GRPC},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": GRPC},
        {"OTEL_TRACES_EXPORTER": "otlp"},
        {"OTEL_TRACES_EXPORTER": "OTLP "},
    ],
)
def test_a_variable_asks_and_the_flag_may_refuse(environment: dict[str, str]) -> None:
    assert some(None, **environment).exporter == "otlp"
    assert some(True, **environment).exporter == "otlp"
    assert told(False, **environment) is None


@pytest.mark.parametrize(
    "off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_SDK_DISABLED": "TRUE"},
            {"OTEL_TRACES_EXPORTER": "none"}]
)  # fmt: skip
def test_a_variable_that_turns_it_off_wins(off: dict[str, str]) -> None:
    assert told(True, **{ENDPOINT: GRPC, **off}) is None


def test_a_sdk_that_is_not_disabled_is_not() -> None:
    assert told(True, OTEL_SDK_DISABLED="false") is not None
    assert told(True, OTEL_SDK_DISABLED="yes") is not None  # only "true" disables


def test_the_flag_alone_prints_spans_as_the_go_router_does() -> None:
    assert some(True).exporter == "console"
    assert some(True, OTEL_TRACES_EXPORTER="console", **{ENDPOINT: GRPC}).exporter == "console"


@pytest.mark.parametrize(
    ("environment", "protocol"),
    [
        ({}, "grpc"),
        ({ENDPOINT: GRPC}, "grpc"),
        ({ENDPOINT: HTTP}, "http/protobuf"),
        ({ENDPOINT: f"{HTTP}/prefix"}, "http/protobuf"),
        ({ENDPOINT: HTTP, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        ({ENDPOINT: GRPC, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http/protobuf"),
        (
            {
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            },
            "grpc",
        ),
        ({ENDPOINT: GRPC, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": HTTP}, "http/protobuf"),
    ],
)
def test_the_protocol_is_told_or_the_port_s(environment: dict[str, str], protocol: str) -> None:
    assert some(True, **environment).protocol == protocol


def test_the_service_has_the_go_router_s_name_unless_it_is_told() -> None:
    assert some(True).service_name == "llm-d-epp"
    assert some(True, OTEL_SERVICE_NAME="mine").service_name == ""
    assert some(True, OTEL_RESOURCE_ATTRIBUTES="a=b,service.name=mine").service_name == ""
    assert some(True, OTEL_RESOURCE_ATTRIBUTES="a=b").service_name == "llm-d-epp"


def test_one_trace_in_ten_is_recorded_unless_a_sampler_or_its_ratio_is_told() -> None:
    assert some(True).ratio == 0.1
    assert some(True, OTEL_TRACES_SAMPLER_ARG="0.5").ratio == 0.5
    assert some(True, OTEL_TRACES_SAMPLER="always_on").ratio is None
    assert some(True, OTEL_TRACES_SAMPLER="always_on", OTEL_TRACES_SAMPLER_ARG="x").ratio is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"OTEL_TRACES_EXPORTER": "zipkin"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
        {"OTEL_TRACES_SAMPLER_ARG": "much"},
        {"OTEL_TRACES_SAMPLER_ARG": "1.5"},
        {"OTEL_TRACES_SAMPLER_ARG": "nan"},
        {ENDPOINT: "http://localhost:port"},
    ],
)
def test_a_value_that_means_nothing_is_named_with_the_value(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as raised:
        told(True, **wrong)
    (value,) = wrong.values()
    assert value in str(raised.value)
