"""Feeds: slices of work that tell the same as the whole, and other processes found out."""

from __future__ import annotations

import random

import msgspec
import pytest

from epp.collect.kv.central import rank_of
from epp.collect.kv.discovery import configured, told
from epp.collect.kv.feed import Feed, slices
from epp.collect.kv.link import Where
from epp.collect.parse import kv_slices
from epp.collect.parse.kv_messages import END, Message
from epp.model import Endpoint, EndpointId
from epp.prefix.exact.events import Removed
from epp.prefix.exact.keys import Prompt
from epp.prefix.feed.engine import Engines
from epp.prefix.feed.trust import Level
from epp.prefix.precise_settings import PodDiscoveryConfig
from tests.support.kv import A, held, index, packed, prompt, stored
from tests.support.kv_feeds import endpoint


def payload(at: float, number: int) -> bytes:
    """A message of one block; its tokens count from 100 times ``number`` on."""
    first = 100 * number
    event = ["BlockStored", [first + 1], None, list(range(first, first + 16)), 16]
    return msgspec.msgpack.encode([at, [event], 0])


def feed() -> Feed:
    engines = Engines()
    made = Feed(engines.add(A, 0, can_ask=True), index(A))
    made.connected(0.0)
    assert made.question() == 0
    made.answered(Message("", END, b""), 0.0)
    return made


def hear(of: Feed, number: int, at: float) -> None:
    of.heard(Message("", number, payload(at, number)), at, at)
    while of.busy:
        of.advance()


