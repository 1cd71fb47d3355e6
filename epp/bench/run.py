"""``epp bench``: every case in one run; prints a table, writes JSON, checks generous ceilings."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import uvloop
from rich.table import Table

from epp.bench import access_log, kv, peers, targets
from epp.bench.kv_live import live
from epp.bench.policy import decisions
from epp.bench.prefill import dispatch
from epp.bench.schedule import schedule
from epp.gateway.options import Mode
from epp.gateway.render import GatewayOptions
from epp.local import fleet
from epp.local.processes import running
from epp.terminal.console import Console

WARM_SECONDS = 2.5  #: the picker chooses its CPU meanwhile
WIDTH = 96  #: of the table, at least
STREAMS = 256  #: answers streamed at once
ENTRIES_PER_SECOND = 2000  #: of the access log
PREFILLS_PER_SECOND = 200.0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One load through one Envoy."""

    name: str
    mode: Mode  #: "lean", "stock", or "direct" for no picker at all
    connections: int = 32
    prompt_tokens: int = 900
    chunks: int = 0  #: of the answer; 0 is one small JSON answer
    rate: float = 0.0  #: requests per second at most; 0 is no limit
    reloads: bool = False  #: the picker reads its configuration again every second
    usual: bool = False  #: `baseline.usual` is in the place of the picker


CASES = (
    Case(name="small_direct", mode="direct"),
    Case(name="small_lean", mode="lean"),
    Case(name="small_stock", mode="stock"),
    Case(name="reload_300rps", mode="lean", rate=300.0, reloads=True),
    Case(name="stream100_direct", mode="direct", connections=STREAMS, chunks=100),
    Case(name="stream100_lean", mode="lean", connections=STREAMS, chunks=100),
    Case(name="stream100_stock", mode="stock", connections=STREAMS, chunks=100),
    Case(name="stream100_usual", mode="stock", connections=STREAMS, chunks=100, usual=True),
    Case(name="stream1000_lean", mode="lean", connections=STREAMS, chunks=1000),
    Case(name="prompt220k_direct", mode="direct", connections=20, prompt_tokens=55_000),
    Case(name="prompt220k_lean", mode="lean", connections=20, prompt_tokens=55_000),
)


class Measured(msgspec.Struct, frozen=True):
    """What one case cost. CPU is user + system time per request."""

    picker_cpu_ms: float | None
    envoy_cpu_ms: float | None
    rps: float
    p50_ms: float | None
    p99_ms: float | None
    requests: int
    errors: int
    core_percent: float | None = None  #: of one core, where the load is a fixed rate
    megabytes: float | None = None  #: where it is memory that matters


class Load(msgspec.Struct, frozen=True):
    """What the load client printed."""

    requests: int
    errors: int
    rps: float
    p50_ms: float
    p99_ms: float


CEILINGS = {
    "small lean: picker CPU / Envoy CPU": 4.0,
    "100-chunk stream lean: picker CPU / Envoy CPU": 1.0,
    "100-chunk stream lean: Envoy CPU with / without picker": 3.0,
    "100-chunk stream: picker CPU lean / stock": 0.5,
    "220 KB: rate without / with picker": 40.0,
    "1,000 endpoints x 8k tokens: p99 ms": 50.0,
    "stream lean: picker CPU 1,000 / 100 chunks": 5.0,
    "100-chunk stream: picker + Envoy CPU lean / stock": 2.0,
    "100-chunk stream: picker + Envoy CPU lean / stock on grpc.aio": 1.0,
    "access log, 2,000 entries/s: percent of a core": 25.0,
    "KV events: CPU us a block": 30.0,
    "KV look-up, 8k tokens of 1,000 endpoints: CPU ms": 3.0,
    "KV look-up, 128k tokens: CPU ms": 15.0,
}


def run(parsed: argparse.Namespace) -> int:
    """Run the chosen cases; return 1 if an error or a gross regression was seen."""
    console = Console(width=max(Console().width, WIDTH))
    named = filter(None, parsed.only.split(","))
    chosen = {case for name in named for case in SECTIONS.get(name, (name,))}
    known = {case.name for case in CASES} | set(INSIDE) | set(LONG)
    if unknown := chosen - known:
        console.print(
            f"unknown cases: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}"
        )
        return 2
    measured: dict[str, Measured] = {}
    for case in CASES:
        if not chosen or case.name in chosen:
            console.print(f"{case.name} ...", highlight=False)
            measured[case.name] = asyncio.run(_case(case, parsed.seconds))
    for name, measure in {**INSIDE, **LONG}.items():
        if name in chosen or (not chosen and name in INSIDE):
            console.print(f"{name} ...", highlight=False)
            measured[name] = measure(parsed.seconds)
    _print(console, measured)
    output = Path(parsed.output)
    before = json.loads(output.read_text()) if chosen and output.exists() else {}
    fleet.dump({**before, **msgspec.to_builtins(measured)}, output)
    targets.show(console, {name: msgspec.to_builtins(of) for name, of in measured.items()})
    wrong = _ratios(console, measured)
    errors = sum(of.errors for of in measured.values())
    if errors:
        console.print(f"[red]{errors} requests failed[/red]")
    return 1 if wrong or errors else 0


