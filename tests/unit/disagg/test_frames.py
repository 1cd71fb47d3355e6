"""What clients say about a KV cache's way over gRPC is removed, too; nothing else is."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest

from epp.disagg.strip import without_transfer
from epp.errors import BadRequest
from epp.model import Arrival

VLLM = "/vllm.grpc.engine.VllmEngine/Generate"
SGLANG = "/sglang.grpc.scheduler.SglangScheduler/Generate"
TRTLLM = "/trtllm.TrtllmService/Generate"
TOKENSPEED = "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/Generate"
HARM = b'{"do_remote_prefill":true}'
HOST = b"\x0a\x04evil"  #: a message's first field


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field of less than 128 bytes."""
    key = number << 3 | 2
    tag = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
    return tag + bytes([len(content)]) + content


def framed(message: bytes, compressed: int = 0) -> bytes:
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


def cleared(path: str, body: bytes, most: int | None = None) -> bytes:
    return without_transfer(Arrival("r", {":path": path}, body), most=most).body


ID = field(1, b"r-1")
UNKNOWN = field(30, b"whatever")
REST = b"\x28\x01"  #: field 5: true


@pytest.mark.parametrize(
    ("path", "number", "content"),
    [
        pytest.param(VLLM, 6, HOST, id="vllm"),
        pytest.param(VLLM, 8, HARM, id="vllm, as JSON"),
        pytest.param(SGLANG, 10, HOST, id="sglang"),
        pytest.param(TRTLLM, 17, HOST, id="tensorrt-llm"),
        pytest.param(TOKENSPEED, 10, HOST, id="tokenspeed, encode"),
        pytest.param(TOKENSPEED, 11, HOST, id="tokenspeed, prefill"),
    ],
)
def test_where_a_cache_is_cannot_be_said_and_the_other_fields_stay(
    path: str, number: int, content: bytes
) -> None:
    harm = field(number, content)
    left = framed(ID + REST + UNKNOWN)
    assert cleared(path, framed(ID + harm + REST + harm + UNKNOWN)) == left
    assert cleared("/behind/a/prefix" + path + "?q", framed(ID + harm + REST + UNKNOWN)) == left


def test_an_empty_message_is_removed_as_one_that_says_something() -> None:
    assert cleared(VLLM, framed(field(6, b"") + ID)) == framed(ID)
    assert cleared(VLLM, framed(field(6, HOST) + field(6, b"") + ID)) == framed(ID)


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
def test_a_compressed_message_is_looked_at(compress: Callable[[bytes], bytes]) -> None:
    harmless = framed(compress(ID + UNKNOWN), 1)
    assert cleared(VLLM, harmless) is harmless
    assert cleared(VLLM, framed(compress(ID + field(8, HARM)), 1)) == framed(ID)


def test_a_compressed_message_that_cannot_be_looked_at_is_refused() -> None:
    bomb = framed(gzip.compress(b"\0" * 10_000), 1)
    with pytest.raises(BadRequest, match="over 9999"):
        cleared(VLLM, bomb, most=9999)
    with pytest.raises(BadRequest, match="not by gzip or deflate"):
        cleared(VLLM, framed(b"\x28\xb5\x2f\xfd", 1))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(VLLM, framed(ID + REST + UNKNOWN), id="none of them"),
        pytest.param(SGLANG, framed(field(8, HARM)), id="another engine's number"),
        pytest.param("/vllm.grpc.engine.VllmEngine/Embed", framed(field(8, HARM)), id="embed"),
        pytest.param("/of.others/Generate", framed(field(8, HARM)), id="another service"),
        pytest.param(VLLM, framed(ID)[:-1], id="cut off"),
        pytest.param(VLLM, b"", id="nothing"),
        pytest.param(VLLM, framed(field(8, HARM)[:-1]), id="no protobuf"),
        pytest.param(VLLM, framed(ID) + framed(field(8, HARM)), id="a message nobody reads"),
    ],
)
def test_any_other_body_is_left_as_it_is(path: str, body: bytes) -> None:
    assert cleared(path, body) is body


def test_what_is_no_grpc_is_read_as_json() -> None:
    assert cleared("/v1/Generate", b'{"kv_transfer_params":{},"a":1}') == b'{"a":1}'
