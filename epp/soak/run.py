"""Runs engines, picker, Envoy and traffic, and prints a line now and then."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.markup import escape

from epp.gateway.render import GatewayOptions
from epp.local import fleet
from epp.local.processes import running
from epp.soak.pods import Pods
from epp.soak.seen import Seen, Watch
from epp.terminal.console import Console
from epp.traffic.client import send
from epp.traffic.figures import Sample
from epp.traffic.workload import Session, Workload, sessions

TURNS = 6
SETTLE_SECONDS = 4.0  #: after the traffic, until all that was told must be known
SLACK_SECONDS = 60.0  #: that answers may take longer than the traffic
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: token-producer
  parameters: {vllm: {timeout: 1s}}
- type: precise-prefix-cache-producer
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
- type: in-flight-load-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: in-flight-load-scorer, weight: 2}
"""


class Report(msgspec.Struct, frozen=True):
    """What ``--output`` gets."""

    pods: Pods
    moments: list[Seen]
    wrong: list[str]  #: what should not be; empty if all is well


def run(parsed: argparse.Namespace) -> int:
    """Run it; return 1 if something is not as it should be at the end."""
    console = Console(soft_wrap=True)
    pods = Pods(
        parsed.pods, parsed.kv_blocks, parsed.drop, parsed.buffer, parsed.mute, parsed.restart_every
    )
    try:
        moments = asyncio.run(_soak(parsed, pods, console))
    except TimeoutError:
        said = f"answers came more than {SLACK_SECONDS:.0f} s late: is the machine overloaded?"
        console.print(f"[red]{escape(said)}[/red]", highlight=False)
        return 1
    except (FileNotFoundError, RuntimeError) as error:
        console.print(f"[red]{escape(str(error))}[/red]", highlight=False)
        return 1
    wrong = judge(pods, moments)
    fleet.dump(Report(pods, moments, wrong), Path(parsed.output))
    for each in wrong:
        console.print(f"[red]{escape(each)}[/red]", highlight=False)
    console.print("not as it should be" if wrong else "all is as it should be")
    return 1 if wrong else 0


def judge(pods: Pods, moments: Sequence[Seen]) -> list[str]:
    """Return what should not be at the end, in words."""
    last, wrong = moments[-1], []
    if last.errors and not pods.restart_seconds:  # one that restarts fails what it had
        wrong.append(f"{last.errors} requests failed")
    if not pods.restart_seconds and last.exact < pods.count - pods.mute:
        wrong.append(f"{last.exact} of {pods.count} engines are trusted, {pods.mute} are mute: "
                     f"{last.reasons}")  # fmt: skip
    if last.by_events is not None and last.by_events < 1 / 2:
        wrong.append(f"events told of {last.by_events:.0%} of the requests only")
    return wrong


async def _soak(parsed: argparse.Namespace, pods: Pods, console: Console) -> list[Seen]:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-soak-")))
        config = folder / "precise.yaml"
        config.write_text(CONFIG)
        command = [sys.executable, "-m", "epp.soak.pods", msgspec.json.encode(pods).decode()]
        console.print(f"{pods.count} engines ...", highlight=False)
        played = await stack.enter_async_context(running(command, folder / "pods.log"))
        endpoints = tuple(f"127.0.0.1:{port}" for port in json.loads(played.first_line))
        picker = await stack.enter_async_context(
            fleet.picker(endpoints, folder, f"--config-file={config}")
        )
        options = GatewayOptions(mode=parsed.mode, endpoints=endpoints, picker_tls=False,
                                 picker_host="127.0.0.1", picker_port=picker.ports.grpc)  # fmt: skip
        gateway = await stack.enter_async_context(fleet.gateway(options, folder))
        samples: list[Sample] = []
        watch = Watch(picker, samples)
        moments: list[Seen] = []
        watching = asyncio.create_task(_watch(watch, moments, parsed.every, console))
        try:
            async with asyncio.timeout(parsed.seconds + SLACK_SECONDS):
                await send(gateway.url, "sim", _conversations(parsed), 24, samples.append)
            await asyncio.sleep(SETTLE_SECONDS)
        finally:
            watching.cancel()
        moments.append(await watch.look())
        console.print(line(moments[-1]), highlight=False)
        return moments


def _conversations(parsed: argparse.Namespace) -> list[Session]:
    workload = Workload(
        seed=parsed.seed, sessions=max(int(parsed.seconds * parsed.rate / TURNS), 1), turns=TURNS,
        system_tokens=600, user_tokens=100, arrivals_per_second=parsed.rate / TURNS,
    )  # fmt: skip
    return sessions(workload)


async def _watch(watch: Watch, moments: list[Seen], every: float, console: Console) -> None:
    while True:
        await asyncio.sleep(every)
        moments.append(await watch.look())
        console.print(line(moments[-1]), highlight=False)


def line(seen: Seen) -> str:
    """Return a moment in one line."""
    hits = "-" if seen.hit_rate is None else f"{seen.hit_rate:.1%}"
    told = "-" if seen.by_events is None else f"{seen.by_events:.0%}"
    why = "".join(f", {count} {reason}" for reason, count in sorted(seen.reasons.items()))
    return (
        f"{seen.seconds:6.0f} s  {seen.requests} requests, {seen.errors} failed, {hits} cached, "
        f"{told} by events; {seen.exact}/{seen.engines} exact{why}; {seen.gaps} gaps, "
        f"{seen.lost} lost, {seen.replays} replays, {seen.restarts} restarts; {seen.blocks} blocks, "
        f"{seen.megabytes:.0f} MB, {seen.core_percent:.0f} % of a core"
    )
