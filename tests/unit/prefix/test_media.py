"""Who has encoded which image: what is learned, of whom, and what is forgotten."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Medium, Outcome, Pick
from epp.plugin import Enricher, Observer, PoolWatcher, StateDumper
from epp.prefix.media import MOST, MmEmbeddingsCacheProducer
from tests.support import build

A, B, C = (build.endpoint(name, host=f"10.0.0.{i}") for i, name in enumerate("abc", 1))


def producer(**params: Any) -> MmEmbeddingsCacheProducer:
    made = msgspec.convert(params, MmEmbeddingsCacheProducer.Params)
    return MmEmbeddingsCacheProducer(made, build.tools())


def images(*hashes: int) -> tuple[Medium, ...]:
    return tuple(Medium("image", each) for each in hashes)


def route(knowing: MmEmbeddingsCacheProducer, pick: Pick, *media: int) -> InferenceRequest:
    asked = knowing.enrich(build.request(media=images(*media)), (A, B, C))
    knowing.picked(asked, pick)
    return asked


def held(knowing: MmEmbeddingsCacheProducer, *media: int) -> dict[str, int]:
    match = knowing.enrich(build.request(media=images(*media)), (A, B, C)).media_match
    assert match is not None
    return dict(match.held)


def to(*endpoints: Endpoint, **elsewhere: Any) -> Pick:
    return Pick(endpoints, **elsewhere)


def test_it_is_an_enricher_an_observer_a_pool_watcher_and_a_state_dumper() -> None:
    for protocol in (Enricher, Observer, PoolWatcher, StateDumper):
        assert isinstance(producer(), protocol)


def test_who_got_an_image_holds_it() -> None:
    knowing = producer()
    route(knowing, to(A), 1, 2)
    route(knowing, to(B), 2)
    assert held(knowing, 1, 2, 3) == {"a": 2, "b": 1}
    assert held(knowing, 3) == {}


def test_an_image_shown_twice_is_one() -> None:
    knowing = producer()
    route(knowing, to(A), 1, 1)
    asked = knowing.enrich(build.request(media=images(1, 2, 1)), (A,))
    assert asked.media_match is not None
    assert asked.media_match.items == (1, 2)
    assert asked.media_match.held == {"a": 1}


def test_the_least_recent_images_are_forgotten_first() -> None:
    knowing = producer(cacheSizeInMBPerServer=4)  # room for two
    route(knowing, to(A), 1)
    route(knowing, to(A), 2)
    route(knowing, to(A), 1)
    route(knowing, to(A), 3)
    assert [held(knowing, item) for item in (1, 2, 3)] == [{"a": 1}, {}, {"a": 1}]


@pytest.mark.parametrize(
    ("mebibytes", "images"), [(1, 1), (4, 2), (5, 2), (2048, 1024), (0, 2048), (None, 2048)]
)
def test_an_image_takes_two_mebibytes(mebibytes: int | None, images: int) -> None:
    given = {} if mebibytes is None else {"cacheSizeInMBPerServer": mebibytes}
    assert producer(**given).dump_state()["capacityPerServer"] == images


def test_what_is_asked_for_is_not_learned_before_it_is_picked() -> None:
    knowing = producer()
    knowing.enrich(build.request(media=images(1)), (A,))
    assert held(knowing, 1) == {}


def test_without_media_or_computation_nothing_is_added_or_learned() -> None:
    knowing = producer()
    for asked in (build.request(), build.request(media=images(1), computed=False)):
        assert knowing.enrich(asked, (A,)) is asked
        knowing.picked(asked, to(A))
    assert held(knowing, 1) == {}


def test_the_encode_endpoints_hold_what_they_encoded_and_the_others_do_not() -> None:
    knowing = producer()
    route(knowing, to(A, prefill=B, encode=(C,)), 1)
    assert held(knowing, 1) == {"c": 1}


def test_without_encode_endpoints_decode_and_prefill_hold_it() -> None:
    knowing = producer()
    route(knowing, to(A, prefill=B), 1)
    assert held(knowing, 1) == {"a": 1, "b": 1}


def test_a_fallback_that_served_holds_it_too() -> None:
    knowing, pick = producer(), to(A, B, C)
    route(knowing, to(B), 9)
    asked = route(knowing, pick, 1)
    knowing.ended(asked, pick, Ending(Outcome.COMPLETED, 1.0, served=B.address))
    assert held(knowing, 1) == {"a": 1, "b": 1}


def test_a_fallback_that_may_be_gone_is_not_learned() -> None:
    knowing, pick = producer(), to(A, B)
    asked = route(knowing, pick, 1)
    knowing.ended(asked, pick, Ending(Outcome.COMPLETED, 1.0, served=B.address))
    assert held(knowing, 1) == {"a": 1}


def test_an_endpoint_that_is_gone_is_forgotten() -> None:
    knowing = producer()
    route(knowing, to(A), 1)
    route(knowing, to(B), 1)
    knowing.forget(EndpointId("a"))
    knowing.forget(EndpointId("never seen"))
    assert held(knowing, 1) == {"b": 1}
    assert knowing.dump_state() == {
        "capacityPerServer": 2048, "endpoints": 1, "entries": 1, "media": 1,
    }  # fmt: skip


def test_of_a_request_with_very_many_images_the_first_count() -> None:
    asked = producer().enrich(build.request(media=images(*range(MOST + 9))), (A,))
    assert asked.media_match is not None
    assert asked.media_match.items == tuple(range(MOST))
