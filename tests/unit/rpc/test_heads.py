"""Header blocks: what is read, what is remembered, what is written.

**Source:** RFC 7541, its examples C.3 for the blocks; gRPC, doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import copy
import random

import hpack
import pytest

from epp.rpc import heads
from epp.rpc.frames import Broken
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
        ("POST", "application/grpc;charset=utf-8", True),
        ("POST", "application/grpc-web", False),
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


def test_what_is_remembered_never_differs_from_what_is_read() -> None:
    for seed in range(10):
        chance = random.Random(seed)
        ours, theirs = Heads(), hpack.Decoder(max_header_list_size=heads.MOST_BYTES)
        seen: list[bytes] = []
        for _ in range(300):
            block = _block(chance) if not seen or chance.random() < 0.4 else chance.choice(seen)
            seen.append(block)
            try:
                copy.deepcopy(theirs).decode(block)
            except hpack.HPACKError:  # it refers to an entry that is not there
                continue
            pairs = theirs.decode(block, raw=True)
            names = tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in pairs)
            head = ours.read(block)
            assert head.metadata == tuple(pair for pair in names if not pair[0].startswith(":"))
            assert head.path == dict(names).get(":path", "")


def _block(chance: random.Random) -> bytes:
    """A header block: table sizes, references, and literals that the table keeps or does not."""
    sizes = [b"\x20", b"\x3f\x21", b"\x3f\xe1\x1f"]  # 0, 64 and 4096
    parts = [chance.choice(sizes) for _ in range(chance.choice([0, 0, 0, 0, 1, 2]))]
    for _ in range(chance.randrange(1, 5)):
        name, value = chance.choice(["a", ":path", "bc"]), chance.choice(["x", "yz", "w" * 40])
        text = bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        packed = hpack.Encoder().encode([(name, value)], huffman=True)
        known = bytes([0x80 | chance.choice([2, 4, 62, 62, 63])])
        parts.append(chance.choice([b"\x00" + text, b"\x10" + text, b"\x40" + text, packed, known]))
    return b"".join(parts)


def test_long_heads_are_not_remembered() -> None:
    table = Heads()
    size = hpack.hpack.encode_integer(heads.MOST_REMEMBERED, 7)
    long = b"\x10\x01a" + size + b"v" * heads.MOST_REMEMBERED
    assert table.read(long) is not table.read(long)
    assert table.read(b"\x10\x01a\x01v") is table.read(b"\x10\x01a\x01v")


def test_a_table_may_be_resized_twice_in_a_block() -> None:
    assert Heads().read(b"\x20\x3f\xe1\x1f\x82").metadata == ()
    with pytest.raises(Broken):
        Heads().read(b"\x20\x3f\xe1\x1f\x20\x82")
