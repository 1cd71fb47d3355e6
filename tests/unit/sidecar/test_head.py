"""Headers: who is named, in which order, and what goes on."""

from __future__ import annotations

import pytest

from epp.model import Endpoint, EndpointId
from epp.pool import Pool
from epp.sidecar import head
from epp.sidecar.allowed import Allowed
from epp.sidecar.head import Address, parse

PREFILLER = "x-prefiller-host-port"


def test_b133_repeated_and_comma_joined_headers_are_one_list_in_order() -> None:
    """Repeated, comma-joined or mixed-case prefill headers led to undefined behaviour."""
    way = head.read(
        [("X-Prefiller-Host-Port", "10.0.0.2:8000, [fd00::1]:8000"), (PREFILLER, "10.0.0.1:8000"),
         (PREFILLER, "10.0.0.2:8000")]
    )  # fmt: skip
    assert [str(each) for each in way.prefillers] == [
        "10.0.0.2:8000", "[fd00::1]:8000", "10.0.0.1:8000"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "::1:80", "a/b:1", "u@h:1",
     "[::1]", "h:\u0661", "h?:1", "h\n:1", "h:000001000000", "h:+1", "h: 1", "h:1 1"],
)  # fmt: skip
def test_what_is_no_address_is_skipped(text: str) -> None:
    assert parse(text) is None


def test_b132_the_port_is_the_one_that_is_named() -> None:
    """The prefill header named the wrong port where both roles listen on different ones."""
    assert parse("10.0.0.1:8200") == Address("10.0.0.1", 8200)


def test_more_endpoints_than_anybody_names_are_not_looked_at() -> None:
    many = ",".join(f"10.0.0.{number}:80" for number in range(1, 40))
    assert len(head.read([(PREFILLER, many)]).prefillers) == head.MOST_ENDPOINTS


def test_no_control_or_hop_by_hop_header_goes_on() -> None:
    sent = [
        (PREFILLER, "h:1"), ("X-Encoder-Hosts-Ports", "h:1"), ("x-kv-cache-source-host-port", "h:1"),
        ("x-data-parallel-host-port", "h:1"), ("x-prefiller-url", "http://h"), ("Host", "h"),
        ("Connection", "close, X-Secret-Hop"), ("x-secret-hop", "1"), ("Transfer-Encoding", "chunked"),
        ("Content-Length", "9"), ("Expect", "100-continue"), ("X-Request-Id", "mine"),
        ("Authorization", "Bearer t"), ("traceparent", "00-1"), ("x-data-parallel-rank", "1"),
    ]  # fmt: skip
    assert head.onward(sent, "r-1") == [
        ("Authorization", "Bearer t"), ("traceparent", "00-1"), ("x-data-parallel-rank", "1"),
        ("x-request-id", "r-1"),
    ]  # fmt: skip


def test_an_answers_length_goes_back_and_its_connection_does_not() -> None:
    sent = [("Content-Length", "2"), ("Keep-Alive", "timeout=5"), ("Content-Type", "text/plain")]
    assert head.backward(sent) == [("Content-Length", "2"), ("Content-Type", "text/plain")]


def endpoint(host: str, port: int) -> Endpoint:
    return Endpoint(EndpointId(f"{host}:{port}"), host, port)


def test_a_list_allows_its_ports_and_a_pool_its_hosts() -> None:
    pool = Pool()
    pool.put(endpoint("10.0.0.1", 8000))
    exact, hosts = Allowed(pool), Allowed(pool, any_port=True)
    assert exact.permits(Address("10.0.0.1", 8000))
    assert not exact.permits(Address("10.0.0.1", 8001))
    assert hosts.permits(Address("10.0.0.1", 8001))
    assert not hosts.permits(Address("10.0.0.2", 8000))
    assert Allowed(None).permits(Address("10.0.0.2", 1))


def test_who_leaves_the_pool_may_not_be_asked_any_more() -> None:
    pool = Pool()
    pool.put(endpoint("10.0.0.1", 8000))
    allowed = Allowed(pool)
    assert allowed.permits(Address("10.0.0.1", 8000))
    pool.remove(EndpointId("10.0.0.1:8000"))
    assert not allowed.permits(Address("10.0.0.1", 8000))