def _schedule(_seconds: float) -> Measured:
    cpu_ms, rate, p50, p99, count = schedule(endpoints=1000, prompt_tokens=8192)
    return Measured(cpu_ms, None, rate, p50, p99, count, 0)


def _expected_ttft(endpoints: int, _seconds: float) -> Measured:
    rate, p50, p99, count = decisions(endpoints=endpoints)
    return Measured(1000.0 / rate, None, rate, p50, p99, count, 0)


def _access_log(seconds: float) -> Measured:
    cost = uvloop.run(access_log.cost(ENTRIES_PER_SECOND, seconds))
    rate = cost.entries / cost.seconds
    return Measured(cost.entry_ms, None, rate, None, None, cost.entries, cost.left,
                    cost.core_percent)  # fmt: skip


def _prefill(seconds: float) -> Measured:
    seen = uvloop.run(dispatch(PREFILLS_PER_SECOND, seconds))
    return Measured(None, None, seen.rate, seen.p50_ms, seen.p99_ms, seen.requests, seen.alone)


def _inside(measure: Callable[[float], kv.Cost], seconds: float) -> Measured:
    cost = measure(seconds)
    return Measured(cost.cpu_ms, None, cost.rate, cost.p50_ms, cost.p99_ms, cost.count, 0)


def _kv_live(seconds: float) -> Measured:
    seen = live(seconds)
    return Measured(None, None, seen.blocks_per_second, None, None, 0, seen.lost, seen.cpu_percent)


def _kv_live_pick(seconds: float) -> Measured:
    seen = live(seconds)
    return Measured(None, None, seen.requests / seconds, seen.pick_p50_ms, seen.pick_p99_ms,
                    seen.requests, 0)  # fmt: skip


def _kv_live_visible(seconds: float) -> Measured:
    seen = live(seconds)
    return Measured(None, None, seen.probes / seconds, seen.visible_p50_ms, seen.visible_p99_ms,
                    seen.probes, 0)  # fmt: skip


def _kv_memory(references: int, _seconds: float) -> Measured:
    return Measured(None, None, 0.0, None, None, 0, 0, megabytes=kv.memory(references))


