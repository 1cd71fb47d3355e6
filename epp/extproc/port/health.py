"""gRPC health: whether the picker is alive, and whether it may be asked.

``liveness`` is always SERVING: a picker without a pool, or one that drains, must not be
restarted for it. Every other known name is SERVING while the picker is ready and not draining.
A picker that is the only one answers for any name, as the Go router does: charts have asked for
several. Where replicas elect a leader, only the names of `READINESS` are known.

**Source:** grpc/health/v1/health.proto; Gateway API Inference Extension, proposal 004; llm-d-router.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from grpc_health.v1 import health_pb2 as pb

from epp.extproc import wire
from epp.extproc.received import decoded
from epp.rpc.call import Call
from epp.rpc.connection import Methods
from epp.rpc.status import Code

SERVICE = "grpc.health.v1.Health"
LIVENESS = "liveness"
READINESS = ("", "readiness", wire.SERVICE)
OLDER = "inference-extension"  #: what charts ask the only replica for
POLL_SECONDS = 0.5  #: how late a watcher may hear of a change other than draining

_SERVING = pb.HealthCheckResponse.SERVING
_NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING
_UNKNOWN = pb.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService:
    """Answers Check, Watch and List.

    Args:
        ready: whether the picker may be asked now.
        elected: whether replicas elect a leader.
    """

    def __init__(self, ready: Callable[[], bool], *, elected: bool = False) -> None:
        self._ready = ready
        self._elected = elected
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """Be not ready from now on; watchers hear it at once."""
        self._draining.set()

    @property
    def methods(self) -> Methods:
        """What can be called; one service may stand on several ports."""
        calls = {"Check": self._check, "Watch": self._watch, "List": self._list}
        return {f"/{SERVICE}/{name}": method for name, method in calls.items()}

    def status(self, service: str) -> int:
        """The status of one service, a ``ServingStatus``; SERVICE_UNKNOWN for a stranger."""
        if service == LIVENESS:
            return int(_SERVING)
        if self._elected and service not in READINESS:
            return int(_UNKNOWN)
        ready = not self._draining.is_set() and self._ready()
        return int(_SERVING if ready else _NOT_SERVING)

    async def _check(self, call: Call) -> None:
        request = await decoded(pb.HealthCheckRequest, await call.read(), call)
        status = self.status(request.service)
        if status == _UNKNOWN:
            names = ", ".join(repr(name) for name in (*READINESS, LIVENESS))
            await call.abort(Code.NOT_FOUND, f"unknown service; known are {names}")
        await call.write(_told(status))

    async def _watch(self, call: Call) -> None:
        request = await decoded(pb.HealthCheckRequest, await call.read(), call)
        told: int | None = None
        while True:
            status = self.status(request.service)
            if status != told:
                await call.write(_told(status))
                told = status
            await self._change()

    async def _list(self, call: Call) -> None:
        await decoded(pb.HealthListRequest, await call.read(), call)
        names = (*READINESS, LIVENESS) if self._elected else (*READINESS, OLDER, LIVENESS)
        statuses = {name: pb.HealthCheckResponse(status=self.status(name)) for name in names}
        await call.write(pb.HealthListResponse(statuses=statuses).SerializeToString())

    async def _change(self) -> None:
        """Return when a status may have changed."""
        if self._draining.is_set():
            await asyncio.sleep(POLL_SECONDS)
            return
        try:
            await asyncio.wait_for(self._draining.wait(), POLL_SECONDS)
        except TimeoutError:
            return


def _told(status: int) -> bytes:
    return pb.HealthCheckResponse(status=status).SerializeToString()  # type: ignore[no-any-return]
