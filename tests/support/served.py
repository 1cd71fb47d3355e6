"""`epp serve` as a process with ports of its own, and what a gateway or a kubelet asks of it."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2 as pb

from tests.support.process import Process, eventually

LOCAL = (
    "--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0",
)  # fmt: skip
ASK_SECONDS = 5.0


class Served(Process):
    """A picker that serves."""

    def __init__(self, folder: Path, *flags: str, ports: Sequence[str] = LOCAL) -> None:
        super().__init__("picker", [sys.executable, "-m", "epp", *ports, *flags], folder)
        self.ports: dict[str, int] = {}  #: "grpc", "health" and "admin", once started

    def start(self) -> None:
        """Start it, and wait until it listens."""
        super().start()
        self.ports = json.loads(self.first_line())

    def get(self, path: str) -> Any:
        """A page of the admin port, as JSON."""
        url = f"http://127.0.0.1:{self.ports['admin']}{path}"
        with urllib.request.urlopen(url, timeout=ASK_SECONDS) as answer:
            return json.loads(answer.read())

    def entries(self, level: str) -> list[str]:
        """The messages it has logged at this level."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line["msg"] for line in lines if line["level"] == level]


@contextlib.contextmanager
def serving(folder: Path, *flags: str, ports: Sequence[str] = LOCAL) -> Iterator[Served]:
    """Run a picker until the block ends; it is not left behind."""
    picker = Served(folder, *flags, ports=ports)
    try:
        picker.start()
        yield picker
    finally:
        picker.kill()


def loads_known(picker: Served, wanted: Sequence[dict[str, Any]]) -> None:
    """Wait until the picker has scraped these loads, in the pool's order."""

    def scraped() -> bool:
        loads = [each["load"] or {} for each in picker.get("/debug/pool")]
        return len(loads) == len(wanted) and all(
            load.get(name) == value
            for load, numbers in zip(loads, wanted, strict=True)
            for name, value in numbers.items()
        )

    eventually(scraped, what=f"the scraped loads {wanted}")


class Health:
    """A kubelet's gRPC probe, or Envoy's."""

    def __init__(self, port: int, *, trusted: bytes | None = None) -> None:
        target, options = f"localhost:{port}", [("grpc.use_local_subchannel_pool", 1)]
        self.channel = (
            grpc.insecure_channel(target, options)
            if trusted is None
            else grpc.secure_channel(target, grpc.ssl_channel_credentials(trusted), options)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def check(self, service: str) -> str:
        """The status' name; or the code's, if the call fails."""
        call = self._call("unary_unary", "Check", pb.HealthCheckResponse)
        try:
            answer = call(pb.HealthCheckRequest(service=service), timeout=ASK_SECONDS)
        except grpc.RpcError as error:
            return str(error.code().name)
        return _name(answer)

    def watch(self, service: str) -> Iterator[str]:
        """Each status' name as it changes; fails if the next one takes too long."""
        call = self._call("unary_stream", "Watch", pb.HealthCheckResponse)
        stream = call(pb.HealthCheckRequest(service=service), timeout=ASK_SECONDS)
        try:
            for answer in stream:
                yield _name(answer)
        finally:
            stream.cancel()

    def list(self) -> dict[str, str]:
        """Every service with its status' name."""
        call = self._call("unary_unary", "List", pb.HealthListResponse)
        answer = call(pb.HealthListRequest(), timeout=ASK_SECONDS)
        return {service: _name(each) for service, each in answer.statuses.items()}

    def _call(self, kind: str, method: str, answer: Any) -> Any:
        return getattr(self.channel, kind)(
            f"/grpc.health.v1.Health/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )


def _name(answer: Any) -> str:
    return str(pb.HealthCheckResponse.ServingStatus.Name(answer.status))
