"""The gRPC access log service: Envoy's word on how each request ended.

Served on the ext_proc port, so that a gateway needs one cluster only. Envoy sends entries in
batches; one of type ``DownstreamEnd`` per request. Whose it is says `unseen`.

**Source:** envoy/service/accesslog/v3/als.proto, envoy/data/accesslog/v3/accesslog.proto.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2

from epp.extproc.received import decoded
from epp.extproc.wire import REFUSED
from epp.feedback.entry import Entry
from epp.feedback.logged import StreamAccessLogsMessage, address_of, flags_of, status_of
from epp.feedback.unseen import Unseen
from epp.formats.usage import MOST as MOST_COUNT
from epp.headers import EXCHANGE, OWN_NAMESPACE
from epp.model import Outcome, Usage
from epp.rpc.call import Call
from epp.rpc.connection import Methods
from epp.rpc.status import Code

SERVICE = "envoy.service.accesslog.v3.AccessLogService"
MOST = float(MOST_COUNT)  #: as the numbers of an entry are
MOST_BYTES = 4 * 2**20  #: of a message; Envoy sends what it has from 16 KiB on
AT_ONCE = 256  #: entries taken in one turn of the loop, about 3 ms
METADATA = OWN_NAMESPACE  #: of dynamic metadata: what the gateway's filters found, and our name

_NUMBER = struct.Struct("<Bd")  #: a ``Value`` that is a number: its tag, and the number
_TOO_LARGE = f"a message of an access log is at most {MOST_BYTES} bytes"
_IS_NUMBER = 0x11  #: this tag: field 2, 64 bits
_IS_TEXT = 0x1A  #: and of a text: field 3, a length and bytes
_REFUSED = REFUSED.encode()
#: Begins the details of an answer whose status, such as 200, was sent before its body broke off.
_BROKEN_OFF = b"upstream_reset_after_response_started"
_LEFT = frozenset(("downstream_connection_termination", "downstream_remote_reset"))
_CUT = frozenset((
    "upstream_connection_termination", "upstream_remote_reset", "upstream_protocol_error",
    "stream_idle_timeout", "upstream_max_stream_duration_reached",
))  # fmt: skip
_COMPLETED = Outcome.COMPLETED  # a look into an `Enum` takes as long as a call
_EVENTS = b"text/event-stream"  # `in` would first try it as a number: `find` takes half as long
_ENDS = frozenset({accesslog_pb2.NotSet, accesslog_pb2.DownstreamEnd})


class AccessLogs:
    """Hands each entry of each connected gateway to `Unseen`."""

    def __init__(self, unseen: Unseen) -> None:
        self._unseen = unseen

    @property
    def methods(self) -> Methods:
        """What gateways call."""
        return {f"/{SERVICE}/StreamAccessLogs": self._stream}

    async def _stream(self, call: Call) -> None:
        self._unseen.log_opened()
        log = _Log(self._unseen)
        try:
            while isinstance(data := await call.read(), bytes):
                if len(data) > MOST_BYTES:
                    await call.abort(Code.RESOURCE_EXHAUSTED, _TOO_LARGE)
                message = await decoded(StreamAccessLogsMessage, data, call)
                await _take(message.http_logs.log_entry, log)
        finally:
            self._unseen.log_closed()
        await call.write(als_pb2.StreamAccessLogsResponse().SerializeToString())


class _Log:
    """One gateway's log, as far as it has shown what it tells."""

    def __init__(self, unseen: Unseen) -> None:
        self._unseen = unseen
        self._names = False  #: it tells names of exchanges

    def entry(self, entry: Entry) -> None:
        """Hand an entry on."""
        if entry.name:
            self._names = True
        elif self._names:
            self._unseen.untaken(entry)
            return
        self._unseen.entry(entry)


async def _take(entries: Any, log: _Log) -> None:
    """Take a batch; of one that nobody's Envoy sends, a part a turn of the loop."""
    for number, logged in enumerate(entries, 1):
        if (entry := read(logged)) is not None:
            log.entry(entry)
        if not number % AT_ONCE:
            await asyncio.sleep(0)


def read(logged: Any) -> Entry | None:
    """Translate one entry of a `logged.StreamAccessLogsMessage`. What is not there is not looked at.

    Return None if it tells of no end, or of what we refused ourselves: that has no open exchange, and a
    client may ask again by the same id.

    Each look into a part of the message makes an object, so no part is looked into twice, and of
    parts that have few values each value is read once. 2,000 entries a second come through here.
    """
    common, response = logged.common_properties, logged.response
    details = response.response_code_details
    if common.access_log_type not in _ENDS or details == _REFUSED:
        return None
    status, flags = status_of(response.response_code), flags_of(common.response_flags)
    name, usage, first = _found(common.metadata.filter_metadata)
    arrived, whole = _seconds(common.time_to_last_rx_byte), _seconds(common.duration)
    told = whole > 0 or common.HasField("duration")
    return Entry(
        request_id="" if name else logged.request.request_id,
        name=name,
        outcome=_outcome(status, details, flags),
        status=status,
        served=address_of(common.upstream_remote_address),
        response_bytes=response.response_body_bytes,
        usage=usage,
        first_byte_seconds=None if first is None else _after(arrived, first / 1000),
        seconds=_after(arrived, whole) if told else None,
        streamed=response.response_headers.get("content-type", b"").find(_EVENTS) >= 0,
        attempts=common.upstream_request_attempt_count or None,
        flags=flags,
    )


def _outcome(status: int | None, details: bytes, flags: str) -> Outcome:
    why = flags.split(",") if flags else ()
    if status is None or (why and not _LEFT.isdisjoint(why)):
        return Outcome.ABANDONED
    if status >= 400 or details.startswith(_BROKEN_OFF) or (why and not _CUT.isdisjoint(why)):
        return Outcome.FAILED
    return _COMPLETED


def _found(metadata: Any) -> tuple[str, Usage | None, float | None]:
    """The exchange's name, and what the gateway's filters measured: usage, ms to the first chunk."""
    told = metadata.get(METADATA)
    if told is None:
        return "", None, None
    fields = told.fields
    get = fields.get
    name = _text(get(EXCHANGE))
    if name and len(fields) == 1:
        return name, None, None
    prompt, completion = _count(get("prompt_tokens")), _count(get("completion_tokens"))
    cached, first = _count(get("cached_tokens")), _number(get("first_chunk_ms"))
    if prompt is None and completion is None and cached is None:
        return name, None, first
    return name, Usage(prompt, completion, cached), first


def _text(value: bytes | None) -> str:
    """Return the short ASCII text of a serialised ``Value``; "" if it is something else."""
    if value is None or len(value) < 2 or value[0] != _IS_TEXT or value[1] != len(value) - 2:
        return ""
    return value[2:].decode() if value.isascii() else ""


def _count(value: bytes | None) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number.is_integer() else None


def _number(value: bytes | None) -> float | None:
    """Return the number, not negative, of a serialised ``Value``; None if it is something else."""
    if value is None or len(value) != _NUMBER.size:
        return None
    tag, number = _NUMBER.unpack(value)
    return number if tag == _IS_NUMBER and 0 <= number < MOST else None


def _after(arrived: float, seconds: float) -> float:
    return seconds - arrived if seconds > arrived else 0.0


def _seconds(told: Any) -> float:
    """Return a duration, counted from the request's first byte; 0 if it is not told."""
    return told.seconds + told.nanos * 1e-9  # type: ignore[no-any-return]
