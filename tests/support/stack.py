"""A real Envoy, the picker and model servers, each a process of its own on free loopback ports.

::

    with Stack(tmp_path, mode="lean", backends=2, serve=("--max-body-bytes=1000",)) as stack:
        answer = asyncio.run(http1.request(stack.port, "POST", PATH, wanted(kind="echo"), b"{}"))
        stack.wait_idle()                      # every counter of the picker is 0 again

    stack.picker.kill()                        # also: .stop(), .pause(), .resume(), .tail()
    stack.start_picker()                       # on its old ports, ready when this returns
    stack.backends[0].kill(); stack.start_backend(0)
    stack.envoy.kill(); stack.start_envoy()
    stack.state()["streams"], stack.pool()[0]["in_flight_requests"], stack.counts(0).cut
    stack.metrics()["epp_reaped_requests_total{}"], stack.envoy_stats("ext_proc")

What a backend answers is told by the request: see `tests.support.backend`. Everything here is
synchronous; in an async test call what waits through ``asyncio.to_thread``. Leaving the block
kills all parts; the logs stay in the folder it was given.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from epp.gateway.options import GatewayOptions, Mode
from epp.gateway.render import render
from epp.local.fleet import Ports, envoy_binary, free_port
from epp.local.processes import epp
from tests.support.backend import Counts
from tests.support.process import Process, eventually

PAGE_SECONDS = 30.0  #: a busy machine keeps a page waiting for many
READY_SECONDS = 20.0
IDLE_SECONDS = 10.0


class Stack:
    """All parts of one gateway.

    Args:
        folder: for bootstraps, outputs and logs.
        mode: of Envoy: "lean", "stock" or "direct" (then nobody asks the picker).
        backends: how many model servers.
        serve: more flags for ``epp serve``.
        gateway: more fields of `GatewayOptions`, such as ``routing`` or ``fail_open``.
        tls: between Envoy and the picker.
    """

    def __init__(
        self,
        folder: Path,
        *,
        mode: Mode = "lean",
        backends: int = 2,
        serve: Sequence[str] = (),
        gateway: Mapping[str, Any] | None = None,
        tls: bool = False,
    ) -> None:
        self.folder = folder
        self.mode = mode
        self.port = free_port()  #: Envoy's, for clients
        self.admin_port = free_port()  #: Envoy's
        self.ports = Ports(free_port(), free_port(), free_port())  #: the picker's
        self.backend_ports = [free_port() for _ in range(backends)]
        self.backends = [self._backend(i, port) for i, port in enumerate(self.backend_ports)]
        self._gateway = dict(gateway or {})
        self._tls = tls
        self.picker = Process("picker", self._serve(serve), folder)
        self.envoy = Process("envoy", self._envoy(), folder)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of the backends, in order."""
        return [f"127.0.0.1:{port}" for port in self.backend_ports]

    def __enter__(self) -> Self:
        atexit.register(self.close)
        try:
            for process in self.backends:
                process.start()
            for process in self.backends:
                process.first_line()
            self.picker.start()
            self.picker.first_line()
            self.start_envoy()
            self._picker_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all that runs; idempotent."""
        for process in (self.envoy, self.picker, *self.backends):
            process.kill()
        atexit.unregister(self.close)

    # --- parts -----------------------------------------------------------------------

    def start_picker(self) -> None:
        self.picker.start()
        self._picker_ready()

    def start_envoy(self) -> None:
        self.envoy.start()

        def ready() -> bool:
            assert self.envoy.running, f"Envoy ended:\n{self.envoy.tail()}"
            return _get(self.admin_port, "/ready")[0] == 200

        eventually(ready, READY_SECONDS, "Envoy being ready")
        self._picker_asked()

    def start_backend(self, number: int) -> None:
        self.backends[number].start()
        self.backends[number].first_line()

    def _picker_ready(self) -> None:
        self.picker.first_line()
        eventually(lambda: _get(self.ports.admin, "/readyz")[0] == 200, READY_SECONDS, "the picker")
        self._picker_asked()

    def _picker_asked(self) -> None:
        """Wait until Envoy, if it looks at the picker's health, knows that it is up."""
        name = "cluster.picker.membership_healthy"
        if self._gateway.get("fail_open") and self.picker.running and self.envoy.running:
            eventually(lambda: self.envoy_stats(name).get(name), READY_SECONDS, name)

    def _backend(self, number: int, port: int) -> Process:
        command = [sys.executable, "-m", "tests.support.backend", f"--port={port}"]
        return Process(f"backend-{number}", [*command, f"--name=backend-{number}"], self.folder)

    def _serve(self, more: Sequence[str]) -> list[str]:
        return epp(
            "serve", "--host=127.0.0.1", f"--grpc-port={self.ports.grpc}",
            f"--grpc-health-port={self.ports.health}", f"--metrics-port={self.ports.admin}",
            f"--secure-serving={str(self._tls).lower()}",
            f"--endpoints={','.join(self.addresses)}", *more,
        )  # fmt: skip

    def _envoy(self) -> list[str]:
        options = GatewayOptions(
            mode=self.mode,
            endpoints=tuple(self.addresses),
            listen_port=self.port,
            admin_port=self.admin_port,
            picker_port=self.ports.grpc,
            picker_tls=self._tls,
        )
        bootstrap = self.folder / "envoy.yaml"
        bootstrap.write_text(render(msgspec.structs.replace(options, **self._gateway)))
        return [envoy_binary(), "-c", str(bootstrap), "--concurrency", "2", "--log-level", "warn",
                "--disable-hot-restart"]  # fmt: skip

    # --- what they say ---------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The picker's ``/debug/state``: streams, open_exchanges, reaped, buffered_bytes, ..."""
        return dict(json.loads(_get(self.ports.admin, "/debug/state")[1]))

    def pool(self) -> list[dict[str, Any]]:
        """The picker's ``/debug/pool``: its endpoints, with what is booked on each."""
        return list(json.loads(_get(self.ports.admin, "/debug/pool")[1]))

    def metrics(self) -> dict[str, float]:
        """The picker's ``/metrics``: ``name{label="value",...}`` -> value."""
        return metrics_of(_get(self.ports.admin, "/metrics")[1].decode())

    def counts(self, number: int) -> Counts:
        """What backend ``number`` has lived through."""
        page = _get(self.backend_ports[number], "/counts")[1]
        return msgspec.json.decode(page, type=Counts)

    def envoy_stats(self, pattern: str) -> dict[str, int]:
        """Envoy's counters and gauges whose name matches ``pattern``."""
        page = _get(self.admin_port, f"/stats?filter={pattern}")[1].decode()
        pairs = (line.split(": ", 1) for line in page.splitlines())
        return {name: int(value) for name, value in pairs if value.isdecimal()}

    def busy(self) -> dict[str, int]:
        """What the picker still holds: counters that are not 0."""
        state = self.state()
        held = {name: state[name] for name in ("streams", "open_exchanges", "buffered_bytes")}
        for endpoint in self.pool():
            for name in ("in_flight_requests", "in_flight_tokens"):
                held[f"{endpoint['address']} {name}"] = endpoint[name]
        return {name: value for name, value in held.items() if value}

    def wait_idle(self, seconds: float = IDLE_SECONDS) -> None:
        """Wait until the picker holds nothing: no stream, exchange, byte or booking.

        Raises:
            AssertionError: something is left; names it.
        """
        last: dict[str, int] = {}

        def idle() -> bool:
            last.clear()
            last.update(self.busy())
            return not last

        try:
            eventually(idle, seconds)
        except AssertionError:
            raise AssertionError(f"left in the picker after {seconds} s: {last}") from None


def metrics_of(page: str) -> dict[str, float]:
    """Read a page of metrics: ``name{label="value",...}`` -> value."""
    return {
        f"{sample.name}{{{_labels(sample.labels)}}}": sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))


def _get(port: int, path: str) -> tuple[int, bytes]:
    """GET from a loopback port; status 0 if nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PAGE_SECONDS)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    return 0, b""
