"""Header blocks: what is read, what is remembered, what is written.

**Source:** RFC 7541, its examples C.3 for the blocks; gRPC, doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import hpack
import pytest

from epp.rpc import heads
from epp.rpc.heads import Heads
from epp.rpc.status import Code

#: C.3.1 puts ``:authority: www.example.com`` into the table, C.3.2 refers to it there and puts in
#: ``cache-control: no-cache``.
FIRST = bytes.fromhex("828684410f7777772e6578616d706c652e636f6d")
SECOND = bytes.fromhex("828684be58086e6f2d6361636865")


def test_a_block_may_mean_something_else_once_the_table_has_changed() -> None:
    table = Heads()
    by_reference = b"\x82\x84\xbe"  #: GET / and the table's newest entry
    table.read(FIRST)
    assert table.read(by_reference).metadata == ()  # the newest is a pseudo-header
    assert table.read(by_reference) is table.read(by_reference)
    table.read(SECOND)
    assert table.read(by_reference).metadata == (("cache-control", "no-cache"),)


def test_a_literal_that_no_table_keeps_does_not_make_it_forget() -> None:
    table = Heads()
    known = table.read(b"\x82")
    table.read(b"\x00\x01a\x01b")
    assert table.read(b"\x82") is known
    table.read(b"\x40\x01a\x01b")
    assert table.read(b"\x82") is not known


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("2H", 7200.0), ("3M", 180.0), ("4S", 4.0), ("10000m", 10.0), ("5u", 5e-6), ("7n", 7e-9),
     ("", None), ("5", None), ("123456789S", None), ("5x", None)],
)  # fmt: skip
def test_the_time_that_a_call_has(told: str, seconds: float | None) -> None:
    block = hpack.Encoder().encode([(":path", "/p"), ("grpc-timeout", told)])
    assert Heads().read(block).seconds == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("method", "kind", "is_call"),
    [
        ("POST", "application/grpc", True),
        ("POST", "application/grpc+proto", True),
        ("GET", "application/grpc", False),
        ("POST", "application/json", False),
    ],
)
def test_what_is_a_call(method: str, kind: str, *, is_call: bool) -> None:
    block = hpack.Encoder().encode([(":method", method), ("content-type", kind)])
    assert Heads().read(block).is_grpc is is_call


@pytest.mark.parametrize(
    ("code", "details", "begun", "expected"),
    [
        (Code.OK, "", True, [("grpc-status", "0")]),
        (
            Code.INTERNAL,
            "a" * 2000,
            False,
            [
                (":status", "200"), ("content-type", "application/grpc"),
                ("grpc-status", "13"), ("grpc-message", "a" * 1024),
            ],
        ),
    ],
)  # fmt: skip
def test_how_an_answer_ends(
    code: Code, details: str, expected: list[tuple[str, str]], *, begun: bool
) -> None:
    frame = heads.end(1, code, details, begun=begun)
    assert hpack.Decoder().decode(frame[9:]) == expected
