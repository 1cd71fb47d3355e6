"""What is kept of an exchange when it has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from epp.clock import ManualClock
from epp.errors import ConfigError
from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Outcome, Pick, Usage
from epp.recording.recorder import MOST_ID_CHARS, Recorder, Settings, fact_of
from epp.recording.slots import Slots

POD = Endpoint(id=EndpointId("a"), host="10.0.0.1", port=8000)
ENDED = Ending(outcome=Outcome.COMPLETED, at=3.0, usage=Usage(prompt_tokens=900))


def kept(request: InferenceRequest, ending: Ending = ENDED) -> tuple[str, int, int | None]:
    fact = fact_of(request, Pick(endpoints=(POD,)), ending, (1000.0, Slots()))
    return fact.session, fact.input_tokens, fact.counted_tokens


def asked(headers: dict[str, str], *, session: str = "", tokens: int = 0) -> InferenceRequest:
    return InferenceRequest(
        id="r", headers=headers, body=b"", session=session, prompt_tokens=tokens, arrived_at=1.0
    )


def test_the_client_s_session_is_followed_whether_or_not_a_plugin_reads_it() -> None:
    header = {"x-session-id": "s"}
    assert kept(asked(header))[0] == "s"
    assert kept(asked(header, session="read by a plugin"))[0] == "read by a plugin"
    assert kept(asked({}))[0] == ""
    assert kept(asked({"x-session-id": "x" * (MOST_ID_CHARS + 1)}))[0] == ""


def test_a_key_of_random_bytes_may_end_in_what_looks_like_white_space(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b" " + b"k" * 30 + b"\n")
    Recorder(Settings(file=str(tmp_path / "r"), key_file=str(key)), ManualClock())
    key.write_bytes(b"k" * 31)
    with pytest.raises(ConfigError, match="at least 32 bytes, this one 31"):
        Recorder(Settings(file=str(tmp_path / "r"), key_file=str(key)), ManualClock())


@pytest.mark.parametrize(
    ("estimated", "length"), [(840, 840), (0, 900)], ids=["estimated", "a body nobody could read"]
)
def test_a_prompt_is_as_long_as_estimated_or_else_as_the_engine_counted(
    estimated: int, length: int
) -> None:
    assert kept(asked({}, tokens=estimated))[1:] == (length, 900)


def test_a_prompt_of_which_nothing_is_known_has_no_length() -> None:
    assert kept(asked({}), Ending(outcome=Outcome.UNKNOWN, at=3.0))[1:] == (0, None)
