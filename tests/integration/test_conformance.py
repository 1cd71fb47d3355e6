"""What the Gateway API Inference Extension's conformance suite needs of a picker.

The suite runs against a gateway; here is a picker process and the messages that a gateway sends.

**Source:** GAIE conformance v1.6: GatewayFollowingEPPRouting,
GatewayFollowingEPPRoutingWithDataParallelism, GatewayDestinationEndpointServed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from epp.local.fleet import free_port
from tests.support import ext_proc as gw
from tests.support.ext_proc import Gateway
from tests.support.process import eventually
from tests.support.served import Served, serving
from tests.support.upstream import headers_sent, refusal

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: header-based-testing-filter
  - type: max-score-picker
  - type: destination-endpoint-served-verifier
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: header-based-testing-filter
      - pluginRef: max-score-picker
"""
SELECTION, SERVED = "test-epp-endpoint-selection", "x-conformance-test-served-endpoint"
SUBSET_NAMESPACE, SUBSET = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"

PODS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
PORTS = (free_port(), free_port())  #: two data-parallel ranks of each pod; nothing listens
FIRST, SECOND = PORTS
ENDPOINTS = {f"{pod}:{port}" for pod in PODS for port in PORTS}


@pytest.fixture(scope="module")
def picker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = ("--secure-serving=false", f"--config-text={CONFIG}")
    folder = tmp_path_factory.mktemp("picker")
    with serving(folder, f"--endpoints={','.join(sorted(ENDPOINTS))}", *flags) as served:
        # If nobody can be reached, everybody may be asked: from then on nothing changes.
        eventually(lambda: not any(each["reachable"] for each in served.get("/debug/pool")))
        yield served


def ask(picker: Served, times: int = 1, **head: Any) -> list[list[Any]]:
    """Send requests, ten at once; return the answers to each."""
    limit = asyncio.Semaphore(10)

    async def one(gateway: Gateway) -> list[Any]:
        async with limit:
            return await gateway.exchange(
                [gw.request_head(**head), gw.request_body(b'{"prompt":"x"}', ends=True)]
            )

    async def main() -> list[list[Any]]:
        async with Gateway(picker.ports["grpc"]) as gateway:
            return await asyncio.gather(*(one(gateway) for _ in range(times)))

    return asyncio.run(main())


def destinations(picker: Served, selection: str, times: int = 100) -> set[str]:
    answers = ask(picker, times, headers={SELECTION: selection})
    return {gw.destination(each[0]) for each in answers}


@pytest.mark.parametrize(
    ("selection", "allowed"),
    [
        ("127.0.0.2", {f"127.0.0.2:{port}" for port in PORTS}),
        ("127.0.0.1,127.0.0.3", {f"127.0.0.{i}:{port}" for i in (1, 3) for port in PORTS}),
        ("127.0.0.1, 127.0.0.2, 127.0.0.3", ENDPOINTS),
        (f"127.0.0.3:{SECOND}", {f"127.0.0.3:{SECOND}"}),
        (f"127.0.0.1:{FIRST},127.0.0.2:{SECOND}", {f"127.0.0.1:{FIRST}", f"127.0.0.2:{SECOND}"}),
    ],
    ids=["one pod", "two pods", "three pods", "one rank", "two ranks"],
)
def test_a_hundred_requests_go_only_where_the_test_header_says(
    selection: str, allowed: set[str], picker: Served
) -> None:
    assert destinations(picker, selection) <= allowed


def test_without_the_test_header_any_endpoint_serves(picker: Served) -> None:
    (answers,) = ask(picker)
    assert gw.destination(answers[0]) in ENDPOINTS


def test_a_selection_of_strangers_is_refused_and_not_sent_elsewhere(picker: Served) -> None:
    (answers,) = ask(picker, headers={SELECTION: "192.0.2.1"})
    assert refusal(answers)[0] in (429, 503)


@pytest.mark.parametrize(
    ("subset", "allowed"),
    [
        ([f"127.0.0.1:{SECOND}"], {f"127.0.0.1:{SECOND}"}),
        (["127.0.0.1"], {f"127.0.0.1:{port}" for port in PORTS}),
        (f"127.0.0.2:{FIRST},127.0.0.3:{FIRST}", {f"127.0.0.2:{FIRST}", f"127.0.0.3:{FIRST}"}),
    ],
    ids=["host and port", "host alone", "with commas"],
)
def test_a_subset_hint_counts_with_its_port(subset: Any, allowed: set[str], picker: Served) -> None:
    answers = ask(picker, 20, metadata={SUBSET_NAMESPACE: {SUBSET: subset}})
    assert {gw.destination(each[0]) for each in answers} <= allowed


def served_header(picker: Served, served: str) -> str:
    async def main() -> str:
        async with Gateway(picker.ports["grpc"]) as gateway, gateway.stream() as stream:
            await stream.send(gw.request_head(), gw.request_body(b"{}", ends=True))
            chosen = gw.destination(await stream.read())
            await stream.read()
            await stream.send(gw.response_head(served=served.format(chosen=chosen)))
            head = await stream.read()
            assert not gw.removed(head)
            told = gw.set_headers(head)[SERVED]
            return told.replace(chosen, "{chosen}")

    return asyncio.run(main())


def test_the_served_endpoint_is_told_to_the_client(picker: Served) -> None:
    assert served_header(picker, "{chosen}") == "{chosen}"


def test_the_gateway_is_believed_if_it_was_another_one(picker: Served) -> None:
    assert served_header(picker, "127.0.0.9:1") == "127.0.0.9:1"


def test_a_gateway_that_does_not_tell_who_served_is_found_out(picker: Served) -> None:
    wanted = "fail: missing destination endpoint served metadata"
    assert served_header(picker, "") == wanted


def test_a_client_cannot_choose_its_destination(picker: Served) -> None:
    """Header and metadata are the picker's, and a client's subset header does not reach anybody."""
    sent = {"x-gateway-destination-endpoint": "192.0.2.1:80", SUBSET: "192.0.2.1:80"}
    (answers,) = ask(picker, headers=sent)
    chosen = gw.destination(answers[0])
    assert chosen in ENDPOINTS
    upstream = headers_sent(gw.request_head(sent), answers)
    assert upstream["x-gateway-destination-endpoint"] == chosen
    assert SUBSET not in upstream