def test_slices_tell_the_same_as_the_whole() -> None:
    chooser = random.Random(1)
    for _ in range(50):
        blocks, most = chooser.randint(1, 40), chooser.randint(1, 9)
        media = tuple(sorted((chooser.randrange(blocks * 16), "m") for _ in range(2)))
        event = stored(0, blocks, salt="s", media=media)
        whole, cut = index(A), index(A)
        whole.apply(A, [event])
        cut.apply(A, slices(event, most))
        asked = prompt(0, blocks * 16, salt="s")
        asked.media = media
        assert held(whole, asked) == held(cut, asked) == {A: blocks}
        gone = Removed(event.hashes[blocks // 2 :])
        cut.apply(A, slices(gone, most))
        assert held(cut, asked).get(A, 0) == blocks // 2


def test_work_is_done_a_slice_at_a_time() -> None:
    made = feed()
    event = ["BlockStored", list(range(1, 2001)), None, list(range(32000)), 16]
    grown = grows(made, msgspec.msgpack.encode([1.0, [event], 0]))
    assert (sum(grown), max(grown)) == (2000, 256)
    assert held(made._index, prompt(0, 32000)) == {A: 2000}


@pytest.mark.parametrize("layout", ["array", "map"])
def test_a_large_event_is_read_and_taken_in_some_blocks_at_a_time(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No turn decodes or walks over more than a bounded part of 128k tokens."""
    tokens = [100_000 + each for each in range(131_072)]
    stored = {
        "block_hashes": list(range(1, 8193)), "parent_block_hash": None, "token_ids": tokens,
        "block_size": 16, "medium": "GPU", "extra_keys": [["s"], *[None] * 8191],
    }  # fmt: skip
    event = {"type": "BlockStored", **stored}
    if layout == "array":
        event = ["BlockStored", *[*stored.values()][:4], None, "GPU", None, stored["extra_keys"]]
    made, decoded, walked = feed(), [0], [0]
    decode, go = kv_slices._decode, kv_slices.Walk._go

    def count_decoded(data: bytes) -> object:
        decoded[-1] += len(data)
        return decode(data)

    def count_walked(walk: kv_slices.Walk, count: int, most: int) -> int:
        left = go(walk, count, most)
        walked[-1] += count - left
        return left

    monkeypatch.setattr(kv_slices, "_decode", count_decoded)
    monkeypatch.setattr(kv_slices.Walk, "_go", count_walked)
    made.heard(Message("", 0, msgspec.msgpack.encode([1.0, [event], 0])), 1.0, 1.0)
    while made.busy:
        made.advance()
        decoded.append(0)
        walked.append(0)
    assert sum(decoded) > 5 * len(tokens)
    assert max(decoded) <= 64 * 1024
    assert max(walked) <= 2 * kv_slices.MOST_STEPS
    asked = Prompt(packed(tokens), "", salt="s")
    assert held(made._index, asked) == {A: 8192}


def grows(of: Feed, message: bytes) -> list[int]:
    """Take in a payload; return by how many blocks what is known grew with each slice of work."""
    of.heard(Message("", 0, message), 1.0, 1.0)
    steps, before = [], of._index.figures()["blocks"]
    while of.busy:
        of.advance()
        after = of._index.figures()["blocks"]
        steps.append(after - before)
        before = after
    return steps


def test_a_slice_of_large_blocks_is_no_larger_than_one_of_small_ones() -> None:
    made = feed()
    event = ["BlockStored", list(range(1, 17)), None, list(range(16 * 1024)), 1024]
    steps = grows(made, msgspec.msgpack.encode([1.0, [event], 0]))
    assert (sum(steps), max(steps)) == (1024, 256)
    gone = ["BlockRemoved", list(range(1, 17))]
    made.heard(Message("", 1, msgspec.msgpack.encode([1.0, [gone], 0])), 1.0, 1.0)
    made.advance()
    made.advance()
    assert held(made._index, prompt(0, 16 * 1024)) == {}
    assert made._index.figures()["blocks"] == 1024 - 256


def test_a_message_of_many_events_is_read_a_slice_at_a_time() -> None:
    made = feed()
    events = [["BlockStored", [each], None, [each] * 16, 16] for each in range(1, 5001)]
    message = msgspec.msgpack.encode([1.0, [*events, ["Else"], 7, *events[:9]], 0])
    assert len(message) > kv_slices.SMALL
    steps = grows(made, message)
    assert (sum(steps), max(steps)) == (5000, 256)
    assert made.engine.unread == 2


def test_a_message_of_events_without_any_use_is_read_a_slice_at_a_time() -> None:
    made = feed()
    made.heard(Message("", 0, msgspec.msgpack.encode([1.0, [["Else"]] * 2560, 0])), 1.0, 1.0)
    for turn in range(10):
        made.advance()
        assert made.engine.unread == 256 * (turn + 1)


def test_an_event_of_very_many_blocks_without_tokens_waits_in_bounded_room() -> None:
    made = feed()
    made._index._room.most = 1 << 20
    huge = ["BlockStored", list(range(1, 50_000)), None, [], 16]
    fine = ["BlockStored", [1], None, list(range(16)), 16]
    grows(made, msgspec.msgpack.encode([1.0, [huge, fine], 0]))
    assert held(made._index, prompt(0, 16)) == {A: 1}
    figures = made._index.figures()
    assert (made.engine.unread, figures["blocks"], figures["waiting_events"]) == (0, 1, 0)
    assert made._index._room.bytes <= made._index._room.most


def test_what_waited_for_a_message_is_taken_in_a_slice_at_a_time() -> None:
    made = feed()
    for each in range(1, 1001):
        made._index.apply(A, [stored(each * 16, 1, parent=each * 16 - 15)])
    steps = grows(
        made, msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [*range(16)], 16]]])
    )
    assert (sum(steps), max(steps)) == (1001, 257)


def test_after_a_break_an_engine_without_our_newest_message_is_another_one() -> None:
    made = feed()
    for number in range(3):
        hear(made, number, 1.0 + number)
    made.disconnected()
    made.connected(9.0)
    assert made.question() == 2  # the newest, again
    made.answered(Message("", END, b""), 9.0)
    assert made.question() == 0
    assert made.engine.sequence.restarts == 1
    while made.busy:
        made.advance()
    assert held(made._index, prompt(0, 16)) == {}


@pytest.mark.parametrize(("at", "restarts"), [(3.0, 0), (8.0, 1)])
def test_after_a_break_our_newest_message_proves_who_the_engine_is(
    at: float, restarts: int
) -> None:
    made = feed()
    for number in range(3):
        hear(made, number, 1.0 + number)
    made.disconnected()
    made.connected(9.0)
    made.answered(Message("", 2, payload(at, 2)), 9.0)
    assert made.engine.sequence.restarts == restarts


def test_a_restart_that_messages_showed_is_not_one_more_when_a_scrape_shows_it() -> None:
    made = feed()
    hear(made, 0, 1.0)
    hear(made, 1, 2.0)
    hear(made, 0, 40.0)
    made.restarted(41.0)
    assert made.engine.sequence.restarts == 1
    made.restarted(80.0)
    assert made.engine.sequence.restarts == 2


def test_what_is_no_message_is_counted_and_changes_nothing() -> None:
    made = feed()
    made.heard(Message("", 0, b"\xc1"), 1.0, 1.0)
    made.heard(Message("", 1, msgspec.msgpack.encode([1.0, [["New", 1], 5], 0])), 1.0, 1.0)
    while made.busy:
        made.advance()
    assert made.engine.unread == 3


def test_addresses_are_those_that_the_engine_bound_at_the_endpoints_host() -> None:
    page = msgspec.json.encode({
        "0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657", "topic": "x"},
        "1": {"endpoint": "tcp://*:5558", "replay_endpoint": None},
        "2": {"endpoint": "tcp://elsewhere:5559"},
        "3": {"endpoint": "tcp://*:5560", "enable_kv_cache_events": False},
        "4": {"endpoint": "tcp://*:0"},
        "5": {"endpoint": "tcp://*:65536"},
    })  # fmt: skip
    assert told(endpoint(8000), page) == {
        0: Where("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5657"),
        1: Where("tcp://127.0.0.1:5558"),
    }
    one = msgspec.structs.replace(endpoint(8001), rank=1, host="fd00::1")
    assert told(one, page) == {0: Where("tcp://[fd00::1]:5558")}


@pytest.mark.parametrize("page", [b"", b"[5]", b'{"a": {}}', b'{"0": 5}', b"\xff"])
def test_a_page_that_says_nothing_is_refused(page: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        told(endpoint(8000), page)


def test_a_page_may_be_a_list_and_what_it_says_of_one_rank_costs_no_other() -> None:
    """vLLM's page is a map by rank, or a list of what each rank says."""
    first = b'{"data_parallel_rank":0,"endpoint":"tcp://*:5557","replay_endpoint":null,"topic":""}'
    second = b'{"data_parallel_rank":1,"endpoint":"tcp://10.0.0.1:5558"}'
    pod = Endpoint(EndpointId("a"), "10.0.0.1", 8000)
    two = {0: Where("tcp://10.0.0.1:5557"), 1: Where("tcp://10.0.0.1:5558")}
    assert told(pod, b"[%b,%b]" % (first, second)) == two
    assert told(pod, b"[%b]" % second) == {0: Where("tcp://10.0.0.1:5558")}
    assert told(pod, b'{"0":%b,"1":%b,"2":null,"x":{"endpoint":5}}' % (first, second)) == two
    assert told(pod, b"[]") == {}


def test_a_page_that_counts_ranks_over_several_pods_is_read_where_the_pod_begins() -> None:
    page = msgspec.json.encode(
        {str(rank): {"endpoint": f"tcp://*:{5557 + rank}"} for rank in range(8, 16)}
    )
    one = msgspec.structs.replace(endpoint(8001), rank=1, labels={"epp/first-rank": "8"})
    assert told(one, page) == {0: Where("tcp://127.0.0.1:5566")}
    own = msgspec.json.encode(
        {str(rank): {"endpoint": f"tcp://*:{5557 + rank}"} for rank in range(8)}
    )
    assert told(one, own) == {0: Where("tcp://127.0.0.1:5558")}


def test_an_address_that_the_system_chose_is_the_engines_own_where_it_names_its_host() -> None:
    page = msgspec.json.encode({
        "0": {"endpoint": "tcp://127.0.0.1:40001", "replay_endpoint": "tcp://127.0.0.1:40002"},
        "1": {"endpoint": "tcp://127.0.0.2:40003"},
    })  # fmt: skip
    assert told(endpoint(8000), page) == {
        0: Where("tcp://127.0.0.1:40001", "tcp://127.0.0.1:40002")
    }
    six = msgspec.structs.replace(endpoint(8000), host="fd00::1")
    bound = b'{"0": {"endpoint": "tcp://[fd00::1]:40001"}}'
    assert told(six, bound) == {0: Where("tcp://[fd00::1]:40001")}


def test_configured_ports_are_those_of_the_rank() -> None:
    one = msgspec.structs.replace(endpoint(8001), rank=3)
    ports = PodDiscoveryConfig(socket_port=5557, replay_socket_port=5657)
    assert configured(one, ports) == {0: Where("tcp://127.0.0.1:5560", "tcp://127.0.0.1:5660")}


@pytest.mark.parametrize(
    ("batch", "rank"), [([1.0, [], 3], 3), ([1.0, []], 0), ([1.0, [], None], 0)]
)
def test_the_rank_is_read_off_the_end_of_a_payload(batch: list[object], rank: int) -> None:
    assert rank_of(msgspec.msgpack.encode(batch)) == rank


def test_engines_of_one_endpoint_are_told_apart_by_rank() -> None:
    engines = Engines()
    zero, two = (engines.add(EndpointId("a"), rank, can_ask=False) for rank in (0, 2))
    assert engines.get(EndpointId("a"), 2) is two
    assert engines.get(EndpointId("a")) is zero
    engines.remove(zero)
    assert engines.get(EndpointId("a")) is two


def test_a_last_message_that_is_lost_is_asked_for_once_the_engine_owes_it() -> None:
    made = feed()
    hear(made, 0, 1.0)
    made.engine.confidence.computed(10.0, told=False)  # message 1, that never came
    made.tick(14.9)
    assert made.question() is None
    made.tick(15.0)
    assert made.question() == 1
    made.answered(Message("", 1, payload(10.0, 1)), 15.1)
    made.answered(Message("", END, b""), 15.1)
    while made.busy:
        made.advance()
    assert held(made._index, prompt(100, 16)) == {A: 1}
    assert made.engine.confidence.trust(16.0).level is Level.EXACT
    made.engine.confidence.computed(20.0, told=False)
    made.tick(25.0)
    assert made.question() is None  # not again so soon
    made.tick(45.0)
    assert made.question() == 2
