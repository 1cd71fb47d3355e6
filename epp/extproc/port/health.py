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
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as pb

from epp.extproc import wire
from epp.extproc.received import decoded

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

    def handler(self) -> grpc.GenericRpcHandler:
        """The gRPC handler of `SERVICE`; one service may stand on several ports."""
        tell = pb.HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check, response_serializer=tell),
                "Watch": grpc.unary_stream_rpc_method_handler(
                    self._watch, response_serializer=tell
                ),
                "List": grpc.unary_unary_rpc_method_handler(
                    self._list, response_serializer=pb.HealthListResponse.SerializeToString
                ),
            },
        )

    def status(self, service: str) -> int:
        """The status of one service, a ``ServingStatus``; SERVICE_UNKNOWN for a stranger."""
        if service == LIVENESS:
            return int(_SERVING)
        if self._elected and service not in READINESS:
            return int(_UNKNOWN)
        ready = not self._draining.is_set() and self._ready()
        return int(_SERVING if ready else _NOT_SERVING)

    async def _check(self, data: bytes, context: Any) -> Any:
        request = await decoded(pb.HealthCheckRequest, data, context)
        status = self.status(request.service)
        if status == _UNKNOWN:
            names = ", ".join(repr(name) for name in (*READINESS, LIVENESS))
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service; known are {names}")
        return pb.HealthCheckResponse(status=status)

    async def _watch(self, data: bytes, context: Any) -> None:
        request = await decoded(pb.HealthCheckRequest, data, context)
        told: int | None = None
        while True:
            status = self.status(request.service)
            if status != told:
                await context.write(pb.HealthCheckResponse(status=status))
                told = status
            await self._change()

    async def _list(self, data: bytes, context: Any) -> Any:
        await decoded(pb.HealthListRequest, data, context)
        names = (*READINESS, LIVENESS) if self._elected else (*READINESS, OLDER, LIVENESS)
        statuses = {name: pb.HealthCheckResponse(status=self.status(name)) for name in names}
        return pb.HealthListResponse(statuses=statuses)

    async def _change(self) -> None:
        """Return when a status may have changed."""
        if self._draining.is_set():
            await asyncio.sleep(POLL_SECONDS)
            return
        try:
            await asyncio.wait_for(self._draining.wait(), POLL_SECONDS)
        except TimeoutError:
            return
