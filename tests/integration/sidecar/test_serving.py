"""The sidecar as a server: TLS on both sides, health, metrics, ranks, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from epp.errors import ConfigError
from epp.local.fleet import free_port
from epp.local.processes import epp, running
from epp.sidecar.options import SidecarOptions
from epp.sidecar.server import Sidecar
from tests.support.certificates import Authority
from tests.support.clusters import PODS, POOLS, kubeconfig
from tests.support.kube import FakeKube
from tests.support.pods import inference_pool, pod
from tests.support.serving import eventually
from tests.support.sidecar import (
    DECODE,
    PREFILL,
    PROMPT,
    Bench,
    beside,
    changed,
    recording,
    text_of,
    with_sidecar,
)  # fmt: skip

PATH = "/v1/completions"


def test_tls_on_our_port_is_made_up_at_the_start_unless_told_otherwise() -> None:
    async def main() -> None:
        async with (
            recording() as engine,
            beside(engine.port, secure_proxy=True) as sidecar,
            aiohttp.ClientSession() as http,
            http.get(f"https://127.0.0.1:{sidecar.ports[0]}/v1/models", ssl=False) as got,
        ):
            assert got.status == 200

    asyncio.run(main())


def test_both_engines_can_be_asked_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("sidecar")
    (tmp_path / "tls.crt").write_bytes(pair[0].read_bytes())
    (tmp_path / "tls.key").write_bytes(pair[1].read_bytes())

    async def main() -> None:
        tls = authority.server_context()
        async with recording(tls=tls) as prefill, recording(tls=tls) as engine:
            options: dict[str, Any] = {
                "enable_tls": ("prefiller", "decoder"),
                "secure_proxy": True,
                "cert_path": str(tmp_path),
                "kv_connector": "shared-storage",
            }
            trusted = ssl.create_default_context(cafile=str(authority.path))
            head = {"x-prefiller-host-port": f"127.0.0.1:{prefill.port}"}
            for trust, status in ((str(authority.path), 200), ("", 503)):
                async with beside(engine.port, tls_ca_file=trust, **options) as sidecar:
                    url = f"https://127.0.0.1:{sidecar.ports[0]}{PATH}"
                    async with (
                        aiohttp.ClientSession() as http,
                        http.post(url, json={"prompt": "x"}, headers=head, ssl=trusted) as got,
                    ):
                        assert got.status == status
            assert len(prefill.seen) == len(engine.seen) == 1

    asyncio.run(main())


def test_each_rank_has_its_port_and_the_header_chooses_one() -> None:
    async def main() -> None:
        async with recording() as zero:
            # The next port must be free for the second rank's engine, and nobody listens there.
            async with beside(zero.port, port=_two_free(), data_parallel_size=2) as sidecar:
                first, second = sidecar.ports
                assert second == first + 1
                async with aiohttp.ClientSession() as http:
                    statuses = []
                    for port, named in ((first, 0), (second, 0), (first, second), (second, first)):
                        head = {"x-data-parallel-host-port": f"10.0.0.1:{named}"} if named else {}
                        url = f"http://127.0.0.1:{port}{PATH}"
                        async with http.post(url, json={"prompt": "x"}, headers=head) as got:
                            statuses.append(got.status)
            assert statuses == [200, 503, 503, 200]

    asyncio.run(main())


def _two_free() -> int:
    """A free port whose next one is free too."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", port))
            two.bind(("127.0.0.1", port + 1))
            return port


def test_health_is_the_engines_and_metrics_have_a_port_of_their_own() -> None:
    port = free_port()

    async def use(bench: Bench) -> None:
        async with beside(bench.decode_port, metrics_port=port) as sidecar:
            ours, pages = (f"http://127.0.0.1:{each}" for each in (sidecar.ports[0], port))

            async def status(url: str) -> int:
                async with bench.http.get(url) as got:
                    return got.status

            assert [await status(f"{pages}/{each}") for each in ("healthz", "readyz", "x")] == [
                200, 200, 404,
            ]  # fmt: skip
            assert await status(f"{ours}/health") == 200
            async with bench.http.get(f"{pages}/metrics") as got:
                assert "epp_sidecar_requests_in_flight 0.0" in await got.text()
            await bench.decode._die()
            assert [await status(f"{pages}/readyz"), await status(f"{pages}/healthz")] == [503, 200]

    with_sidecar(use)


