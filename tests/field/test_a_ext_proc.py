"""Problems that endpoint pickers had with ext_proc in the field, shown over real gRPC.

What needs a real Envoy (filter chains, fail-open, route caches) is in the end-to-end tests.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from epp.errors import BadRequest
from epp.extproc.server import Settings
from epp.model import Outcome
from tests.support import build
from tests.support import ext_proc as gw
from tests.support.ext_proc import Gateway, Picker, RaisingFormats, RewritingFormats, Stream

A = "10.0.0.1:8000"
KIB = 1024


def run(picker: Picker, script: Callable[[Gateway], Awaitable[Any]], **options: Any) -> Any:
    """Run a script against the picker; everything it holds must be given back afterwards."""

    async def main() -> Any:
        async with picker.serving(**options) as gateway:
            result = await script(gateway)
            await gw.until(lambda: picker.service.active == 0)
            assert picker.service.budget.used == 0
            return result

    return asyncio.run(main())


def exchange(picker: Picker, *messages: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
    answers: list[pb.ProcessingResponse] = run(picker, lambda g: g.exchange(messages))
    return answers


def answer_of(answers: list[pb.ProcessingResponse]) -> Any:
    """The only answer, which must be an immediate one."""
    (answer,) = answers
    assert answer.WhichOneof("response") == "immediate_response"
    return answer.immediate_response


def headers_of(immediate: Any) -> dict[str, str]:
    return {o.header.key: o.header.raw_value.decode() for o in immediate.headers.set_headers}


# --- bodies ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [60 * KIB, 200 * KIB, 3 * KIB * KIB])
def test_b001_body_pieces_stay_below_64_kib(size: int) -> None:
    """B001: prompts over 128 KB came back as 500 (gateway-api-inference-extension#854)."""
    body = gw.random_bytes(size)
    sent = gw.split(body, 1_000_000)
    messages = [gw.request_body(part, ends=i == len(sent) - 1) for i, part in enumerate(sent)]
    head, *rest = exchange(Picker(), gw.request_head(), *messages)
    pieces = gw.pieces(rest)
    assert gw.destination(head) == A
    assert max(len(piece.body) for piece in pieces) < 64 * KIB
    assert b"".join(piece.body for piece in pieces) == body
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_b002_a_message_of_6_mib_is_answered() -> None:
    """B002: gRPC's default limit of 4 MiB broke the stream (envoyproxy/ai-gateway#1209)."""
    body = bytes(6 * KIB * KIB)
    answers = exchange(Picker(), gw.request_head(), gw.request_body(body, ends=True))
    assert sum(len(piece.body) for piece in gw.pieces(answers)) == len(body)


def test_b002_a_body_over_the_limit_is_answered_413() -> None:
    """B002: too large must be said in words, not by a broken stream."""
    picker = Picker(settings=Settings(max_body_bytes=KIB))
    answers = exchange(picker, gw.request_head(), gw.request_body(bytes(KIB + 1), ends=True))
    assert answer_of(answers).status.code == 413


def test_b004_a_flag_that_comes_alone_ends_the_body() -> None:
    """B004: two full-duplex filters in a chain cut bodies (envoyproxy/envoy#41654)."""
    picker = Picker()

    async def script(gateway: Gateway) -> list[pb.ProcessingResponse]:
        async with gateway.stream() as stream:
            await stream.send(gw.request_head(), *map(gw.request_body, (b'{"a', b'":1}')))
            await gw.until(lambda: picker.service.budget.used == 7)
            assert picker.diary.picks == []
            await stream.send(gw.request_body(b"", ends=True))
            return [await stream.read(), await stream.read()]

    (piece,) = gw.pieces(run(picker, script))
    assert (piece.body, piece.end_of_stream) == (b'{"a":1}', True)


def test_b005_trailers_end_the_body() -> None:
    """B005: an upload that ended with trailers hung (envoyproxy/envoy#27133)."""
    began = time.monotonic()
    bodies = [gw.request_body(part) for part in (b"a", b"b", b"c")]
    answers = exchange(Picker(), gw.request_head(), *bodies, gw.request_trailers())
    assert time.monotonic() - began < 1.0
    assert gw.kinds(answers) == ["request_headers", "request_body", "request_trailers"]
    (piece,) = gw.pieces(answers)
    assert (piece.body, piece.end_of_stream) == (b"abc", False)


@pytest.mark.parametrize("mode", [gw.DUPLEX, gw.BUFFERED, gw.STREAMED, gw.PARTIAL])
def test_b006_body_replies_have_the_form_of_the_mode(mode: int) -> None:
    """B006: a plain mutation in full duplex (gateway-api-inference-extension#3035)."""
    head = gw.request_head(modes=(mode, mode))
    messages = (gw.request_body(b"abc", ends=True), gw.response_head(), gw.response_body(b"x"))
    answers = exchange(Picker(), head, *messages)
    bodies = [gw.common(a) for a in answers if str(a.WhichOneof("response")).endswith("body")]
    forms = [body.body_mutation.WhichOneof("mutation") for body in bodies]
    assert forms == (["streamed_response"] * 2 if mode == gw.DUPLEX else [None, None])


def test_b008_with_hidden_bodies_the_head_is_answered_and_no_prompt_is_claimed() -> None:
    """B008: a mode override came too late for the first chunk (envoyproxy/envoy#40340)."""
    picker = Picker()
    (head,) = exchange(picker, gw.request_head(modes=(gw.NONE, gw.NONE)))
    assert gw.destination(head) == A
    assert not head.HasField("mode_override")
    (arrival,) = picker.formats.arrivals
    assert arrival.body_hidden
    assert arrival.body == b""


def test_b009_an_upgrade_is_answered_at_its_head() -> None:
    """B009: an HTTP/1.1 upgrade hung for ever in full duplex (envoyproxy/envoy#47161)."""

    async def script(gateway: Gateway) -> str:
        async with gateway.stream() as stream:
            upgrade = {"connection": "Upgrade", "upgrade": "websocket"}
            await stream.send(gw.request_head(upgrade, method="GET"))
            return gw.destination(await stream.read(bound=1.0))

    assert run(Picker(), script) == A


BODY = b'{"model":"m","prompt":"hi"}'
LONGER = b'{"model":"mistral-large","prompt":"hi"}'


def test_b010_a_longer_body_sets_its_length_where_it_is_buffered() -> None:
    """B010: a rewritten body gave 500, lengths differed (envoyproxy/envoy#28515, #38291)."""
    picker = Picker(formats=RewritingFormats(b'"m"', b'"mistral-large"'))
    head = gw.request_head({"content-length": str(len(BODY))}, modes=(gw.BUFFERED, gw.BUFFERED))
    _, answer = exchange(picker, head, gw.request_body(BODY, ends=True))
    assert gw.common(answer).body_mutation.body == LONGER
    assert gw.set_headers(answer)["content-length"] == str(len(LONGER))
    assert gw.destination(answer) == A


def test_b010_a_longer_body_sets_no_length_in_full_duplex() -> None:
    """B010: Envoy drops the header there."""
    picker = Picker(formats=RewritingFormats(b'"m"', b'"mistral-large"'))
    head = gw.request_head({"content-length": str(len(BODY))})
    answer, *rest = exchange(picker, head, gw.request_body(BODY, ends=True))
    assert b"".join(piece.body for piece in gw.pieces(rest)) == LONGER
    assert "content-length" not in gw.set_headers(answer)


# --- answers -----------------------------------------------------------------------


def test_b012_a_plain_text_error_of_the_upstream_passes_unchanged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B012: log floods and lost bodies (gateway-api-inference-extension#1436)."""
    picker = Picker()
    with caplog.at_level(logging.DEBUG, logger="epp"):
        answers = exchange(
            picker,
            gw.request_head(ends=True),
            gw.response_head({"content-type": "text/plain"}, status=503),
            gw.response_body(b"no healthy upstream", ends=True),
        )
    (piece,) = gw.pieces(answers, "response")
    assert (piece.body, piece.end_of_stream) == (b"no healthy upstream", True)
    assert "immediate_response" not in gw.kinds(answers)
    per_request = [r for r in caplog.records if r.name != "epp.extproc.port.listen"]
    assert per_request == []
    assert [(e.outcome, e.status) for e in picker.diary.endings] == [(Outcome.FAILED, 503)]


def test_b013_what_is_not_json_gets_a_json_error() -> None:
    """B013: an empty 4xx came back (gateway-api-inference-extension PR 847)."""
    picker = Picker(formats=RaisingFormats(BadRequest("the body is not JSON")))
    head = gw.request_head({"content-type": "application/json"})
    immediate = answer_of(exchange(picker, head, gw.request_body(b"not json", ends=True)))
    assert immediate.status.code == 400
    assert headers_of(immediate)["content-type"] == "application/json"
    assert json.loads(immediate.body)["error"]["message"] == "the body is not JSON"


def test_b015_each_chunk_of_an_endless_stream_is_answered_at_once() -> None:
    """B015: event streams hung (agentgateway/agentgateway#724)."""
    picker = Picker()

    async def script(gateway: Gateway) -> list[float]:
        waits = []
        async with gateway.stream() as stream:
            await stream.send(gw.request_head(ends=True))
            await stream.read()
            await stream.send(gw.response_head({"content-type": "text/event-stream"}))
            await stream.read()
            for i in range(20):
                began = time.monotonic()
                await stream.send(gw.response_body(b"data: %d\n\n" % i))
                (piece,) = gw.pieces([await stream.read()], "response")
                waits.append(time.monotonic() - began)
                assert (piece.body, piece.end_of_stream) == (b"data: %d\n\n" % i, False)
        return waits

    waits = sorted(run(picker, script))
    assert waits[len(waits) // 2] < 0.05
    assert [ending.streamed for ending in picker.diary.endings] == [True]


# --- faults ------------------------------------------------------------------------


async def first_answer_or_end(stream: Stream) -> pb.ProcessingResponse | grpc.StatusCode:
    try:
        answer = await asyncio.wait_for(stream.call.read(), 1.0)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await stream.call.code() if answer is grpc.aio.EOF else answer


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([gw.request_head(ends=True)], id="head"),
        pytest.param([gw.request_head(), gw.request_body(b"x", ends=True)], id="body"),
        pytest.param([gw.request_head(), gw.request_trailers()], id="trailers"),
    ],
)
def test_b020_a_fault_in_the_request_phase_is_answered(
    messages: list[pb.ProcessingRequest], caplog: pytest.LogCaptureFixture
) -> None:
    """B020: errors were logged and the client hung (envoyproxy/ai-gateway#840)."""
    picker = Picker(formats=RaisingFormats(ZeroDivisionError("a secret prompt")))

    async def script(gateway: Gateway) -> Any:
        async with gateway.stream() as stream:
            await stream.send(*messages)
            return await first_answer_or_end(stream)

    answer = run(picker, script)
    assert answer.immediate_response.status.code == 500
    assert b"secret" not in answer.SerializeToString()
    (record,) = [r for r in caplog.records if r.name.startswith("epp")]
    assert "ZeroDivisionError" in record.getMessage()
    assert "'r-1'" in record.getMessage()
    assert "secret" not in caplog.text


def test_b020_a_fault_in_the_response_phase_breaks_the_stream_and_frees_the_endpoint() -> None:
    """B020: once the response has begun there is nothing to answer with."""

    def fail(_exchange: object, _data: bytes) -> None:
        raise ZeroDivisionError

    picker = Picker(on_answer_piece=fail)

    async def script(gateway: Gateway) -> Any:
        async with gateway.stream() as stream:
            await stream.send(gw.request_head(ends=True), gw.response_head())
            await stream.read()
            await stream.read()
            await stream.send(gw.response_body(b"x"))
            return await first_answer_or_end(stream)

    assert run(picker, script) == grpc.StatusCode.INTERNAL
    assert [ending.outcome for ending in picker.diary.endings] == [Outcome.FAILED]
    assert picker.in_flight == 0


def test_b021_a_stream_reset_after_the_last_message_counts_as_success(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B021: finished streams counted as cancelled (envoyproxy/envoy#25277, #22727)."""
    picker = Picker()

    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            await stream.send(gw.request_head(ends=True))
            await stream.send(gw.response_head(), gw.response_body(b"x", ends=True))
            for _ in range(3):
                await stream.read()

    run(picker, script)
    assert [ending.outcome for ending in picker.diary.endings] == [Outcome.COMPLETED]
    assert picker.in_flight == 0
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_b021_a_lean_stream_reset_after_the_request_is_handed_on_once() -> None:
    """B021: with hidden answers the reset is the normal end of the request phase."""
    picker = Picker()

    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            await stream.send(gw.request_head(modes=(gw.DUPLEX, gw.NONE)))
            await stream.send(gw.request_body(b"x", ends=True))
            await stream.read()
            await stream.read()

    run(picker, script)
    assert picker.diary.endings == []
    assert len(picker.unseen.exchanges) == 1
    assert picker.in_flight == 1


def test_b022_a_body_too_large_to_hold_is_refused_at_its_head() -> None:
    """B022: fail-open holds only before the first chunk (envoyproxy/envoy PR 41276)."""
    picker = Picker(settings=Settings(max_buffered_bytes=KIB))
    immediate = answer_of(exchange(picker, gw.request_head({"content-length": str(2 * KIB)})))
    assert immediate.status.code == 503
    assert headers_of(immediate)["retry-after"] == "1"


def test_b022_a_body_over_the_limit_is_refused_at_its_head() -> None:
    """B022: also 413, where the length is announced."""
    picker = Picker(settings=Settings(max_body_bytes=KIB))
    immediate = answer_of(exchange(picker, gw.request_head({"content-length": str(2 * KIB)})))
    assert immediate.status.code == 413


# --- headers -----------------------------------------------------------------------


def test_b024_headers_go_out_as_raw_value_and_are_read_from_it() -> None:
    """B024: values came out empty (envoyproxy/envoy#29424). `set_headers` checks the form."""
    picker = Picker(pick_headers={"x-model": "modèle"})
    (answer,) = exchange(picker, gw.request_head([("x-name", "modèle".encode())], ends=True))
    assert gw.set_headers(answer)["x-model"] == "modèle"
    (arrival,) = picker.formats.arrivals
    assert arrival.headers["x-name"] == "modèle"


@pytest.mark.parametrize("copies", [1, 2])
def test_b025_the_destination_is_overwritten_not_appended(copies: int) -> None:
    """B025: defaults of append differ between filters (envoyproxy/envoy#29861)."""
    evil = [("X-Gateway-Destination-Endpoint", "192.0.2.1:1")] * copies
    (answer,) = exchange(Picker(), gw.request_head(evil, ends=True))
    assert gw.destination(answer) == A
    assert "x-gateway-destination-endpoint" not in gw.removed(answer)


def test_b026_headers_that_envoy_ignores_are_not_set() -> None:
    """B026: changes to host or x-envoy-* were ignored silently (envoyproxy/envoy#29573)."""
    ignored = {":authority": "h", "host": "h", "x-envoy-original-path": "/"}
    (answer,) = exchange(Picker(pick_headers=ignored), gw.request_head(ends=True))
    assert list(gw.set_headers(answer)) == ["x-gateway-destination-endpoint"]


def test_b029_two_streams_of_one_request_id_are_answered_each_by_itself() -> None:
    """B029: state was shared between streams (envoyproxy/ai-gateway#621)."""
    picker = Picker()

    async def script(gateway: Gateway) -> list[bytes]:
        async with gateway.stream() as one, gateway.stream() as two:
            await one.send(gw.request_head(), gw.request_body(b"1"))
            await two.send(gw.request_head(), gw.request_body(b"2", ends=True))
            second = [await two.read(), await two.read()]
            await one.send(gw.request_body(b"1", ends=True))
            first = [await one.read(), await one.read()]
        return [piece.body for piece in (*gw.pieces(first), *gw.pieces(second))]

    assert run(picker, script) == [b"11", b"2"]
    assert picker.in_flight == 0


def three(host: str = "10.0.0.{}") -> list[Any]:
    return [build.endpoint(str(i), host=host.format(i)) for i in (1, 2, 3)]


def test_b031_without_fallbacks_exactly_one_endpoint_is_named() -> None:
    """B031: a list broke proxies that expect one (gateway-api-inference-extension#459)."""
    (answer,) = exchange(Picker(endpoints=three()), gw.request_head(ends=True))
    assert gw.destination(answer) in {"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"}


def test_b031_fallbacks_are_distinct_and_without_spaces() -> None:
    """B031: and where they are wanted, retries must not hit the same dead pod."""
    picker = Picker(endpoints=three("fd00::{}"), fallbacks=3)
    (answer,) = exchange(picker, gw.request_head(ends=True))
    names = gw.destination(answer).split(",")
    assert sorted(names) == ["[fd00::1]:8000", "[fd00::2]:8000", "[fd00::3]:8000"]


@pytest.mark.parametrize("mode", [gw.NONE, gw.STREAMED, gw.BUFFERED, gw.PARTIAL, gw.DUPLEX])
def test_b032_header_and_metadata_name_the_same_endpoint(mode: int) -> None:
    """B032: two code paths (gateway-api-inference-extension PR 761)."""
    head = gw.request_head(modes=(mode, gw.NONE))
    picker = Picker(endpoints=three(), pick_headers={"X-Gateway-Destination-Endpoint": "other"})
    answers = exchange(picker, head, gw.request_body(b"x", ends=True))
    decided = [a for a in answers if a.HasField("dynamic_metadata")]
    assert len(decided) == 1
    assert gw.destination(decided[0]).startswith("10.0.0.")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE", "POST"])
def test_b034_a_head_that_ends_the_request_is_the_whole_request(method: str) -> None:
    """B034: GET had no route through the picker (gateway-api-inference-extension PR 555)."""

    async def script(gateway: Gateway) -> tuple[str, float]:
        async with gateway.stream() as stream:
            began = time.monotonic()
            extra = {"content-length": "0"} if method == "POST" else None
            await stream.send(gw.request_head(extra, method=method, path="/health", ends=True))
            answer = await stream.read()
            return gw.destination(answer), time.monotonic() - began

    destination, seconds = run(Picker(), script)
    assert destination == A
    assert seconds < 1.0


# --- security ----------------------------------------------------------------------

EVIL = {
    "X-Prefiller-Host-Port": "169.254.169.254:80",
    "x-prefiller-url": "http://169.254.169.254",
    "x-data-parallel-host-port": "169.254.169.254:80",
    "x-data-parallel-rank": "7",
    "x-encoder-hosts-ports": "169.254.169.254:80",
    "x-gateway-destination-endpoint-served": "169.254.169.254:80",
}


@pytest.mark.parametrize(
    ("head", "more"),
    [
        pytest.param({"ends": True, "method": "GET"}, [], id="GET"),
        pytest.param({"modes": (gw.NONE, gw.NONE)}, [], id="hidden body"),
        pytest.param({"modes": (gw.STREAMED, gw.NONE)}, [], id="streamed"),
        pytest.param({"modes": (gw.BUFFERED, gw.NONE)}, [b"x"], id="buffered"),
        pytest.param({}, [b"x"], id="full duplex"),
        pytest.param({"modes": None}, [b"x"], id="mode not told"),
    ],
)
def test_b200_control_headers_of_a_client_are_removed_in_every_path(
    head: dict[str, Any], more: list[bytes]
) -> None:
    """B200: a client could make the sidecar call any host (llm-d/llm-d-router#242)."""
    bodies = [gw.request_body(data, ends=True) for data in more]
    first = exchange(Picker(), gw.request_head(EVIL, **head), *bodies)[0]
    assert gw.removed(first) == {name.lower() for name in EVIL}


def test_b200_control_headers_are_removed_from_an_upgrade() -> None:
    """B200: an upgrade is no way round it."""
    head = gw.request_head({**EVIL, "upgrade": "websocket"}, method="GET")
    assert gw.removed(exchange(Picker(), head)[0]) == {name.lower() for name in EVIL}
