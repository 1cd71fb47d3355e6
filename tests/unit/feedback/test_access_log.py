"""What an entry of Envoy's access log says. In: outcome, sizes, usage. Out: the stream."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2 as pb

from epp.feedback.access_log import read
from epp.model import Outcome, Usage


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
