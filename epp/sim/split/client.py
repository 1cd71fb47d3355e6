"""``prefill-client`` of a simulated picker: the plugin of production, over virtual time.

Time-outs, retries, the health of endpoints, bodies and bookings are the plugin's own; only what it
would ask over HTTP is asked of simulated engines.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from epp import plugin
from epp.clock import Clock
from epp.disagg.remote.client import PrefillClient
from epp.disagg.remote.leg import Answer, Http, Sent
from epp.model import Endpoint, InferenceRequest, Pick
from epp.sim.model import Request
from epp.sim.split.legs import Kept

BODY = b'{"prompt":""}'  #: simulated requests have none
ANSWER = (
    b'{"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"sim",'
    b'"remote_host":"sim","remote_port":1,"remote_block_ids":[[1]]}}'
)  #: of a prefill engine, as far as `PrefillClient` looks


class Asked(Protocol):
    """The simulation, as far as prefills need it."""

    def asked(self, request_id: str) -> Request:
        """Return what an engine is asked by a request under way."""
        ...

    async def prefill(self, endpoint: Endpoint, request: Request) -> Kept:
        """Have a prompt computed.

        Raises:
            LegFailed: it was not.
        """
        ...


class SimulatedPrefillClient(PrefillClient):
    """`PrefillClient`; engines hand caches over as ``nixlv2`` does, whatever the connector."""

    def __init__(self, params: PrefillClient.Params, tools: plugin.Tools) -> None:
        super().__init__(msgspec.structs.replace(params, connector="nixlv2"), tools)

    def see(self, world: Asked) -> None:
        """Ask the engines of ``world``."""
        self._http = _Virtual(world, self._clock)

    async def prefill(
        self, request: InferenceRequest, pick: Pick, legs: plugin.Legs
    ) -> plugin.Prefilled:
        """See `plugin.Prefiller.prefill`."""
        return await super().prefill(msgspec.structs.replace(request, body=BODY), pick, legs)


class _Virtual(Http):
    def __init__(self, world: Asked, clock: Clock) -> None:
        super().__init__("http", tls=True, most=1, clock=clock)
        self._world = world

    async def prefill(self, endpoint: Endpoint, request: InferenceRequest, sent: Sent) -> Answer:
        """See `Http.prefill`."""
        del sent
        await self._world.prefill(endpoint, self._world.asked(request.id))
        return Answer(ANSWER, self._clock.now())
