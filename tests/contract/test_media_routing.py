"""Requests with images through a whole pipeline: the same image goes where it was encoded."""

from __future__ import annotations

import asyncio
import itertools
import json
import random

import pytest

from epp.build import Parts, configure
from epp.clock import ManualClock
from epp.exchange import Exchange
from epp.ledger import Ledger
from epp.model import Arrival, Pick
from epp.plugin import Observer
from epp.pool import Pool
from epp.router import Router
from tests.support import build
from tests.support.arrivals import post

ONE = """
plugins:
  - type: mm-embeddings-cache-scorer
"""
"""Nothing but the scorer: its producer comes by itself, and ties are broken by chance."""

SPLIT = """
plugins:
  - {type: encode-filter}
  - {type: decode-filter}
  - {type: mm-embeddings-cache-producer, parameters: {cacheSizeInMBPerServer: 2048}}
  - {type: mm-embeddings-cache-scorer}
  - {type: max-score-picker}
  - {type: always-disagg-multimodal-decider}
  - type: disagg-profile-handler
    parameters: {deciders: {encode: always-disagg-multimodal-decider}}
schedulingProfiles:
  - name: decode
    plugins: [{pluginRef: decode-filter}, {pluginRef: max-score-picker}]
  - name: encode
    plugins:
      - {pluginRef: encode-filter}
      - {pluginRef: mm-embeddings-cache-scorer, weight: 4}
      - {pluginRef: max-score-picker}
"""


_COUNT = itertools.count()  #: so that no two requests have the same prompt


def showing(*images: str) -> Arrival:
    parts = [{"type": "image_url", "image_url": {"url": image}} for image in images]
    question = {"type": "text", "text": f"what is this? {next(_COUNT)}"}
    return post("/v1/chat/completions", json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": [question, *parts]}]}
    ).encode())  # fmt: skip


def fail(observer: Observer, error: Exception) -> None:
    raise AssertionError(f"{observer} failed") from error


class Line:
    """A pool of eight endpoints, every second one an encoder, behind one configuration."""

    def __init__(self, text: str) -> None:
        clock, pool, ledger = ManualClock(0.0), Pool(), Ledger()
        for i in range(8):
            labels = {"llm-d.ai/role": "encode" if i % 2 else "decode"}
            pool.put(build.endpoint(f"e{i}", host=f"10.0.0.{i + 1}", labels=labels))
        parts = Parts(clock=clock, random=random.Random(3), ledger=ledger, pool=pool)
        _, pipeline = configure(text, parts)
        self._router = Router(pool, pipeline, ledger, clock=clock, on_observer_error=fail)

    def send(self, *images: str) -> Pick:
        exchange: Exchange = asyncio.run(self._router.route(showing(*images)))
        return exchange.pick


@pytest.mark.parametrize("image", ["http://a/1.png", "data:image/png;base64,AAAA"])
def test_the_same_image_goes_to_the_same_endpoint_whatever_is_asked_of_it(image: str) -> None:
    line = Line(ONE)
    first = line.send(image).destination
    assert {line.send(image).destination for _ in range(20)} == {first}
    assert len({line.send(f"http://b/{i}").destination for i in range(20)}) > 1


def test_the_endpoint_that_has_most_of_the_images_is_preferred() -> None:
    line = Line(ONE)
    most = line.send("1", "2", "3").destination
    assert line.send("9", "1", "2").destination == most


def test_with_encoders_of_their_own_it_is_the_encoder_that_stays_the_same() -> None:
    line = Line(SPLIT)
    picks = [line.send("http://a/1.png") for _ in range(20)]
    assert len({pick.headers["x-encoder-hosts-ports"] for pick in picks}) == 1
    assert [endpoint.address for endpoint in picks[0].encode] == [
        picks[0].headers["x-encoder-hosts-ports"]
    ]
    assert len({pick.destination for pick in picks}) > 1