INSIDE: Mapping[str, Callable[[float], Measured]] = {
    "schedule_1000x8k": _schedule,
    "expected_ttft_100": partial(_expected_ttft, 100),
    "expected_ttft_1000": partial(_expected_ttft, 1000),
    "access_log_2000": _access_log,
    "prefill_200rps": _prefill,
    "peers_tell": partial(_inside, peers.tell),
    "peers_hear": partial(_inside, peers.hear),
    "peers_tell_entry": partial(_inside, peers.tell_entry),
    "peers_hear_entry": partial(_inside, peers.hear_entry),
    "kv_ingest": partial(_inside, kv.ingest),
    "kv_lookup_8k_1000": partial(_inside, kv.look_up_8k),
    "kv_lookup_128k": partial(_inside, kv.look_up_128k),
    "kv_live": _kv_live,
    "kv_live_pick": _kv_live_pick,
    "kv_live_visible": _kv_live_visible,
    "kv_memory": partial(_kv_memory, kv.REFERENCES // 10),
}
"""Cases that need no gateway; each is given the seconds to measure."""
LONG: Mapping[str, Callable[[float], Measured]] = {
    "kv_memory_10m": partial(_kv_memory, kv.REFERENCES),
}
"""Cases that take long; they run only if named."""
SECTIONS: Mapping[str, Sequence[str]] = {
    "peers": tuple(name for name in INSIDE if name.startswith("peers_")),
    "kv": tuple(name for name in (*INSIDE, *LONG) if name.startswith("kv_")),
}
"""Names for several cases."""


async def _case(case: Case, seconds: float) -> Measured:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-bench-")))
        backend = await stack.enter_async_context(
            running(
                [sys.executable, "-m", "epp.bench.backend", "--chunks", str(case.chunks)],
                folder / "backend.log",
            )
        )
        endpoints = tuple(f"127.0.0.1:{port}" for port in json.loads(backend.first_line))
        options = GatewayOptions(mode=case.mode, endpoints=endpoints, picker_tls=False)
        picker_pid = None
        if case.mode != "direct":
            picker = await stack.enter_async_context(
                _usual(endpoints[0], folder) if case.usual else fleet.picker(endpoints, folder)
            )
            picker_pid = picker.child.pid
            options = msgspec.structs.replace(
                options, picker_host="127.0.0.1", picker_port=picker.ports.grpc
            )
        gateway = await stack.enter_async_context(fleet.gateway(options, folder))
        await _load(case, gateway.port, WARM_SECONDS)
        pids = [gateway.child.pid, *([picker_pid] if picker_pid else [])]
        before = [fleet.cpu_seconds(pid) for pid in pids]
        reloading = asyncio.create_task(_reload(picker_pid if case.reloads else None))
        load = await _load(case, gateway.port, seconds)
        reloading.cancel()
        used = [fleet.cpu_seconds(pid) - was for pid, was in zip(pids, before, strict=True)]
        per_request = [seconds_used / max(load.requests, 1) * 1000 for seconds_used in used]
        return Measured(
            per_request[1] if picker_pid else None,
            per_request[0],
            load.rps,
            load.p50_ms,
            load.p99_ms,
            load.requests,
            load.errors,
        )


@contextlib.asynccontextmanager
async def _usual(endpoint: str, folder: Path) -> AsyncIterator[fleet.Picker]:
    command = [sys.executable, "-m", "epp.bench.baseline.usual", endpoint]
    async with running(command, folder / "usual.log") as child:
        yield fleet.Picker(child, msgspec.json.decode(child.first_line, type=fleet.Ports))


async def _reload(picker_pid: int | None) -> None:
    while picker_pid is not None:
        await asyncio.sleep(1)
        os.kill(picker_pid, signal.SIGHUP)


async def _load(case: Case, port: int, seconds: float) -> Load:
    command = [
        sys.executable, "-m", "epp.bench.load", f"--port={port}", f"--seconds={seconds}",
        f"--connections={case.connections}", f"--prompt-tokens={case.prompt_tokens}",
        f"--rate={case.rate}",
        *(["--streamed"] if case.chunks else []),
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(seconds + 60):
            out, _ = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        raise RuntimeError(f"the load client ended with status {process.returncode}")
    return msgspec.json.decode(out, type=Load)


def _print(console: Console, measured: dict[str, Measured]) -> None:
    table = Table("case", "picker CPU", "Envoy CPU", "requests/s", "p50", "p99", "errors")
    for name, of in measured.items():
        table.add_row(
            name,
            "-" if of.picker_cpu_ms is None else f"{of.picker_cpu_ms:.3f} ms",
            "-" if of.envoy_cpu_ms is None else f"{of.envoy_cpu_ms:.3f} ms",
            f"{of.rps:,.0f}",
            "-" if of.p50_ms is None else f"{of.p50_ms:.2f} ms",
            "-" if of.p99_ms is None else f"{of.p99_ms:.2f} ms",
            str(of.errors),
        )
    console.print(table)


def _ratios(console: Console, measured: dict[str, Measured]) -> bool:
    """Print the ratios that matter; say whether one is past its ceiling."""

    def cpu(name: str, whose: str) -> float | None:
        return getattr(measured[name], whose) if name in measured else None

    def both(name: str) -> float | None:
        own, envoy = cpu(name, "picker_cpu_ms"), cpu(name, "envoy_cpu_ms")
        return None if own is None or envoy is None else own + envoy

    def rate(name: str) -> float | None:
        return measured[name].rps if name in measured else None

    pairs = {
        "small lean: picker CPU / Envoy CPU": (
            cpu("small_lean", "picker_cpu_ms"), cpu("small_lean", "envoy_cpu_ms")),
        "100-chunk stream lean: picker CPU / Envoy CPU": (
            cpu("stream100_lean", "picker_cpu_ms"), cpu("stream100_lean", "envoy_cpu_ms")),
        "100-chunk stream lean: Envoy CPU with / without picker": (
            cpu("stream100_lean", "envoy_cpu_ms"), cpu("stream100_direct", "envoy_cpu_ms")),
        "100-chunk stream: picker CPU lean / stock": (
            cpu("stream100_lean", "picker_cpu_ms"), cpu("stream100_stock", "picker_cpu_ms")),
        "stream lean: picker CPU 1,000 / 100 chunks": (
            cpu("stream1000_lean", "picker_cpu_ms"), cpu("stream100_lean", "picker_cpu_ms")),
        "100-chunk stream: picker + Envoy CPU lean / stock": (
            both("stream100_lean"), both("stream100_stock")),
        "100-chunk stream: picker + Envoy CPU lean / stock on grpc.aio": (
            both("stream100_lean"), both("stream100_usual")),
        "access log, 2,000 entries/s: percent of a core": (
            cpu("access_log_2000", "core_percent"), 1.0),
        "KV events: CPU us a block": (cpu("kv_ingest", "picker_cpu_ms"), 0.001),
        "KV look-up, 8k tokens of 1,000 endpoints: CPU ms": (
            cpu("kv_lookup_8k_1000", "picker_cpu_ms"), 1.0),
        "KV look-up, 128k tokens: CPU ms": (cpu("kv_lookup_128k", "picker_cpu_ms"), 1.0),
        "220 KB: rate without / with picker": (rate("prompt220k_direct"), rate("prompt220k_lean")),
        "1,000 endpoints x 8k tokens: p99 ms": (
            measured["schedule_1000x8k"].p99_ms if "schedule_1000x8k" in measured else None, 1.0),
    }  # fmt: skip
    wrong = False
    for name, (above, below) in pairs.items():
        if above is None or not below:
            continue
        value, ceiling = above / below, CEILINGS[name]
        wrong = wrong or value > ceiling
        console.print(f"{name}: {value:.3g}  (ceiling {ceiling:g})", highlight=False)
    return wrong
