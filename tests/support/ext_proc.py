"""A gateway's end of ext_proc over a real socket, and a picker with a real router behind it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Self

import grpc
import msgspec
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from epp.clock import ManualClock
from epp.extproc import wire
from epp.extproc.port.health import HealthService
from epp.extproc.port.listen import PickerServer, build_server
from epp.extproc.server import ExtProcService
from epp.flow.gate import Gate
from epp.headers import DESTINATION, DESTINATION_NAMESPACE
from epp.ledger import Ledger
from epp.model import Arrival, Endpoint, InferenceRequest, Pick
from epp.pipeline import Pipeline
from epp.plugin import Observer, Profiles
from epp.pool import Pool
from epp.router import Router
from epp.rules import Rules
from epp.schedule.pickers.best import MaxScorePicker
from epp.schedule.profile import Profile
from epp.schedule.scheduler import Scheduler
from tests.support import build

NONE, STREAMED, BUFFERED, PARTIAL, DUPLEX = range(5)
PATH = f"/{wire.SERVICE}/Process"

# --- the picker --------------------------------------------------------------------


class PlainFormats:
    """Understands nothing, so that everything is routed by load."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []

    def parse(self, arrival: Arrival, now: float) -> InferenceRequest:
        self.arrivals.append(arrival)
        return InferenceRequest(arrival.id, arrival.headers, arrival.body, arrived_at=now)


class RewritingFormats(PlainFormats):
    """Asks the engine for another model."""

    def __init__(self, old: bytes, new: bytes) -> None:
        super().__init__()
        self._old, self._new = old, new

    def parse(self, arrival: Arrival, now: float) -> InferenceRequest:
        request = super().parse(arrival, now)
        return msgspec.structs.replace(request, body=arrival.body.replace(self._old, self._new))


class RaisingFormats(PlainFormats):
    """Fails on every request with a given error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def parse(self, arrival: Arrival, now: float) -> InferenceRequest:
        raise self._error


class Idle:
    """A pool that is never full."""

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        return 0.0


class OneProfile:
    """Runs the only profile; adds headers to the pick."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self._headers = headers or {}

    def handle(self, request: InferenceRequest, profiles: Profiles) -> Pick:
        chosen = profiles.run("default", request).chosen
        return Pick(chosen, headers=self._headers, profile="default")


class Adopted:
    """Keeps the exchanges whose answer goes by unseen."""

    def __init__(self) -> None:
        self.exchanges: list[Any] = []
        self.logs_connected = 0

    @property
    def asks_why(self) -> bool:
        return self.logs_connected > 0

    def name(self, exchange: Any) -> str:
        exchange.name = f"exchange-{exchange.request.id}"
        return str(exchange.name)

    def adopt(self, exchange: Any) -> None:
        self.exchanges.append(exchange)


class Picker:
    """A whole picker over a static pool: what a test may look at."""

    def __init__(
        self,
        *,
        endpoints: Sequence[Endpoint] | None = None,
        formats: PlainFormats | None = None,
        pick_headers: Mapping[str, str] | None = None,
        fallbacks: int = 1,
        with_scores: bool = False,
        gate: Any = None,
        **service: Any,
    ) -> None:
        self.pool = Pool()
        for endpoint in [build.endpoint("a")] if endpoints is None else endpoints:
            self.pool.put(endpoint)
        self.ledger = Ledger()
        self.diary = build.Diary()
        self.unseen = Adopted()
        self.formats = formats or PlainFormats()
        picker = MaxScorePicker(
            MaxScorePicker.Params(max_num_of_endpoints=fallbacks), build.tools()
        )
        scheduler = Scheduler(
            {"default": Profile("default", (), (), picker)}, OneProfile(pick_headers), with_scores
        )
        pipeline = Pipeline(
            self.formats,
            Rules(lambda request, _target: request),
            gate or Gate(Idle()),
            (),
            (),
            (),
            scheduler,
            (self.diary,),
        )
        self.observer_errors: list[Exception] = []
        self.router = Router(
            self.pool,
            pipeline,
            self.ledger,
            clock=ManualClock(),
            on_observer_error=self._on_observer_error,
        )
        service.setdefault("unseen", self.unseen)
        self.service = ExtProcService(self.router, **service)
        self.health = HealthService(lambda: True)
        self.server: PickerServer | None = None

    def _on_observer_error(self, _observer: Observer, error: Exception) -> None:
        self.observer_errors.append(error)

    @property
    def in_flight(self) -> int:
        """Requests the ledger counts as under way."""
        return sum(counts.requests for counts in self.ledger.all().values())

    @contextlib.asynccontextmanager
    async def serving(self, **options: Any) -> AsyncIterator[Gateway]:
        """Serve on a free port; yield a gateway that is connected to it."""
        self.server = build_server(self.service, health=self.health, host="127.0.0.1", **options)
        await self.server.start()
        try:
            async with Gateway(self.server.port) as gateway:
                yield gateway
        finally:
            await self.server.stop()


