"""What lets a gateway go on without its picker, or without an endpoint. Out: Envoy itself."""

from __future__ import annotations

from typing import Any

import yaml

from epp.gateway.options import GatewayOptions
from epp.gateway.render import render


def bootstrap(*, fail_open: bool) -> dict[str, Any]:
    options = GatewayOptions(
        routing="override-host", endpoints=("127.0.0.1:8000",), fail_open=fail_open
    )
    whole = yaml.safe_load(render(options))
    return dict(whole["staticResources"])


def picker(resources: dict[str, Any]) -> dict[str, Any]:
    (found,) = [each for each in resources["clusters"] if each["name"] == "picker"]
    return dict(found)


def test_a_gateway_that_fails_open_looks_after_its_picker() -> None:
    cluster = picker(bootstrap(fail_open=True))
    (check,) = cluster["healthChecks"]
    assert check["grpcHealthCheck"] == {}
    # A cluster without traffic is looked at once a minute if nothing else is said.
    assert check["interval"] == check["noTrafficInterval"] == "0.250s"
    balancing = cluster["commonLbConfig"]
    assert balancing["healthyPanicThreshold"] == {}  # 0 percent
    assert float(balancing["updateMergeWindow"].removesuffix("s")) == 0


def test_a_gateway_that_fails_closed_asks_its_only_picker_whatever_its_health() -> None:
    assert not {"healthChecks", "commonLbConfig"} & set(picker(bootstrap(fail_open=False)))


def test_a_retry_goes_to_an_endpoint_that_was_not_tried() -> None:
    text = yaml.safe_dump(bootstrap(fail_open=False))
    assert "envoy.retry_host_predicates.previous_hosts" in text
    assert "hostSelectionRetryMaxAttempts" in text
