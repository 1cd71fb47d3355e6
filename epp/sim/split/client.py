"""``prefill-client`` of a simulated picker: the plugin of production, over virtual time.

Time-outs, retries, the health of endpoints, bodies and bookings are the plugin's own; only what it
would ask over HTTP is asked of simulated engines.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from epp import plugin
from epp.clock import Clock
from epp.disagg.connectors import Transfer
from epp.disagg.remote.client import PrefillClient
from epp.disagg.remote.leg import Answer, Http, Sent
from epp.model import Endpoint, InferenceRequest, Pick
from epp.sim.model import Request
from epp.sim.split.legs import Kept

BODY = b'{"prompt":""}'  #: simulated requests have none
ANSWER = (
    b'{"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"sim",'
    b'"remote_host":"sim","remote_port":1,"remote_block_ids":[[1]],"remote_request_id":"r"}}'
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

    def give_up(self, request_id: str) -> None:
        """Have the engine that decodes drop a request whose prompt will not come."""
        ...


class SimulatedPrefillClient(PrefillClient):
    """`PrefillClient`; its connector says when legs begin, and caches move as `Legs` has them."""

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
        self._asked: dict[str, str] = {}  # request by transfer, of prefills that are not done

    async def prefill(self, endpoint: Endpoint, request: InferenceRequest, sent: Sent) -> Answer:
        """See `Http.prefill`."""
        self._asked[sent.transfer.id] = request.id
        await self._world.prefill(endpoint, self._world.asked(request.id))
        del self._asked[sent.transfer.id]
        return Answer(ANSWER, self._clock.now())

    async def engine_id(self, transfer: Transfer, rank: int) -> str:
        """See `Http.engine_id`."""
        del transfer, rank
        return "sim"

    async def abort(self, endpoint: Endpoint, told: tuple[str, bytes]) -> None:
        """See `Http.abort`."""
        del endpoint
        self._world.give_up(self._asked.pop(msgspec.json.decode(told[1])["rid"]))