# --- the gateway -------------------------------------------------------------------


class Gateway:
    """A channel to a picker."""

    def __init__(self, port: int, *, channel: grpc.aio.Channel | None = None) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channel = channel or grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        self._method = self.channel.stream_stream(
            PATH,
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    @contextlib.asynccontextmanager
    async def stream(self, metadata: Sequence[tuple[str, str]] = ()) -> AsyncIterator[Stream]:
        """Open one stream; it is cancelled at the end if it is still open.

        ``metadata`` is the gRPC call's.
        """
        call = self._method(metadata=metadata or None)
        try:
            yield Stream(call)
        finally:
            call.cancel()

    async def exchange(
        self, messages: Iterable[pb.ProcessingRequest]
    ) -> list[pb.ProcessingResponse]:
        """Send all, close our half, return all answers."""
        async with self.stream() as stream:
            for message in messages:
                await stream.send(message)
            await stream.close()
            return await stream.rest()


class Stream:
    """One open ext_proc stream, with a bound on every wait."""

    def __init__(self, call: Any, *, bound: float = 5.0) -> None:
        self.call = call
        self.bound = bound

    async def send(self, *messages: pb.ProcessingRequest) -> None:
        for message in messages:
            await asyncio.wait_for(self.call.write(message), self.bound)

    async def read(self, bound: float | None = None) -> pb.ProcessingResponse:
        """Return the next answer; fails if the stream ends or nothing comes."""
        message = await asyncio.wait_for(self.call.read(), bound or self.bound)
        assert message is not grpc.aio.EOF, "the stream ended"
        return message

    async def quiet(self, seconds: float = 0.05) -> bool:
        """Whether nothing comes for a while. The stream cannot be read after it."""
        try:
            await asyncio.wait_for(self.call.read(), seconds)
        except TimeoutError:
            return True
        return False

    async def close(self) -> None:
        await self.call.done_writing()

    async def rest(self) -> list[pb.ProcessingResponse]:
        """Every further answer until the stream ends."""
        answers = []
        while (message := await asyncio.wait_for(self.call.read(), self.bound)) is not grpc.aio.EOF:
            answers.append(message)
        return answers


# --- messages ----------------------------------------------------------------------

Pairs = Mapping[str, str] | Sequence[tuple[str, str | bytes]]


def _head(headers: Pairs, ends: bool) -> pb.HttpHeaders:
    part = pb.HttpHeaders(end_of_stream=ends)
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    for name, value in pairs:
        raw = value if isinstance(value, bytes) else value.encode()
        part.headers.headers.add(key=name, raw_value=raw)
    return part


def _dress(
    message: pb.ProcessingRequest,
    modes: tuple[int, int] | None,
    metadata: Mapping[str, Mapping[str, Any]] | None,
) -> pb.ProcessingRequest:
    if modes is not None:
        message.protocol_config.request_body_mode = modes[0]
        message.protocol_config.response_body_mode = modes[1]
    for namespace, fields in (metadata or {}).items():
        message.metadata_context.filter_metadata[namespace].update(fields)
    return message


def request_head(
    headers: Pairs | None = None,
    *,
    method: str = "POST",
    path: str = "/v1/completions",
    ends: bool = False,
    modes: tuple[int, int] | None = (DUPLEX, DUPLEX),
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
) -> pb.ProcessingRequest:
    extra = headers.items() if isinstance(headers, Mapping) else headers or ()
    pairs = [(":method", method), (":path", path), *extra]
    if not any(name == "x-request-id" for name, _ in pairs):
        pairs.append(("x-request-id", "r-1"))
    return _dress(pb.ProcessingRequest(request_headers=_head(pairs, ends)), modes, metadata)


def request_body(
    data: bytes = b"",
    *,
    ends: bool = False,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
) -> pb.ProcessingRequest:
    part = pb.HttpBody(body=data, end_of_stream=ends)
    return _dress(pb.ProcessingRequest(request_body=part), None, metadata)


def request_trailers() -> pb.ProcessingRequest:
    return pb.ProcessingRequest(request_trailers=pb.HttpTrailers())


def response_head(
    headers: Pairs | None = None,
    *,
    status: int = 200,
    ends: bool = False,
    served: str = "",
    modes: tuple[int, int] | None = None,
) -> pb.ProcessingRequest:
    extra = headers.items() if isinstance(headers, Mapping) else headers or ()
    part = _head([(":status", str(status)), *extra], ends)
    metadata = {"envoy.lb": {"x-gateway-destination-endpoint-served": served}} if served else None
    return _dress(pb.ProcessingRequest(response_headers=part), modes, metadata)


def response_body(data: bytes = b"", *, ends: bool = False) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=data, end_of_stream=ends))


