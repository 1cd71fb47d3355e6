"""gRPC health on both ports of a real picker process, as a kubelet and Envoy ask for it.

Liveness never depends on the pool: a picker without endpoints, or one that drains, must not be
restarted for it.

**Source:** grpc/health/v1/health.proto; GAIE, proposal 004; the probes of llm-d's charts.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.process import eventually
from tests.support.served import Health, Served, serving

READINESS = (
    "", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor",
)  # fmt: skip
PLAIN = "--secure-serving=false"
BOTH = pytest.mark.parametrize("port", ["health", "grpc"])


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("ready")
    with serving(folder, PLAIN, "--endpoints=127.0.0.1:9") as picker:
        yield picker


@pytest.fixture(scope="module")
def poolless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("poolless")
    with serving(folder, PLAIN, "--pool-name=vllm-pool") as picker:
        yield picker


@BOTH
@pytest.mark.parametrize("service", [*READINESS, "liveness"])
def test_a_picker_with_a_pool_is_serving_by_every_name(
    service: str, port: str, ready: Served
) -> None:
    with Health(ready.ports[port]) as health:
        assert health.check(service) == "SERVING"


@BOTH
@pytest.mark.parametrize("service", READINESS)
def test_a_picker_without_a_pool_is_not_ready(service: str, port: str, poolless: Served) -> None:
    with Health(poolless.ports[port]) as health:
        assert health.check(service) == "NOT_SERVING"


@BOTH
def test_a_picker_without_a_pool_lives(port: str, poolless: Served) -> None:
    with Health(poolless.ports[port]) as health:
        assert health.check("liveness") == "SERVING"


@BOTH
def test_the_only_picker_answers_for_any_name(port: str, ready: Served, poolless: Served) -> None:
    for picker, status in ((ready, "SERVING"), (poolless, "NOT_SERVING")):
        with Health(picker.ports[port]) as health:
            assert health.check("whatever-a-chart-asks") == status
            assert next(health.watch("whatever-a-chart-asks")) == status


@BOTH
def test_list_tells_every_name(port: str, ready: Served, poolless: Served) -> None:
    with Health(ready.ports[port]) as health:
        assert health.list() == dict.fromkeys((*READINESS, "liveness"), "SERVING")
    with Health(poolless.ports[port]) as health:
        wanted = {**dict.fromkeys(READINESS, "NOT_SERVING"), "liveness": "SERVING"}
        assert health.list() == wanted


@BOTH
def test_watch_tells_the_present_first(port: str, ready: Served, poolless: Served) -> None:
    for picker, status in ((ready, "SERVING"), (poolless, "NOT_SERVING")):
        with Health(picker.ports[port]) as health:
            assert next(health.watch("readiness")) == status


def test_sigterm_takes_readiness_away_at_once_and_leaves_liveness(tmp_path: Path) -> None:
    with (
        serving(tmp_path, PLAIN, "--endpoints=127.0.0.1:9", "--drain-timeout=5s") as picker,
        Health(picker.ports["health"]) as kubelet,
        Health(picker.ports["grpc"]) as envoy,
    ):
        probes = [each.watch("readiness") for each in (kubelet, envoy)]
        assert [next(probe) for probe in probes] == ["SERVING", "SERVING"]
        picker.signal(signal.SIGTERM)
        assert [next(probe) for probe in probes] == ["NOT_SERVING", "NOT_SERVING"]
        assert kubelet.check("liveness") == envoy.check("liveness") == "SERVING"
        eventually(lambda: not picker.running, what="the end of the picker")


def test_health_checking_can_be_left_to_the_health_port(tmp_path: Path) -> None:
    with serving(tmp_path, PLAIN, "--endpoints=127.0.0.1:9", "--health-checking=false") as picker:
        with Health(picker.ports["grpc"]) as envoy:
            assert envoy.check("readiness") == "UNIMPLEMENTED"
        with Health(picker.ports["health"]) as kubelet:
            assert kubelet.check("readiness") == "SERVING"


def test_the_health_port_is_plain_even_where_ext_proc_speaks_tls(tmp_path: Path) -> None:
    with serving(tmp_path, "--endpoints=127.0.0.1:9") as picker:
        with Health(picker.ports["health"]) as kubelet:
            assert kubelet.check("readiness") == "SERVING"
        with Health(picker.ports["grpc"]) as stranger:
            assert stranger.check("readiness") == grpc.StatusCode.UNAVAILABLE.name
