"""How old a prefill's answer may be when the request goes on, in time that stands still."""

from __future__ import annotations

import asyncio

import pytest

from epp.clock import ManualClock
from epp.disagg.remote.client import PrefillClient
from epp.disagg.remote.leg import Answer, Http, Sent
from epp.model import Endpoint, InferenceRequest, Pick, PrefillLeg
from epp.plugin import Observer, Prefilled
from tests.support import build

PARAMS = (
    b'{"do_remote_prefill":true,"remote_engine_id":"e","remote_host":"h","remote_port":1,'
    b'"remote_block_ids":[[1]],"remote_request_id":"r"}'
)
PREFILL, DECODE = build.endpoint("p"), build.endpoint("d")


class Aged(Http):
    """Prefills whose answers began some seconds ago, as slow bodies do."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        super().__init__("http", tls=True, most=1, clock=clock)
        self._seconds = seconds

    async def prefill(self, endpoint: Endpoint, request: InferenceRequest, sent: Sent) -> Answer:
        began = self._clock.now()
        assert isinstance(self._clock, ManualClock)
        self._clock.advance(self._seconds)
        return Answer(b'{"kv_transfer_params":' + PARAMS + b"}", began)


class Unheard:
    """Of `plugin.Legs`: nobody looks."""

    def prefill_at(self, endpoint: Endpoint) -> None: ...
    def prefilled(self, leg: PrefillLeg) -> None: ...
    def listen(self, observer: Observer) -> None: ...


def went_on(seconds: float) -> Prefilled:
    clock = ManualClock(100.0)
    tools = build.tools(clock=clock)
    client = PrefillClient(PrefillClient.Params(lease="10s", timeout="60s"), tools)
    client._http = Aged(clock, seconds)
    request = build.request(body=b'{"prompt":"x"}', path="/v1/completions")
    pick = Pick((DECODE,), prefill=PREFILL)
    return asyncio.run(client.prefill(request, pick, Unheard()))


@pytest.mark.parametrize("seconds", [0.0, 8.9])
def test_within_nine_tenths_of_the_lease_the_cache_is_read(seconds: float) -> None:
    found = went_on(seconds)
    assert PARAMS in found.body
    assert found.leg.endpoint == PREFILL


@pytest.mark.parametrize("seconds", [9.1, 9.9, 11.0])
def test_later_the_way_to_the_decode_engine_could_take_what_is_left(seconds: float) -> None:
    found = went_on(seconds)
    assert found.body == b'{"prompt":"x"}'
    assert (found.leg.endpoint, found.leg.reason) == (None, "lease-expired")
