"""``epp demo``: one workload through one Envoy, first by round robin, then by the picker.

Everything is real but the GPUs: Envoy, HTTP, the picker, and engines that take the time a GPU
would. Each run starts with engines whose caches are empty.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from epp.gateway.render import GatewayOptions
from epp.local import fleet
from epp.terminal.console import Console
from epp.traffic.client import send
from epp.traffic.figures import Figures, Sample, by_engine, figures
from epp.traffic.workload import Session, Workload, sessions

MODEL = "demo"
ENGINE = (f"--models={MODEL}", "--profile=llama-3.1-70b-h100-tp4", "--kv-blocks=2000")
"""A large model whose cache holds a third of the conversations, as a busy fleet's does."""
LIMIT_SECONDS = 240.0  #: the whole demo never takes longer


class Result(msgspec.Struct, frozen=True):
    """What ``build/demo.json`` holds of one run."""

    hit_rate: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    errors: int
    requests: int


def run(parsed: argparse.Namespace) -> int:
    """Run the demo; return the exit status."""
    console = Console()
    try:
        return asyncio.run(_bounded(parsed, console))
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        return 130
    except (RuntimeError, FileNotFoundError, ModuleNotFoundError) as error:
        console.print(f"[red]the demo could not run:[/red] {escape(str(error))}", highlight=False)
        return 1


async def _bounded(parsed: argparse.Namespace, console: Console) -> int:
    # SIGTERM ends it as Ctrl-C does: what it has started would go on without it.
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, signal.raise_signal, signal.SIGINT
    )
    if parsed.keep:
        return await _demo(parsed, console)
    async with asyncio.timeout(LIMIT_SECONDS):
        return await _demo(parsed, console)


async def _demo(parsed: argparse.Namespace, console: Console) -> int:
    workload = Workload(seed=parsed.seed, sessions=parsed.sessions)
    total = workload.sessions * workload.turns
    console.print(
        f"{parsed.engines} simulated engines, Envoy in {parsed.mode} mode, {total} chat requests in "
        f"{workload.sessions} conversations over {workload.tenants} system prompts, twice.\n"
    )
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory(prefix="epp-demo-") as name:
        for policy in ("round_robin", "picker"):
            samples = await _run(policy, parsed, workload, Path(name), console)
            results[policy] = _result(figures(samples))
    fleet.dump(results, Path(parsed.output))
    _print_comparison(console, results)
    console.print(f"\nfigures in {parsed.output}", markup=False)
    return 1 if any(result.errors for result in results.values()) else 0


async def _run(
    policy: str,
    parsed: argparse.Namespace,
    workload: Workload,
    folder: Path,
    console: Console,
) -> list[Sample]:
    async with contextlib.AsyncExitStack() as stack:
        engines = await stack.enter_async_context(
            fleet.engines(parsed.engines, folder, *ENGINE, f"--seed={parsed.seed}")
        )
        if policy == "round_robin":
            options = GatewayOptions(mode="direct", endpoints=tuple(engines))
            admin = 0
        else:
            picker = await stack.enter_async_context(fleet.picker(engines, folder))
            admin = picker.ports.admin
            lean = parsed.mode == "lean"
            options = GatewayOptions(
                mode=parsed.mode,
                picker_host="127.0.0.1",
                picker_port=picker.ports.grpc,
                picker_tls=False,
                endpoints=tuple(engines),
                lean_ttft=lean,  # for the live page and what explains decisions
                lean_usage=lean,
            )
        gateway = await stack.enter_async_context(fleet.gateway(options, folder))
        samples = await _play(policy, gateway.url, sessions(workload), workload, console)
        if parsed.keep and policy == "picker":
            await _keep(console, gateway, admin, engines)
        return samples


async def _play(
    policy: str,
    url: str,
    conversations: Sequence[Session],
    workload: Workload,
    console: Console,
) -> list[Sample]:
    samples: list[Sample] = []
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console,
    )  # fmt: skip
    label = "round robin" if policy == "round_robin" else "picker"
    task = progress.add_task(label, total=workload.sessions * workload.turns)

    def view() -> Group:
        return Group(progress, _table(samples))

    with Live(view(), console=console, refresh_per_second=4, transient=False) as live:

        def seen(sample: Sample) -> None:
            samples.append(sample)
            progress.advance(task)
            live.update(view())

        await send(url, MODEL, conversations, workload.output_tokens, seen)
        live.update(view(), refresh=True)
    if not console.is_terminal:
        console.print()  # the last view has no end of line there
    return samples


def _table(samples: Sequence[Sample]) -> Table:
    table = Table("pod", "requests", "hit rate", "TTFT p50", "TTFT p99", "errors")
    for name, of in by_engine(samples).items():
        table.add_row(name, *_cells(of))
    table.add_row("all", *_cells(figures(samples)), style="bold")
    return table


def _cells(of: Figures) -> list[str]:
    return [
        str(of.requests),
        "-" if of.hit_rate is None else f"{of.hit_rate:.1%}",
        _milliseconds(of.ttft_p50_ms),
        _milliseconds(of.ttft_p99_ms),
        str(of.errors),
    ]


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"


def _result(of: Figures) -> Result:
    return Result(of.hit_rate, of.ttft_p50_ms, of.ttft_p99_ms, of.errors, of.requests)


def _print_comparison(console: Console, results: dict[str, Result]) -> None:
    console.print()
    table = Table("", "hit rate", "TTFT p50", "TTFT p99", "errors", title="the same traffic")
    for policy, result in results.items():
        table.add_row(
            policy.replace("_", " "),
            "-" if result.hit_rate is None else f"{result.hit_rate:.1%}",
            _milliseconds(result.ttft_p50_ms),
            _milliseconds(result.ttft_p99_ms),
            str(result.errors),
        )
    console.print(table)


async def _keep(
    console: Console, gateway: fleet.Gateway, admin: int, engines: Sequence[str]
) -> None:
    chat = '{"model":"demo","messages":[{"role":"user","content":"Hello"}],"max_tokens":16}'
    headers = "-H 'content-type: application/json' -H 'x-request-id: try-1'"
    console.print("\n[bold]Everything is still running. Try:[/bold]")
    command = sys.argv[0] if Path(sys.argv[0]).name == "epp" else "epp"
    lines = [
        f"curl -i {gateway.url}/v1/chat/completions {headers} -d '{chat}'",
        f"curl {gateway.url}/v1/models",
        f"http://127.0.0.1:{admin}/      # in a browser: the live page",
        f"{command} top --admin http://127.0.0.1:{admin}",
        f"{command} explain try-1 --admin http://127.0.0.1:{admin}      # why did it go there?",
        f"curl http://127.0.0.1:{admin}/debug/pool      # what the picker knows",
        f"curl http://127.0.0.1:{admin}/metrics",
        f"curl 'http://127.0.0.1:{gateway.admin_port}/stats?filter=ext_proc'",
        *(f"curl http://{engine}/metrics" for engine in engines),
    ]
    for line in lines:
        console.print("  " + line, highlight=False, markup=False, soft_wrap=True)
    console.print("\nCtrl-C stops it all.")
    await asyncio.Event().wait()
