"""What answers and streams cost, measured over a real socket on a clock of the test's own."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from epp.extproc.measured import EVERY, measure
from epp.model import InferenceRequest
from epp.telemetry.metrics import Metrics
from tests.support import build
from tests.support import ext_proc as gw
from tests.support.ext_proc import Gateway, Picker

POST = [gw.request_head({"content-length": "3"}), gw.request_body(b"abc", ends=True)]
SSE = {"content-type": "text/event-stream"}


class Ticking:
    """Each look at it is one second later."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 1.0
        return self.seconds


class Notes:
    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.answers: list[float] = []
        self.streams: list[tuple[str, float]] = []

    def gap(self, request: InferenceRequest, seconds: float) -> None:
        assert request.id == "r-1"
        self.gaps.append(seconds)

    def answered(self, seconds: float) -> None:
        self.answers.append(seconds)

    def stream_closed(self, code: str, seconds: float) -> None:
        self.streams.append((code, seconds))


class Queue:
    """A gate whose queue never moves."""

    waiting = False

    def must_wait(self, request: InferenceRequest, endpoints: Any) -> bool:
        return True

    async def wait(self, request: InferenceRequest) -> None:
        self.waiting = True
        await asyncio.Event().wait()


def measured(*scripts: Any, lives: bool = False, gate: Queue | None = None) -> Notes:
    notes, picker = Notes(), Picker(gate=gate)
    measure(picker.service, notes, Ticking(), lives=lives)

    async def main() -> None:
        async with picker.serving() as gateway:
            for script in scripts:
                await script(gateway)
                await gw.until(lambda: picker.service.active == 0)

    asyncio.run(main())
    return notes


def exchange(*messages: Any) -> Any:
    async def script(gateway: Gateway) -> None:
        await gateway.exchange([*POST, *messages])

    return script


STREAMED = exchange(
    gw.response_head(SSE), gw.response_body(b"1"), gw.response_body(b"2"),
    gw.response_body(b"3"), gw.response_body(b"", ends=True),
)  # fmt: skip
WHOLE = exchange(gw.response_head(), gw.response_body(b"12"), gw.response_body(b"3", ends=True))


def test_of_a_stream_the_gaps_between_pieces_and_our_own_work_are_measured() -> None:
    # Each message is looked at twice, before and after: a second of work, a second of waiting.
    notes = measured(STREAMED)
    assert notes.gaps == [2.0, 2.0], "three pieces with text; the empty end is none"
    assert notes.answers == [5.0], "head, three pieces and the end"


def test_of_another_answer_the_time_from_head_to_end_is_measured_and_no_gap() -> None:
    notes = measured(WHOLE)
    assert (notes.gaps, notes.answers) == ([], [5.0])


def test_one_answer_of_16_is_measured_beginning_with_the_first() -> None:
    notes = measured(*[WHOLE] * (EVERY + 1))
    assert len(notes.answers) == 2


async def cut(gateway: Gateway) -> None:
    """Cancelled within the answer."""
    async with gateway.stream() as stream:
        await stream.send(*POST, gw.response_head(SSE), gw.response_body(b"1"))
        for _ in range(4):
            await stream.read()


async def broken(gateway: Gateway) -> None:
    """No message at all within the answer: there is nobody left to answer in order."""
    call = gateway.channel.stream_stream(gw.PATH)()
    for message in (*POST, gw.response_head(SSE), gw.response_body(b"1")):
        await call.write(message.SerializeToString())
    for _ in range(4):
        await call.read()
    await call.write(b"\xff")
    assert await call.code() is grpc.StatusCode.INTERNAL


def test_an_answer_that_is_cut_off_has_no_duration() -> None:
    assert measured(cut).answers == []


def test_an_answer_that_goes_by_unseen_is_not_measured() -> None:
    async def lean(gateway: Gateway) -> None:
        await gateway.exchange(
            [gw.request_head(modes=(gw.DUPLEX, gw.NONE)), gw.request_body(b"abc", ends=True)]
        )

    notes = measured(lean)
    assert (notes.gaps, notes.answers, notes.streams) == ([], [], [])


def test_streams_are_counted_by_their_grpc_status_if_it_is_asked_for() -> None:
    notes = measured(WHOLE, broken, lives=True)
    assert [code for code, _ in notes.streams] == ["OK", "Internal"]
    assert all(seconds > 0 for _, seconds in notes.streams)
    assert measured(WHOLE).streams == []


def test_a_stream_whose_client_leaves_is_canceled() -> None:
    queue = Queue()

    async def leave(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            await stream.send(*POST)
            await gw.until(lambda: queue.waiting)

    assert [code for code, _ in measured(leave, lives=True, gate=queue).streams] == ["Canceled"]


def test_the_metrics_take_what_is_measured() -> None:
    metrics = Metrics(process=False)
    page = metrics.render()[0]
    for name in (b"itl_seconds", b"response_processing", b"streams_total", b"stream_duration"):
        assert name not in page, "what was not measured is absent"
    metrics.gap(build.request(), 0.02)
    metrics.answered(0.001)
    metrics.stream_closed("Canceled", 3.0)
    page = metrics.render()[0]
    labels = b'fairness_id="",model_name="llama",priority="0",target_model_name="llama"'
    assert b"llm_d_epp_request_streaming_itl_seconds_count{" in page
    assert sorted(labels.split(b",")) == sorted(
        page.split(b"itl_seconds_sum{")[1].split(b"}")[0].split(b",")
    )
    assert b"llm_d_epp_response_processing_duration_seconds_sum 0.001" in page
    assert b'llm_d_epp_extproc_streams_total{code="Canceled"} 1.0' in page
    assert b'llm_d_epp_extproc_stream_duration_seconds_bucket{le="5.0"} 1.0' in page
