"""Numbers that no picker ever saw, told by one that lies or is broken. Out: sockets."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from epp.clock import ManualClock
from epp.model import EndpointId
from epp.peers import wire
from epp.peers.news import Computed, Event, Over, Sent
from epp.peers.offset import Offset
from epp.peers.v1 import peers_pb2 as pb
from epp.prefix.approx import ApproxPrefixCacheProducer
from tests.unit.peers.test_sharing import PROMPT, Picker

NOW = 100.0
SENT = Sent(1, NOW, EndpointId("a"), 1000, 1000, streamed=True)
OVER = Over(1, 0.1, 1.0, True)
HUGE = 1.7e308


def told(hearing: Picker, *events: Event, now: float = NOW) -> dict[str, Any]:
    """What is believed of speeds after a peer's news, which came as they would by a line."""
    ago = Offset().see(hearing.clock.now(), now)
    hearing.hearing.hear("liar", events, ago)
    return dict(hearing.forecaster.dump_state())


@pytest.mark.parametrize(
    ("now", "at", "first", "seconds"),
    [
        (NOW, NOW, 1e300, 1e300),
        (NOW, NOW, -1e300, 1e300),
        (NOW, NOW, 0.1, 1e300),
        (NOW, NOW, 0.1, -1e300),
        (NOW, HUGE, 1e308, HUGE),
        (-HUGE, HUGE, 0.1, 1.0),
        (HUGE, -HUGE, 0.1, 1.0),
    ],
)  # fmt: skip
def test_times_that_cannot_be_do_not_spoil_what_others_taught(
    now: float, at: float, first: float, seconds: float
) -> None:
    picker = Picker(ManualClock(NOW))
    for number in range(20):
        sent = msgspec.structs.replace(SENT, number=number, at=at)
        found = told(picker, sent, Computed(number), Over(number, first, seconds, True), now=now)
    assert all(math.isfinite(each) for each in found.values())
    assert found["restSeconds"] <= 1.0
    assert found["staySeconds"] <= 10.0
    assert 1e-5 < found["secondsPerToken"] < 1e-3
    assert picker.state() == {}
    honest = Picker(ManualClock(NOW))
    for each in (picker, honest):
        for number in range(100, 110):
            told(each, msgspec.structs.replace(SENT, number=number), Over(number, 0.1, 1.0, True))
    assert picker.forecaster.dump_state()["secondsPerToken"] == pytest.approx(
        honest.forecaster.dump_state()["secondsPerToken"], rel=0.5
    )


def test_more_tokens_than_a_request_can_have_are_booked_as_the_most_that_it_can() -> None:
    most = 2**32 - 1
    picker, largest = Picker(ManualClock(NOW)), Picker(ManualClock(NOW))
    for each, tokens in ((picker, most), (largest, 2**24)):
        sent = Sent(1, NOW, EndpointId("a"), tokens, tokens, streamed=True)
        told(each, sent)
    assert picker.state() == largest.state() == {"a": (1, 2**24, 1, 2**24)}
    mean = "meanWork"
    assert picker.forecaster.dump_state()[mean] == largest.forecaster.dump_state()[mean]
    assert told(picker, OVER) == told(largest, OVER)
    assert picker.state() == {}
    exchange = picker.send(PROMPT)
    exchange.complete()


def test_a_plugin_that_fails_at_a_fact_leaves_the_line_as_it_is_and_is_told_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    picker = Picker(ManualClock(NOW))
    name = "approx-prefix-cache-producer"

    def fail(*_: object) -> None:
        raise KeyError("blue")

    monkeypatch.setattr(ApproxPrefixCacheProducer, "heard", fail)
    for number in (1, 2):
        told(picker, msgspec.structs.replace(SENT, number=number, facts={name: b"x"}))
    assert picker.state() == {"a": (2, 2000, 2, 2000)}
    assert picker.hearing.refused == 2
    assert caplog.text.count(f"{name}: unexpected KeyError") == 1
    assert "blue" not in caplog.text.replace('raise KeyError("blue")', "")


@pytest.mark.parametrize("instance", ["", "x" * 65, "x\ny", "\u00e4"])
def test_who_has_no_name_of_a_picker_is_refused(instance: str) -> None:
    """It would be told to all others: one of a megabyte would be more than they take."""
    with pytest.raises(ValueError, match="without an instance"):
        wire.unpack(wire.heartbeat(instance, NOW))
    with pytest.raises(ValueError, match="without an instance"):
        wire.unpack_request(wire.pack_request(wire.Asked(instance, "p")))
    assert wire.unpack(wire.heartbeat("x" * 64, NOW)).instance == "x" * 64


def test_events_of_unknown_kinds_are_passed_over_some_at_a_time_too() -> None:
    """So that others' work has its turn in between."""
    events = [pb.Event()] * 100 + [pb.Event(computed=1)]
    news = wire.unpack(pb.News(instance="liar", events=events).SerializeToString())
    assert [len(each) for each in news.slices()] == [0, 0, 0, 1]


def test_a_request_of_thousands_of_facts_is_refused() -> None:
    for number, refused in ((256, False), (257, True)):
        sent = pb.Sent(facts=[pb.Fact()] * number)
        made = pb.News(instance="liar", names=["a"], events=[pb.Event(sent=sent)])
        slices = wire.unpack(made.SerializeToString()).slices()
        if refused:
            with pytest.raises(ValueError, match="257 facts"):
                next(slices)
        else:
            assert len(next(slices)) == 1
