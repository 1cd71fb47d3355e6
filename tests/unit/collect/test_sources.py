"""Data sources as configuration."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from epp.collect import sources
from epp.collect.fetch import Source
from epp.collect.pace import Pace
from tests.support import build


def make(kind: type[Any], **parameters: object) -> Any:
    return kind(msgspec.convert(parameters, kind.Params), build.tools())


def test_every_source_has_a_type_of_its_own() -> None:
    types = [kind.type for kind in sources.SOURCES]
    assert len(types) == len(set(types)) == 9


@pytest.mark.parametrize(
    "kind", [k for k in sources.SOURCES if k.type != "file-discovery"], ids=lambda k: k.type
)
def test_every_source_is_built_from_nothing_or_says_why_not(kind: type[Any]) -> None:
    if kind.type.startswith("dcgm"):
        with pytest.raises(ValueError, match=f"{kind.type} is not supported yet"):
            make(kind)
    else:
        make(kind)


def test_the_defaults_are_the_routers() -> None:
    assert make(sources.MetricsDataSource).source == Source(
        scheme="http", path="/metrics", port=None, skip_verify=True
    )


def test_an_authoritys_certificate_is_used_unless_told_otherwise() -> None:
    kind = sources.MetricsDataSource
    assert not make(kind, caCertPath="/ca.pem").source.skip_verify
    assert make(kind, caCertPath="/ca.pem", insecureSkipVerify=True).source.skip_verify
    assert not make(kind, insecureSkipVerify=False).source.skip_verify


@pytest.mark.parametrize("path", ["clientCertPath", "clientKeyPath"])
def test_half_a_client_certificate_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="clientCertPath and clientKeyPath"):
        make(sources.MetricsDataSource, **{path: "/x"})


@pytest.mark.parametrize(
    ("parameters", "fast", "idle", "asleep"),
    [
        pytest.param({}, 0.05, 0.5, 5.0, id="as flags say"),
        pytest.param({"interval": "100ms"}, 0.1, 0.5, 5.0, id="a duration"),
        pytest.param({"interval": 2}, 2.0, 2.0, 5.0, id="slower than the idle default"),
        pytest.param({"sleepingInterval": "30s"}, 0.05, 0.5, 30.0, id="asleep"),
        pytest.param({"idleInterval": "1s"}, 0.05, 1.0, 5.0, id="idle"),
    ],
)
def test_intervals(parameters: dict[str, object], fast: float, idle: float, asleep: float) -> None:
    pace = make(sources.MetricsDataSource, **parameters).pace(Pace())
    assert (pace.fast, pace.idle, pace.asleep) == (fast, idle, asleep)


@pytest.mark.parametrize("interval", ["soon", 0, "-1s"])
def test_a_bad_interval_is_named(interval: object) -> None:
    with pytest.raises(ValueError, match=r"^interval: "):
        make(sources.MetricsDataSource, interval=interval)


def test_an_engines_own_metrics() -> None:
    config = {
        "name": "mine",
        "queuedRequestsSpec": "waiting{kind=all}",
        "kvUsageSpec": "usage",
        "cacheInfoSpec": "info",
        "cacheBlockSizeLabelName": "size",
        "cacheNumBlocksLabelName": "count",
        "customMetrics": [{"attributeKey": "heat", "metricSpec": "heat"}],
    }
    extractor = make(sources.CoreMetricsExtractor, defaultEngine="mine", engineConfigs=[config])
    page = b'waiting{kind="all"} 3\nwaiting{kind="x"} 9\nusage 0.5\ninfo{size="8",count="10"} 1\nheat 7\n'
    load = extractor.engines.read(page, 0.0).load
    assert (load.queued, load.running, load.kv_usage) == (3.0, None, 0.5)
    assert load.cache is not None
    assert (load.cache.block_tokens, load.cache.tokens) == (8, 80)
    assert load.attributes == {"heat": 7.0}


def test_what_a_known_engines_configuration_leaves_out_is_as_built_in() -> None:
    config = {"name": "vllm", "queuedRequestsSpec": "mine"}
    extractor = make(sources.CoreMetricsExtractor, engineConfigs=[config])
    load = extractor.engines.read(b"mine 3\nvllm:num_requests_running 4\n", 0.0).load
    assert (load.queued, load.running) == (3.0, 4.0)


def test_a_bad_specification_is_named_with_its_place() -> None:
    config = {"name": "x", "loraSpec": "a{"}
    with pytest.raises(ValueError, match=r"engineConfigs\[0\]\.loraSpec: .*'a\{'"):
        make(sources.CoreMetricsExtractor, engineConfigs=[config])