def response_trailers() -> pb.ProcessingRequest:
    return pb.ProcessingRequest(response_trailers=pb.HttpTrailers())


def split(body: bytes, size: int) -> list[bytes]:
    return [body[i : i + size] for i in range(0, len(body), size)]


def random_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


# --- what answers say --------------------------------------------------------------


def kinds(answers: Iterable[pb.ProcessingResponse]) -> list[str]:
    """The answers' kinds, in order."""
    return [str(answer.WhichOneof("response")) for answer in answers]


def common(answer: pb.ProcessingResponse) -> Any:
    """The answer's ``CommonResponse``."""
    return getattr(answer, str(answer.WhichOneof("response"))).response


def set_headers(answer: pb.ProcessingResponse) -> dict[str, str]:
    """The headers that an answer sets; fails if one is set twice or not by ``raw_value``."""
    chosen: dict[str, str] = {}
    for option in common(answer).header_mutation.set_headers:
        assert not option.header.value, "value and raw_value must not both be used"
        assert option.append_action == option.OVERWRITE_IF_EXISTS_OR_ADD
        assert option.header.key not in chosen
        chosen[option.header.key] = option.header.raw_value.decode()
    return chosen


def removed(answer: pb.ProcessingResponse) -> set[str]:
    return set(common(answer).header_mutation.remove_headers)


def metadata_destination(answer: pb.ProcessingResponse) -> str:
    fields = answer.dynamic_metadata.fields[DESTINATION_NAMESPACE].struct_value.fields
    return str(fields[DESTINATION].string_value)


def destination(answer: pb.ProcessingResponse) -> str:
    """The destination; fails if header and metadata differ."""
    chosen = set_headers(answer)[DESTINATION]
    assert chosen == metadata_destination(answer)
    return chosen


def pieces(answers: Iterable[pb.ProcessingResponse], side: str = "request") -> list[Any]:
    """The streamed pieces of one side's body, in order."""
    found = []
    for answer in answers:
        if answer.WhichOneof("response") == f"{side}_body":
            mutation = common(answer).body_mutation
            assert mutation.WhichOneof("mutation") == "streamed_response"
            found.append(mutation.streamed_response)
    return found


async def until(condition: Any, bound: float = 5.0) -> None:
    """Wait until ``condition()`` holds, at most ``bound`` seconds."""
    async with asyncio.timeout(bound):
        while not condition():
            await asyncio.sleep(0.002)
