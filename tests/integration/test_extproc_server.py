"""The ext_proc service over a real socket: ends, limits, silence, hooks and many cancelled streams.

The session's own rules are in its unit tests; real Envoys are in the end-to-end tests.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from epp.errors import ConfigError, EppError, NoEndpoints
from epp.extproc import wire
from epp.extproc.needs import Counters
from epp.extproc.port.listen import build_server
from epp.extproc.server import Settings
from epp.model import Ending, InferenceRequest, Outcome
from epp.rpc.call import Call
from tests.support import build
from tests.support import ext_proc as gw
from tests.support.ext_proc import Gateway, Picker

A = "10.0.0.1:8000"
Script = Callable[[Gateway], Awaitable[Any]]


def run(picker: Picker, script: Script, **options: Any) -> Any:
    async def main() -> Any:
        async with picker.serving(**options) as gateway:
            result = await script(gateway)
            await gw.until(lambda: picker.service.active == 0)
            return result

    return asyncio.run(main())


def exchange(picker: Picker, *messages: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
    answers: list[pb.ProcessingResponse] = run(picker, lambda g: g.exchange(messages))
    return answers


def outcomes(picker: Picker) -> list[Outcome]:
    return [ending.outcome for ending in picker.diary.endings]


# --- how exchanges end -------------------------------------------------------------

POST = [gw.request_head({"content-length": "3"}), gw.request_body(b"abc", ends=True)]
LEAN = [gw.request_head(modes=(gw.DUPLEX, gw.NONE)), gw.request_body(b"abc", ends=True)]
OK = gw.response_head()


@pytest.mark.parametrize(
    ("messages", "replies", "ended", "adopted"),
    [
        pytest.param([POST[0]], 0, [], 0, id="in the body"),
        pytest.param(POST, 2, [Outcome.ABANDONED], 0, id="before the response"),
        pytest.param([*POST, OK], 3, [Outcome.ABANDONED], 0, id="after the response's head"),
        pytest.param(
            [*POST, OK, gw.response_body(b"x")], 4, [Outcome.ABANDONED], 0, id="in the response"
        ),
        pytest.param(
            [*POST, OK, gw.response_body(b"x", ends=True)],
            4,
            [Outcome.COMPLETED],
            0,
            id="after the response",
        ),
        pytest.param(
            [*POST, OK, gw.response_body(b"x"), gw.response_trailers()],
            5,
            [Outcome.COMPLETED],
            0,
            id="after the trailers",
        ),
        pytest.param(
            [*POST, gw.response_head(status=500, ends=True)], 3, [Outcome.FAILED], 0, id="500"
        ),
        pytest.param(LEAN, 2, [], 1, id="lean"),
        pytest.param([*LEAN, OK], 3, [], 1, id="lean with the response's head"),
        pytest.param(
            [*LEAN, gw.response_head(ends=True)], 3, [Outcome.COMPLETED], 0, id="lean without body"
        ),
    ],
)
@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_a_stream_that_ends_anywhere_ends_its_exchange_once(
    messages: list[pb.ProcessingRequest],
    replies: int,
    ended: list[Outcome],
    adopted: int,
    how: str,
) -> None:
    picker = Picker()

    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            await stream.send(*messages)
            for _ in range(replies):
                await stream.read()
            await gw.until(lambda: picker.service.active == 1)
            if how == "closed":
                await stream.close()
                assert await stream.rest() == []

    run(picker, script)
    assert outcomes(picker) == ended
    assert len(picker.unseen.exchanges) == adopted
    assert picker.in_flight == adopted
    assert picker.service.budget.used == 0


def test_with_an_access_log_a_lean_stream_is_closed_once_its_request_is_answered_for() -> None:
    picker = Picker()
    picker.unseen.logs_connected = 1

    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            await stream.send(*LEAN)
            replies = await stream.rest()
            assert gw.kinds(replies) == ["request_headers"], "head and body in one"
            assert replies[0].request_headers.response.body_mutation.body == b"abc"
            assert await stream.call.code() is grpc.StatusCode.OK
        await gw.until(lambda: picker.service.active == 0)

    run(picker, script)
    assert len(picker.unseen.exchanges) == 1, "the log tells how it ended"
    assert outcomes(picker) == []


@pytest.mark.parametrize(
    "modes",
    [
        pytest.param((gw.DUPLEX, gw.DUPLEX), id="full duplex"),
        pytest.param((gw.DUPLEX, gw.STREAMED), id="streamed"),
        pytest.param(None, id="not told"),
    ],
)
def test_a_stream_that_may_bring_the_answer_stays_open_whatever_tells_its_end(modes: Any) -> None:
    picker = Picker()
    picker.unseen.logs_connected = 1

    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            await stream.send(gw.request_head(modes=modes), gw.request_body(b"abc", ends=True))
            await stream.read()
            await stream.read()
            await stream.send(gw.response_head(), gw.response_body(b"answer", ends=True))
            assert gw.kinds([await stream.read(), await stream.read()]) == [
                "response_headers",
                "response_body",
            ]

    run(picker, script)
    assert outcomes(picker) == [Outcome.COMPLETED]


def test_without_a_keeper_an_unseen_exchange_ends_unknown() -> None:
    picker = Picker(unseen=None)
    exchange(picker, *LEAN)
    assert outcomes(picker) == [Outcome.UNKNOWN]


class Queue:
    """A gate whose queue never moves."""

    def __init__(self) -> None:
        self.waiting = 0

    def must_wait(self, request: InferenceRequest, endpoints: Any) -> bool:
        return True

    async def wait(self, request: InferenceRequest) -> None:
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1


def test_a_client_that_leaves_while_its_request_is_queued_frees_its_place() -> None:
    queue = Queue()
    picker = Picker(gate=queue)

    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            await stream.send(*POST)
            await gw.until(lambda: queue.waiting == 1)
            assert picker.service.budget.used == 3
        await gw.until(lambda: queue.waiting == 0)

    run(picker, script)
    assert (outcomes(picker), picker.service.budget.used) == ([], 0)


def test_what_an_exchange_learns_from_its_response() -> None:
    picker = Picker()
    exchange(
        picker,
        *POST,
        gw.response_head({"content-type": "text/event-stream"}, served="10.0.0.9:8000"),
        gw.response_body(b"12345"),
        gw.response_body(b"678", ends=True),
    )
    (ending,) = picker.diary.endings
    assert ending == Ending(
        Outcome.COMPLETED,
        at=0.0,
        status=200,
        served="10.0.0.9:8000",
        first_byte_at=0.0,
        response_bytes=8,
        streamed=True,
    )


def test_a_forwarded_body_is_not_kept() -> None:
    picker = Picker()
    exchange(picker, *LEAN)
    (kept,) = picker.unseen.exchanges
    assert kept.request.body == b""
    assert kept.request.id == "r-1"


# --- the pick ----------------------------------------------------------------------


def hint(*names: str) -> dict[str, dict[str, Any]]:
    return {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": list(names)}}


def test_the_subset_hint_limits_the_pick() -> None:
    endpoints = [build.endpoint(str(i), host=f"10.0.0.{i}") for i in range(1, 6)]
    picker = Picker(endpoints=endpoints)
    head = gw.request_head(metadata=hint("10.0.0.1:8000", "10.0.0.2:8000"))
    body = gw.request_body(b"x", ends=True, metadata=hint("10.0.0.4:8000"))
    assert gw.destination(exchange(picker, head, body)[0]) == "10.0.0.4:8000"


@pytest.mark.parametrize("names", [(), ("10.9.9.9:8000",), ("10.0.0.1:8001",)])
def test_a_subset_without_an_endpoint_is_answered_503(names: tuple[str, ...]) -> None:
    (answer,) = exchange(Picker(), gw.request_head(ends=True, metadata=hint(*names)))
    assert answer.immediate_response.status.code == 503


def test_an_empty_pool_is_answered_503_with_its_reason() -> None:
    (answer,) = exchange(Picker(endpoints=[]), gw.request_head(ends=True))
    assert answer.immediate_response.status.code == 503
    headers = {
        o.header.key: o.header.raw_value for o in answer.immediate_response.headers.set_headers
    }
    assert headers["x-llm-d-request-dropped-reason"] == b"rejected-no-endpoints"
    assert headers["retry-after"] == b"1"


def test_scores_go_out_as_metadata_if_wanted() -> None:
    (answer,) = exchange(Picker(with_scores=True), gw.request_head(ends=True))
    fields = answer.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    scores = fields["x-gateway-destination-endpoint-scores"].struct_value.fields
    assert {name: value.number_value for name, value in scores.items()} == {A: 0.0}


def test_a_request_id_is_made_up_where_there_is_none() -> None:
    picker = Picker(new_id=lambda: "made-up")
    head = gw.request_head([("x-request-id", "")], ends=True)
    assert gw.set_headers(exchange(picker, head)[0])["x-request-id"] == "made-up"


def test_errors_in_the_text_form() -> None:
    picker = Picker(endpoints=[], settings=Settings(error_format="text"))
    (answer,) = exchange(picker, gw.request_head(ends=True))
    assert answer.immediate_response.body.startswith(b"inference error: ServiceUnavailable - ")


# --- a gateway that tells no mode --------------------------------------------------


def test_a_silent_gateway_is_answered_at_the_head_in_time() -> None:
    picker = Picker(settings=Settings(silence_seconds=0.02))

    async def script(gateway: Gateway) -> list[str]:
        async with gateway.stream() as stream:
            await stream.send(gw.request_head(modes=None))
            assert gw.destination(await stream.read(bound=1.0)) == A
            await stream.send(gw.request_body(b"abc", ends=True))
            return gw.kinds([await stream.read()])

    assert run(picker, script) == ["request_body"]
    (arrival,) = picker.formats.arrivals
    assert arrival.body_hidden


def test_a_silent_gateway_that_leaves_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    picker = Picker(settings=Settings(silence_seconds=5.0))

    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            await stream.send(gw.request_head(modes=None))
            await gw.until(lambda: picker.service.active == 1)

    run(picker, script)
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


# --- limits ------------------------------------------------------------------------


def test_the_bytes_held_never_pass_the_budget() -> None:
    """Uploads of 100 kB each, none finished: the fourth does not fit into 350 kB."""
    picker = Picker(settings=Settings(max_buffered_bytes=350_000))

    async def script(gateway: Gateway) -> list[str]:
        async with gateway.stream() as a, gateway.stream() as b, gateway.stream() as c:
            for i, stream in enumerate((a, b, c), 1):
                await stream.send(gw.request_head(), gw.request_body(bytes(100_000)))
                await gw.until(lambda want=i: picker.service.budget.used == want * 100_000)
            async with gateway.stream() as d:
                await d.send(gw.request_head(), gw.request_body(bytes(100_000)))
                refused = (await d.read()).immediate_response
                await d.close()
                assert await d.rest() == []
            assert refused.status.code == 503
            assert picker.service.budget.used == 300_000
            await a.send(gw.request_body(b"", ends=True))
            return gw.kinds([await a.read() for _ in range(3)])

    assert run(picker, script) == ["request_headers", "request_body", "request_body"]
    assert picker.service.budget.used == 0


def test_a_message_of_20_mib_passes_with_the_default_limits() -> None:
    body = gw.random_bytes(20 * 1024 * 1024)
    answers = exchange(Picker(), gw.request_head(), gw.request_body(body, ends=True))
    assert b"".join(piece.body for piece in gw.pieces(answers)) == body


def test_garbage_is_answered_500(caplog: pytest.LogCaptureFixture) -> None:
    picker = Picker()

    async def script(gateway: Gateway) -> bytes:
        call = gateway.channel.stream_stream(gw.PATH)()
        await call.write(b"\xff\xff\xff")
        answer: bytes = await call.read()
        call.cancel()
        return answer

    answer = pb.ProcessingResponse.FromString(run(picker, script))
    assert answer.immediate_response.status.code == 500
    assert b"no ProcessingRequest" in answer.immediate_response.body
    assert caplog.text == "", "a gateway that sends much of it fills no log"


def test_a_second_picker_on_the_port_fails_to_start() -> None:
    async def script(gateway: Gateway) -> None:
        assert picker.server is not None
        with pytest.raises(ConfigError, match="cannot listen on 127"):
            build_server(picker.service, host="127.0.0.1", port=picker.server.port)

    picker = Picker()
    run(picker, script)


# --- hooks -------------------------------------------------------------------------


class Tally(Counters):
    """Counts what the service says."""

    def __init__(self) -> None:
        self.open = self.streams = self.odd = 0
        self.errors: list[type[EppError]] = []

    def stream_started(self) -> None:
        self.open += 1
        self.streams += 1

    def stream_ended(self) -> None:
        self.open -= 1

    def refused(self, error: EppError) -> None:
        self.errors.append(type(error))

    def spurious(self, count: int) -> None:
        self.odd += count


def test_counters_hear_of_streams_errors_and_odd_messages() -> None:
    tally = Tally()
    picker = Picker(endpoints=[], counters=tally)

    async def script(gateway: Gateway) -> None:
        await gateway.exchange([gw.request_head(ends=True)])
        await gateway.exchange([gw.response_head(), gw.response_head()])
        await gw.until(lambda: tally.open == 0)

    run(picker, script)
    assert (tally.streams, tally.errors, tally.odd) == (2, [NoEndpoints], 1)


def test_headers_can_be_set_on_the_answer_and_its_pieces_watched() -> None:
    seen: list[bytes] = []
    picker = Picker(
        answer_headers=lambda exchange: {"x-served": exchange.served},
        on_answer_piece=lambda exchange, data: seen.append(data),
    )
    messages = [
        gw.response_head(served=A),
        gw.response_body(b"a"),
        gw.response_body(b"b", ends=True),
    ]
    answers = exchange(picker, *POST, *messages)
    assert gw.set_headers(answers[2]) == {"x-served": A}
    assert seen == [b"a", b"b"]


def test_other_services_share_the_port() -> None:
    async def echo(call: Call) -> None:
        data = await call.read()
        assert isinstance(data, bytes)
        await call.write(data)

    async def script(gateway: Gateway) -> bytes:
        said: bytes = await gateway.channel.unary_unary("/test.Echo/Say")(b"hi")
        return said

    assert run(Picker(), script, methods=[{"/test.Echo/Say": echo}]) == b"hi"


# --- many --------------------------------------------------------------------------


def resident() -> int:
    """Bytes of memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def leave_somewhere(gateway: Gateway, at: int) -> None:
    """Open a stream and cancel it after ``at`` steps."""
    async with gateway.stream() as stream:
        steps: list[Callable[[], Awaitable[Any]]] = [
            lambda: stream.send(POST[0]),
            lambda: stream.send(POST[1]),
            stream.read,
            stream.read,
            lambda: stream.send(OK),
            stream.read,
            lambda: stream.send(gw.response_body(b"x")),
        ]
        for step in steps[:at]:
            await step()


def test_2000_cancelled_streams_leave_nothing_behind() -> None:
    """Field problem B180: memory leaked with every cancelled stream (grpc/grpc#43360).

    1,000 to warm up, then 2,000 may not cost more than 10 MB, client's part included.
    """
    picker = Picker()

    async def many(gateway: Gateway, count: int) -> None:
        for start in range(0, count, 50):
            await asyncio.gather(
                *(leave_somewhere(gateway, i % 8) for i in range(start, start + 50))
            )
        await gw.until(lambda: picker.service.active == 0)
        picker.diary.endings.clear()
        picker.diary.picks.clear()
        picker.formats.arrivals.clear()
        gc.collect()

    async def script(gateway: Gateway) -> int:
        await many(gateway, 1000)
        before = resident()
        await many(gateway, 2000)
        return resident() - before

    assert run(picker, script) < 10_000_000
    assert picker.in_flight == 0
    assert picker.service.budget.used == 0
    assert picker.unseen.exchanges == []


def test_the_service_name_is_envoys() -> None:
    assert pb.DESCRIPTOR.services_by_name["ExternalProcessor"].full_name == wire.SERVICE
