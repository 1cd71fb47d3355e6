"""Lists of endpoints, from a flag and from a file."""

from __future__ import annotations

import re

import pytest

from epp.collect.parse.endpoints import MAX_FILE_BYTES, kept, parse_addresses, parse_file


def test_addresses_of_every_kind() -> None:
    found = parse_addresses("10.0.0.1:8000, [fd00:0::1]:8001,Engine-a.svc.:80")
    assert [(e.id, e.host, e.port) for e in found] == [
        ("10.0.0.1:8000", "10.0.0.1", 8000),
        ("[fd00::1]:8001", "fd00::1", 8001),
        ("engine-a.svc:80", "engine-a.svc", 80),
    ]


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("", "''"),
        ("a", "'a'"),
        ("a:1,b", "'b'"),
        (":80", "':80'"),
        ("a:0", "'a:0'"),
        ("a:65536", "'a:65536'"),
        ("a:x", "'a:x'"),
        ("fd00::1:80", "fd00::1:80"),
        ("[fe80::1%eth0]:80", "zone"),
        ("999.1.1.1:80", "999.1.1.1"),
        ("a b:80", "'a b'"),
        ("a:1,A:1", "twice"),
        ("[fd00::1]:1,[fd00:0::1]:1", "twice"),
        ("http://a:80", "//a"),
    ],
)
def test_a_bad_address_is_named(text: str, culprit: str) -> None:
    with pytest.raises(ValueError, match=re.escape(culprit)):
        parse_addresses(text)


FILE = b"""
endpoints:
- name: pod-a
  namespace: prod
  address: 10.0.0.1
  port: "8000"
  labels: {llm-d.ai/role: decode}
- {name: pod-b, address: "fd00:0::1", port: 8001, draining: true}
- {name: pod-c, address: engine, port: 8002, labels: {epp/draining: "true"}}
"""


def test_a_file_of_every_kind_of_entry() -> None:
    parsed = parse_file(FILE)
    assert parsed.problems == ()
    a, b, c = parsed.endpoints
    assert (a.id, a.name, a.namespace, a.port) == ("10.0.0.1:8000", "pod-a", "prod", 8000)
    assert a.labels == {"llm-d.ai/role": "decode"}
    assert not a.draining
    assert (b.id, b.namespace, b.draining) == ("[fd00::1]:8001", "default", True)
    assert (c.id, c.draining) == ("engine:8002", True)


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        ("{address: a, port: 1}", "`name` - at `$.endpoints[1]`"),
        ("{name: x, address: a}", "`port` - at `$.endpoints[1]`"),
        ("{name: x, address: a, port: 0}", "at `$.endpoints[1].port`"),
        ("{name: x, address: 'a b', port: 1}", "at `$.endpoints[1].address`"),
        ("{name: x, address: a, port: 1, weight: 3}", "`weight` - at `$.endpoints[1]`"),
        ("{name: x, address: a, port: 1, labels: {v: 1}}", "at `$.endpoints[1].labels"),
        ("{name: '', address: a, port: 1}", "at `$.endpoints[1].name`"),
        ("just words", "at `$.endpoints[1]`"),
        ("{name: x, address: good, port: 1}", "twice - at `$.endpoints[1].address`"),
    ],
)
def test_a_bad_entry_says_where_and_spoils_no_other(entry: str, where: str) -> None:
    text = f"endpoints:\n- {{name: g, address: good, port: 1}}\n- {entry}\n"
    parsed = parse_file(text.encode())
    assert [e.id for e in parsed.endpoints] == ["good:1"]
    assert len(parsed.problems) == 1
    assert where in parsed.problems[0].text


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"endpoints: 3", b"endpoints: []\nmore: 1", b"{", b"\xff\xfe", b"a: &a [*a]"],
)
def test_a_file_of_another_shape_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_file(text)


def test_a_file_over_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="over the limit of 1048576"):
        parse_file(b"endpoints: []" + b" " * MAX_FILE_BYTES)


def test_an_endpoint_whose_entry_turned_bad_stays_as_it_was() -> None:
    before = parse_file(FILE).endpoints
    after = parse_file(b"endpoints:\n- {name: pod-a, namespace: prod, address: 10.0.0.1}\n")
    assert [e.id for e in kept(before, after)] == ["10.0.0.1:8000"]
