"""What an entry of Envoy's access log says. In: outcome, sizes, usage. Out: the stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.data.accesslog.v3 import accesslog_pb2 as pb
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf import struct_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from epp.extproc.wire import REFUSED
from epp.feedback import access_log
from epp.feedback.access_log import AT_ONCE, METADATA, MOST_BYTES, AccessLogs
from epp.feedback.entry import Entry
from epp.feedback.logged import StreamAccessLogsMessage
from epp.headers import EXCHANGE, OWN_NAMESPACE
from epp.model import Outcome, Usage
from epp.rpc.call import EOF, EndOfMessages
from epp.rpc.status import Aborted, Code

THEIRS = (
    als_pb2.StreamAccessLogsMessage, als_pb2.StreamAccessLogsMessage.HTTPAccessLogEntries,
    pb.HTTPAccessLogEntry, pb.AccessLogCommon, pb.HTTPRequestProperties, pb.HTTPResponseProperties,
    base_pb2.Metadata, struct_pb2.Struct,
)  # fmt: skip


def logged(
    status: int = 200, *, flags: tuple[str, ...] = (), details: str = "via_upstream"
) -> pb.HTTPAccessLogEntry:
    entry = pb.HTTPAccessLogEntry()
    entry.request.request_id = "r-1"
    if status:
        entry.response.response_code.value = status
    entry.response.response_body_bytes = 12
    entry.response.response_code_details = details
    for flag in flags:
        setattr(entry.common_properties.response_flags, flag, True)
    return entry


def written(*entries: pb.HTTPAccessLogEntry) -> bytes:
    """What Envoy sends of ``entries``."""
    message = als_pb2.StreamAccessLogsMessage()
    message.identifier.log_name = "epp"
    message.http_logs.log_entry.extend(entries)
    return message.SerializeToString()


def read_all(data: bytes) -> list[Entry]:
    message = StreamAccessLogsMessage.FromString(data)
    told = (access_log.read(each) for each in message.http_logs.log_entry)
    return [each for each in told if each is not None]


def read(entry: pb.HTTPAccessLogEntry) -> Entry:
    (told,) = read_all(written(entry))
    return told


def test_an_entry_names_its_request_its_server_and_its_size() -> None:
    entry = logged()
    address = entry.common_properties.upstream_remote_address.socket_address
    address.address, address.port_value = "fd00::1", 8000
    told = read(entry)
    assert (told.request_id, told.outcome, told.status) == ("r-1", Outcome.COMPLETED, 200)
    assert (told.served, told.response_bytes, told.usage) == ("[fd00::1]:8000", 12, None)


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_an_error_status_is_a_failure(status: int) -> None:
    assert read(logged(status)).outcome is Outcome.FAILED


@pytest.mark.parametrize("flag", ["downstream_connection_termination", "downstream_remote_reset"])
def test_a_client_that_left_abandoned_its_request_whatever_the_status(flag: str) -> None:
    assert read(logged(flags=(flag,))).outcome is Outcome.ABANDONED


def test_a_request_without_a_status_was_abandoned() -> None:
    told = read(logged(0))
    assert (told.outcome, told.status) == (Outcome.ABANDONED, None)


@pytest.mark.parametrize(
    "flag",
    ["upstream_connection_termination", "upstream_remote_reset", "upstream_protocol_error",
     "stream_idle_timeout", "upstream_max_stream_duration_reached"],
)  # fmt: skip
def test_an_answer_that_was_cut_failed_though_its_status_was_sent(flag: str) -> None:
    assert read(logged(flags=(flag,))).outcome is Outcome.FAILED


def test_an_answer_that_broke_off_failed_whatever_flags_say() -> None:
    details = "upstream_reset_after_response_started{connection_termination}"
    assert read(logged(details=details)).outcome is Outcome.FAILED


def test_usage_comes_from_the_gateways_metadata() -> None:
    entry: Any = logged()
    fields = entry.common_properties.metadata.filter_metadata["epp"].fields
    fields["prompt_tokens"].number_value = 7
    fields["completion_tokens"].number_value = -1  # never told
    assert read(entry).usage == Usage(7, None, None)


# --- times, counts and why it was cut off --------------------------------------------------


def test_times_count_from_when_the_gateway_had_the_whole_request() -> None:
    # The last byte of the request came 0.5 s after its first, the answer's first chunk at 0.75 s,
    # the end at 4 s: 0.25 s and 3.5 s after the request was whole.
    entry = logged()
    entry.common_properties.time_to_last_rx_byte.nanos = 500_000_000
    entry.common_properties.duration.seconds = 4
    entry.common_properties.metadata.filter_metadata[METADATA].update(
        {"began_ms": 1.7e12, "first_chunk_ms": 750, "chunks": 9}
    )
    told = read(entry)
    assert (told.first_byte_seconds, told.seconds) == (0.25, 3.5)


def test_times_that_are_not_told_are_not_made_up() -> None:
    told = read(logged())
    assert (told.first_byte_seconds, told.seconds, told.attempts) == (None, None, None)
    assert (told.streamed, told.flags) == (False, "")


def test_an_answer_that_began_before_its_request_was_whole_took_no_time() -> None:
    entry = logged()
    entry.common_properties.time_to_last_rx_byte.seconds = 2
    entry.common_properties.duration.seconds = 1
    entry.common_properties.metadata.filter_metadata[METADATA].update({"first_chunk_ms": 750})
    told = read(entry)
    assert (told.first_byte_seconds, told.seconds) == (0.0, 0.0)


def test_an_event_stream_is_known_by_its_content_type() -> None:
    entry = logged()
    entry.response.response_headers["content-type"] = "text/event-stream; charset=utf-8"
    assert read(entry).streamed
    entry.response.response_headers["content-type"] = "application/json"
    assert not read(entry).streamed


def test_attempts_and_flags_are_told() -> None:
    entry = logged(flags=("upstream_remote_reset", "upstream_retry_limit_exceeded"))
    entry.common_properties.upstream_request_attempt_count = 3
    told = read(entry)
    assert (told.attempts, told.flags) == (3, "upstream_remote_reset,upstream_retry_limit_exceeded")


@pytest.mark.parametrize(
    ("numbers", "usage"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3, "cached_tokens": 0}, Usage(7, 3, 0)),
        ({"prompt_tokens": 7, "completion_tokens": -1}, Usage(7, None, None)),
        ({"prompt_tokens": "7"}, None),
        ({"prompt_tokens": float("nan")}, None),
        ({"prompt_tokens": 1e300}, None),
        ({"prompt_tokens": 7.5, "completion_tokens": True}, None),
        ({"chunks": 4}, None),
    ],
)
def test_counts_that_are_none_are_not_reported(numbers: dict[str, Any], usage: Any) -> None:
    entry = logged()
    entry.common_properties.metadata.filter_metadata[METADATA].update(numbers)
    assert read(entry).usage == usage


def test_what_a_client_wrote_that_is_not_utf8_spoils_no_entry() -> None:
    strange, other = logged(), logged()
    strange.request.request_id, strange.request.path = "r-!!!", "/BAD"
    strange.common_properties.stream_id = "r-BAD"
    strange.response.response_code_details = "BAD"
    strange.response.response_headers["content-type"] = "BAD"
    # Envoy's type here refuses such strings, Envoy itself writes some of them.
    first, second = read_all(written(strange, other).replace(b"BAD", b"\xff\xe2\x82"))
    assert (first.request_id, first.outcome) == ("r-!!!", Outcome.COMPLETED)
    assert second.request_id == "r-1"


def test_an_address_that_is_none_and_a_number_that_is_none_are_not_told() -> None:
    entry = logged()
    entry.common_properties.upstream_remote_address.pipe.path = "/tmp/socket"
    entry.common_properties.metadata.filter_metadata[METADATA].update({"prompt_tokens": True})
    told = read(entry)
    assert (told.served, told.usage) == ("", None)


def test_each_field_is_where_envoy_has_it_and_written_alike() -> None:
    theirs = {each.DESCRIPTOR.name: each.DESCRIPTOR for each in THEIRS}
    ours = StreamAccessLogsMessage.DESCRIPTOR.file.message_types_by_name
    assert set(ours) == set(theirs)
    for name, message in ours.items():
        for field in message.fields:
            their = theirs[name].fields_by_name[field.name]
            assert (field.number, field.is_repeated) == (their.number, their.is_repeated)
            assert written_as(field) == written_as(their)


def written_as(field: FieldDescriptor) -> tuple[str, ...]:
    """How it looks on the wire: a number, or a length and bytes; of a map, its key and value."""
    inner: Descriptor | None = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        return tuple(kind for each in inner.fields for kind in written_as(each))
    long = (field.TYPE_BYTES, field.TYPE_STRING, field.TYPE_MESSAGE)
    return ("bytes" if field.type in long else "number",)


def test_a_part_that_is_none_takes_nothing_else_with_it() -> None:
    entry = StreamAccessLogsMessage.FromString(written(logged(429))).http_logs.log_entry[0]
    entry.common_properties.upstream_remote_address = b"\x0a\xff"
    entry.common_properties.response_flags = b"\xff"
    told = access_log.read(entry)
    assert told is not None
    assert (told.request_id, told.status, told.served, told.flags) == ("r-1", 429, "", "")
    entry.response.response_code = b"\x08"
    told = access_log.read(entry)
    assert told is not None
    assert told.status is None


def test_what_was_read_of_one_entry_is_not_told_of_another() -> None:
    entries = [logged(200), logged(503, flags=("upstream_remote_reset",)), logged(200)]
    for entry, port in zip(entries, (8000, 8001, 8000), strict=True):
        address = entry.common_properties.upstream_remote_address.socket_address
        address.address, address.port_value = "10.0.0.1", port
    told = [(each.status, each.served, each.flags) for each in read_all(written(*entries))]
    first = (200, "10.0.0.1:8000", "")
    assert told == [first, (503, "10.0.0.1:8001", "upstream_remote_reset"), first]


# --- the exchange's name --------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [{}, {"prompt_tokens": 7, "first_chunk_ms": 40}])
def test_an_entry_tells_the_name_that_the_gateway_was_told(numbers: dict[str, Any]) -> None:
    entry = logged()
    metadata = entry.common_properties.metadata.filter_metadata
    metadata[OWN_NAMESPACE].update({EXCHANGE: "5f-1", **numbers})
    told = read(entry)
    assert told.name == "5f-1"
    assert told.usage == (Usage(7, None, None) if numbers else None)
    assert told.first_byte_seconds == (0.04 if numbers else None)


def test_a_name_is_what_the_picker_wrote_and_nothing_else() -> None:
    entry = logged()
    metadata = entry.common_properties.metadata.filter_metadata
    metadata["envoy.lb"].update({EXCHANGE: "5f-1"})
    assert read(entry).name == ""
    for strange in (7, True, None, "", "\u00e9", "x" * 128, ["5f-1"], {"5f-1": "5f-1"}):
        metadata[OWN_NAMESPACE].update({EXCHANGE: strange})
        assert read(entry).name == "", strange


def test_a_name_that_is_cut_off_is_none() -> None:
    entry = StreamAccessLogsMessage.FromString(written(logged())).http_logs.log_entry[0]
    fields = entry.common_properties.metadata.filter_metadata[OWN_NAMESPACE].fields
    for value in (b"\x1a", b"\x1a\x05ab", b"\x1a\x02abc", b""):
        fields[EXCHANGE] = value
        told = access_log.read(entry)
        assert told is not None
        assert told.name == ""


def test_once_a_log_tells_names_an_entry_without_is_of_no_pick_that_was_taken() -> None:
    nameless, naming = logged(), logged()
    metadata = naming.common_properties.metadata.filter_metadata
    metadata[OWN_NAMESPACE].update({EXCHANGE: "5f-1"})
    told = taken(written(nameless), written(nameless, naming), written(nameless, naming))
    assert told.names == ["", "", "5f-1", "5f-1"]
    assert told.untakens == 1
    assert taken(written(nameless)).names == [""]  # each log by itself


# --- who sends too much ---------------------------------------------------------------------


class Taken:
    """Counts entries, and at which turn of the loop the last one came."""

    def __init__(self) -> None:
        self.logs, self.turns, self.untakens = 0, 0, 0
        self.names: list[str] = []

    @property
    def count(self) -> int:
        return len(self.names)

    def log_opened(self) -> None:
        self.logs += 1

    def log_closed(self) -> None:
        self.logs -= 1

    def entry(self, entry: Entry) -> None:
        self.names.append(entry.name)

    def untaken(self, _entry: Entry) -> None:
        self.untakens += 1

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turns += 1


class Call:
    """The server's side of a call that brings ``messages``."""

    def __init__(self, *messages: bytes) -> None:
        self._messages = list(messages)

    async def read(self) -> bytes | EndOfMessages:
        return self._messages.pop(0) if self._messages else EOF

    async def write(self, _message: bytes) -> None:
        assert not self._messages

    async def abort(self, code: Code, details: str) -> None:
        raise Aborted(code, details)


def taken(*messages: bytes) -> Taken:
    """Have a log send ``messages``, while others use the loop."""
    unseen: Any = Taken()
    stream: Any = next(iter(AccessLogs(unseen).methods.values()))

    async def run() -> None:
        others = asyncio.create_task(unseen.tick())
        try:
            await stream(Call(*messages))
        finally:
            others.cancel()
            assert unseen.logs == 0

    asyncio.run(run())
    return unseen  # type: ignore[no-any-return]


def test_others_have_their_turns_while_a_great_batch_is_taken() -> None:
    told = taken(written(*[logged()] * 10 * AT_ONCE))
    assert told.count == 10 * AT_ONCE
    assert told.turns >= 9


def test_a_batch_of_envoys_is_taken_in_one_turn() -> None:
    assert taken(written(*[logged()] * 64)).turns <= 1


def test_our_own_refusals_end_nothing_that_has_their_id() -> None:
    refused = logged(429, details=REFUSED)
    assert taken(written(refused, logged(429), refused)).count == 1


def test_a_message_that_is_too_large_ends_its_log() -> None:
    with pytest.raises(Aborted, match="RESOURCE_EXHAUSTED"):
        taken(b"\x12\x00" * (MOST_BYTES // 2 + 1))
