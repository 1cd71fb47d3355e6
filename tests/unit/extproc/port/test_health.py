"""Which names the health service knows, with and without an election, and what each says."""

from __future__ import annotations

import pytest
from grpc_health.v1 import health_pb2 as pb

from epp.extproc.port.health import HealthService

SERVING = pb.HealthCheckResponse.SERVING
NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING
UNKNOWN = pb.HealthCheckResponse.SERVICE_UNKNOWN
KNOWN = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")


@pytest.mark.parametrize("elected", [False, True], ids=["alone", "elected"])
@pytest.mark.parametrize("ready", [False, True], ids=["not ready", "ready"])
def test_liveness_depends_on_nothing(*, elected: bool, ready: bool) -> None:
    health = HealthService(lambda: ready, elected=elected)
    assert health.status("liveness") == SERVING
    health.drain()
    assert health.status("liveness") == SERVING


@pytest.mark.parametrize("elected", [False, True], ids=["alone", "elected"])
@pytest.mark.parametrize("name", KNOWN)
def test_readiness_follows_the_picker_and_ends_with_a_drain(*, name: str, elected: bool) -> None:
    ready = [True]
    health = HealthService(lambda: ready[0], elected=elected)
    assert health.status(name) == SERVING
    ready[0] = False
    assert health.status(name) == NOT_SERVING
    ready[0] = True
    health.drain()
    assert health.status(name) == NOT_SERVING


@pytest.mark.parametrize("name", ["inference-extension", "anything"])
def test_other_names_are_readiness_of_the_only_replica_and_unknown_where_there_are_more(
    name: str,
) -> None:
    assert HealthService(lambda: True).status(name) == SERVING
    assert HealthService(lambda: False).status(name) == NOT_SERVING
    assert HealthService(lambda: True, elected=True).status(name) == UNKNOWN