def test_at_the_end_health_fails_first_and_what_is_under_way_ends_well() -> None:
    async def use(bench: Bench) -> None:
        async with contextlib.AsyncExitStack() as stack:
            options = {"drain_timeout": 30.0}
            sidecar = await stack.enter_async_context(beside(bench.decode_port, **options))
            url = f"http://127.0.0.1:{sidecar.ports[0]}"
            body = {"model": "sim", "prompt": PROMPT, "max_tokens": 1500, "stream": True}
            got = await stack.enter_async_context(
                bench.http.post(url + PATH, json=body, headers=bench.head())
            )
            first = await got.content.readuntil(b"\n\n")
            ending = asyncio.create_task(sidecar.stop())

            async def refuses() -> bool:
                async with bench.http.get(f"{url}/health") as answer:
                    return answer.status == 503

            await eventually(refuses)
            raw = first + await got.read()
            assert raw.endswith(b"data: [DONE]\n\n")
            assert raw.count(b'"text":"') == 1500
            await ending
            with pytest.raises(aiohttp.ClientConnectorError):
                await bench.http.get(f"{url}/health")

    with_sidecar(use, decode=changed(DECODE, speed=8.0))


def test_an_answer_that_breaks_off_breaks_off_for_the_client_too() -> None:
    async def main() -> None:
        async def breaks(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
            response = aiohttp.web.StreamResponse()
            await response.prepare(request)
            await response.write(b"data: {}\n\n")
            assert request.transport is not None
            request.transport.abort()
            return response

        async with recording(breaks) as engine, beside(engine.port) as sidecar:
            url = f"http://127.0.0.1:{sidecar.ports[0]}{PATH}"
            async with aiohttp.ClientSession() as http:
                got = await http.post(url, json={"prompt": "x"})
                with pytest.raises(aiohttp.ClientError):
                    await got.read()

            async def over() -> bool:
                return sidecar.proxy.in_flight == 0

            await eventually(over)

    asyncio.run(main())


def test_the_command_serves_and_ends_at_sigterm(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        command = epp(
            "sidecar", "--host=127.0.0.1", "--port=0", f"--model-server-port={bench.decode_port}",
            "--secure-proxy=false", "--tracing=true", "--drain-timeout=5s",
        )  # fmt: skip
        async with running(command, tmp_path / "log") as child:
            assert child.first_line.startswith("listening on http://127.0.0.1:")
            url = child.first_line.split()[-1] + PATH
            body = {"model": "sim", "prompt": PROMPT, "max_tokens": 8}
            async with bench.http.post(url, json=body, headers=bench.head()) as got:
                assert (got.status, bench.external) == (200, 400)
                assert text_of(json.loads(await got.read()))
            child.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                assert await child.process.wait() == 0
            assert "--tracing is ignored" in child.log.read_text()

    with_sidecar(use, prefills=[PREFILL])


def test_a_pool_without_a_cluster_keeps_the_sidecar_from_being_ready(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)

    async def use(bench: Bench) -> None:
        options: dict[str, Any] = {"enable_ssrf_protection": True, "inference_pool": "ns/pool"}
        async with beside(bench.decode_port, **options) as sidecar:
            url = f"http://127.0.0.1:{sidecar.ports[0]}"
            async with bench.http.get(f"{url}/health") as got:
                assert got.status == 503
            async with bench.http.post(
                url + PATH, json={"prompt": "x"}, headers=bench.head()
            ) as got:
                assert got.status == 403

    with_sidecar(use)


def test_the_pods_of_a_pool_may_be_asked_as_long_as_they_are_its_pods(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        async with FakeKube() as kube:
            kube.put(POOLS, inference_pool())
            kube.put(PODS, pod("p", "127.0.0.1"))
            options: dict[str, Any] = {
                "enable_ssrf_protection": True,
                "inference_pool": "default/pool",
                "kubeconfig": kubeconfig(tmp_path, kube).partition("=")[2],
            }
            async with beside(bench.decode_port, **options) as sidecar:
                url = f"http://127.0.0.1:{sidecar.ports[0]}"

                async def ready() -> bool:
                    async with bench.http.get(f"{url}/health") as got:
                        return got.status == 200

                async def status() -> int:
                    body = {"model": "sim", "prompt": PROMPT}
                    async with bench.http.post(url + PATH, json=body, headers=bench.head()) as got:
                        return got.status

                async def forbidden() -> bool:
                    return await status() == 403

                await eventually(ready)
                assert (await status(), bench.external) == (200, 400)
                kube.remove(PODS, "p")
                await eventually(forbidden)
            assert {each.path for each in kube.requests} <= {POOLS, PODS}

    with_sidecar(use)


def test_a_port_that_is_taken_is_said_in_one_line_and_nothing_stays_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ("--host=127.0.0.1", f"--port={port}", "--metrics-port=0", "--secure-proxy=false")
        ended = subprocess.run(
            epp("sidecar", *flags), capture_output=True, text=True, timeout=30, check=False
        )
    assert ended.returncode == 2
    assert ended.stderr.startswith("epp sidecar: ")
    assert port in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_certificate_that_is_not_there_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        Sidecar(SidecarOptions(cert_path=str(tmp_path)))
