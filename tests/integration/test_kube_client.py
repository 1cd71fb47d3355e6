"""The client's calls, over real sockets."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from epp.kube.access import Access, find_access
from epp.kube.client import Kube
from epp.kube.errors import KubeError
from epp.kube.identity.credentials import Credential, Fixed, Pem
from epp.kube.identity.exec_plugin import Exec, ExecPlugin
from epp.kube.identity.tls import Trust
from tests.support.certificates import Authority
from tests.support.kube import FakeKube

PODS = "/api/v1/namespaces/default/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"
SECRET = "s3cr3t-token"


def test_objects_are_created_read_replaced_and_deleted() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, Kube(server.access()) as kube:
            made = await kube.create(PODS, {"metadata": {"name": "a"}, "spec": {}})
            assert made["metadata"]["resourceVersion"]
            assert await kube.get(f"{PODS}/a") == made
            made["spec"]["nodeName"] = "n"
            assert (await kube.replace(f"{PODS}/a", made))["spec"] == {"nodeName": "n"}
            listed = await kube.get(PODS, labelSelector="app=none")
            assert listed["items"] == []
            await kube.delete(f"{PODS}/a")
            with pytest.raises(KubeError) as caught:
                await kube.get(f"{PODS}/a")
            assert caught.value.status == 404

    asyncio.run(scenario())


def test_a_write_from_an_old_version_is_a_conflict() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, Kube(server.access()) as kube:
            old = await kube.create(PODS, {"metadata": {"name": "a"}})
            await kube.replace(f"{PODS}/a", {**old, "spec": {"x": 1}})
            with pytest.raises(KubeError) as caught:
                await kube.replace(f"{PODS}/a", {**old, "spec": {"x": 2}})
            assert (caught.value.status, caught.value.reason) == (409, "Conflict")
            with pytest.raises(KubeError) as caught:
                await kube.create(PODS, {"metadata": {"name": "a"}})
            assert caught.value.reason == "AlreadyExists"

    asyncio.run(scenario())


def test_a_status_is_merged_into_the_object() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, Kube(server.access()) as kube:
            pool = {"metadata": {"name": "p"}, "spec": {"x": 1}, "status": {"a": {"b": 1}, "c": 2}}
            server.put(POOLS, pool)
            patch = {"spec": {"x": 9}, "status": {"a": {"d": 3}, "c": None}}
            found = await kube.patch_status(f"{POOLS}/p", patch)
            assert found["spec"] == {"x": 1}
            assert found["status"] == {"a": {"b": 1, "d": 3}}

    asyncio.run(scenario())


def test_a_rotated_token_is_shown_from_the_next_call_on(tmp_path: Path) -> None:
    token, config = tmp_path / "token", tmp_path / "config"

    async def scenario() -> None:
        async with FakeKube(tokens={"one"}) as server:
            config.write_text(
                f"""
                current-context: c
                contexts: [{{name: c, context: {{cluster: k, user: u}}}}]
                clusters: [{{name: k, cluster: {{server: "{server.url}"}}}}]
                users: [{{name: u, user: {{tokenFile: token}}}}]
                """
            )
            token.write_text("one")
            async with Kube(find_access(str(config))) as kube:
                await kube.get(PODS)
                server.tokens = {"two"}
                with pytest.raises(KubeError) as caught:
                    await kube.get(PODS)
                assert caught.value.status == 401
                token.write_text("two")
                await kube.get(PODS)

    asyncio.run(scenario())


def test_a_refused_token_is_asked_for_again_within_the_call(tmp_path: Path) -> None:
    script = tmp_path / "plugin"
    printed = '{"status": {"token": "%s"}}'
    script.write_text(f"#!/bin/sh\nread t < {tmp_path}/next\nprintf '{printed}' \"$t\"\n")
    script.chmod(0o755)
    (tmp_path / "next").write_text("one\n")

    async def scenario() -> None:
        async with FakeKube(tokens={"one"}) as server:
            plugin = ExecPlugin(Exec("./plugin"), tmp_path)
            access = msgspec.structs.replace(server.access(), credentials=plugin)
            async with Kube(access) as kube:
                await kube.get(PODS)
                server.tokens = {"two"}
                (tmp_path / "next").write_text("two\n")
                await kube.get(PODS)
                assert [each.token for each in server.requests] == ["one", "one", "two"]

    asyncio.run(scenario())


def test_the_server_is_verified_against_the_clusters_authority(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    by_file, by_text = Pem(path=str(ours.path)), Pem(text=ours.path.read_text())

    async def scenario() -> None:
        async with FakeKube(tls=ours.server_context()) as server:
            for authority in (by_file, by_text):
                async with Kube(server.access(trust=Trust(authority))) as kube:
                    await kube.get(PODS)
            for trust in (Trust(Pem(path=str(other.path))), Trust()):
                async with Kube(server.access(trust=trust)) as kube:
                    with pytest.raises(KubeError) as caught:
                        await kube.get(PODS)
                    assert (caught.value.status, caught.value.reason) == (0, "tls")
            async with Kube(server.access(trust=Trust(by_file, server_name="else.where"))) as kube:
                with pytest.raises(KubeError):
                    await kube.get(PODS)
            async with Kube(server.access(trust=Trust(skip_verify=True))) as kube:
                await kube.get(PODS)

    asyncio.run(scenario())


def test_an_authority_that_is_renewed_is_read_again(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    used = tmp_path / "ca.crt"
    used.write_bytes(other.path.read_bytes())

    async def scenario() -> None:
        server = FakeKube(tls=ours.server_context())
        trust = Trust(Pem(path=str(used)))
        async with server, Kube(server.access(trust=trust)) as kube:
            with pytest.raises(KubeError):
                await kube.get(PODS)
            used.write_bytes(ours.path.read_bytes())
            await kube.get(PODS)
            used.write_text("half-written")
            await kube.get(PODS)  # the last good one serves

    asyncio.run(scenario())


@pytest.mark.parametrize("as_text", [True, False])
def test_a_client_certificate_is_shown(tmp_path: Path, as_text: bool) -> None:
    authority = Authority(tmp_path)
    paths = authority.issue("client")
    pems = [Pem(text=path.read_text()) if as_text else Pem(path=str(path)) for path in paths]

    async def scenario() -> None:
        async with FakeKube(tls=authority.server_context(mutual=True)) as server:
            access = server.access(trust=Trust(Pem(path=str(authority.path))))
            shown = Fixed(Credential("", *pems))
            async with Kube(msgspec.structs.replace(access, credentials=shown)) as kube:
                await kube.get(PODS)
            async with Kube(access) as kube:
                with pytest.raises(KubeError):
                    await kube.get(PODS)

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", ["authority", "key"])
def test_certificates_that_are_not_there_are_an_error_that_names_them(
    tmp_path: Path, lost: str
) -> None:
    pem = Pem(path=str(tmp_path / lost))
    trust = Trust(pem) if lost == "authority" else Trust()
    shown = Credential("", pem, pem) if lost == "key" else Credential()

    async def scenario() -> None:
        async with Kube(Access("https://127.0.0.1:1", "x", Fixed(shown), trust)) as kube:
            with pytest.raises(KubeError, match=f"No such file.*{lost}"):
                await kube.get(PODS)

    asyncio.run(scenario())


def test_a_server_that_is_not_there_and_one_that_hangs_are_bounded() -> None:
    async def scenario() -> None:
        async with FakeKube() as server, Kube(server.access(), seconds=0.2) as kube:
            server.faults.hang = True
            began = time.monotonic()
            with pytest.raises(KubeError, match=r"no answer within 0\.2 s") as caught:
                await kube.get(PODS)
            assert caught.value.reason == "timeout"
            assert time.monotonic() - began < 1
            await server.stop()
            with pytest.raises(KubeError) as caught:
                await kube.get(PODS)
            assert (caught.value.status, caught.value.reason) == (0, "connection")

    asyncio.run(scenario())


def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def scenario() -> None:
        async with FakeKube() as server, Kube(server.access()) as kube:
            await kube.get(PODS)

    asyncio.run(scenario())


class Plain:
    """An HTTP server that answers everything the same way."""

    def __init__(self, **answer: Any) -> None:
        self.heard: list[str] = []
        self.paths: list[str] = []
        self.hosts: list[str] = []
        self._answer = answer

    async def __aenter__(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._say)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()

    async def _say(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        self.hosts.append(request.host)
        self.heard.append(request.headers.get("Authorization", ""))
        return web.Response(**self._answer)


def test_a_token_follows_no_redirect() -> None:
    async def scenario() -> None:
        elsewhere = Plain(text="{}")
        async with AsyncExitStack() as stack:
            target = await stack.enter_async_context(elsewhere)
            first = Plain(status=302, headers={"Location": target})
            url = await stack.enter_async_context(first)
            shown = Fixed(Credential(SECRET))
            kube = await stack.enter_async_context(Kube(Access(url, "x", shown)))
            with pytest.raises(KubeError) as caught:
                await kube.get(PODS)
        assert caught.value.status == 302
        assert elsewhere.heard == []

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["<html>", "[]", '"x"', ""])
def test_an_answer_that_is_no_object_is_an_error(text: str) -> None:
    async def scenario() -> None:
        async with Plain(text=text) as url, Kube(Access(url, "x", Fixed(Credential()))) as kube:
            with pytest.raises(KubeError, match="no object") as caught:
                await kube.get(PODS)
            assert caught.value.reason == "answer"

    asyncio.run(scenario())


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x16\x03\x01 nonsense\r\n\r\n",
        HEAD + b"Content-Length: abc\r\n\r\n{}",
        HEAD + b"Content-Length: 20\r\n\r\n{}",
        HEAD + b"X: " + b"a" * 100_000 + b"\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nZZZ\r\nrubbish",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
    ],
)
def test_an_answer_that_is_broken_http_is_an_error(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Kube(Access(url, "x", Fixed(Credential())), seconds=2) as kube:
            with pytest.raises(KubeError) as caught:
                await kube.get(PODS)
        assert (caught.value.status, caught.value.reason) == (0, "connection")
        assert len(str(caught.value)) < 700

    asyncio.run(scenario())


def test_a_server_below_a_path_is_reached_there() -> None:
    async def scenario() -> None:
        server = Plain(text="{}")
        async with server as url:
            access = Access(f"{url}/k8s/clusters/c-1", "x", Fixed(Credential()))
            async with Kube(access) as kube:
                await kube.get(PODS)
            assert server.paths == [f"/k8s/clusters/c-1{PODS}"]

    asyncio.run(scenario())


def test_the_proxy_of_a_kubeconfig_is_used() -> None:
    async def scenario() -> None:
        proxy = Plain(text="{}")
        async with proxy as url:
            access = Access("http://api.invalid", "x", Fixed(Credential()), proxy=url)
            async with Kube(access) as kube:
                await kube.get(PODS)
            assert proxy.hosts == ["api.invalid"]

    asyncio.run(scenario())


def test_a_credential_that_cannot_be_had_is_an_error_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeKube() as server:
            plugin = ExecPlugin(Exec("./none"), tmp_path)
            access = msgspec.structs.replace(server.access(), credentials=plugin)
            async with Kube(access) as kube:
                with pytest.raises(KubeError, match="cannot be run") as caught:
                    await kube.get(PODS)
            assert (caught.value.status, caught.value.reason) == (0, "credentials")
            assert server.requests == []

    asyncio.run(scenario())


def test_no_log_and_no_error_tells_a_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario() -> list[str]:
        said = []
        async with FakeKube(tokens={"another"}) as server, Kube(server.access(SECRET)) as kube:
            for fault in (None, "stop"):
                if fault:
                    await server.stop()
                with pytest.raises(KubeError) as caught:
                    await kube.get(PODS)
                said.append(f"{caught.value!r} {caught.value.__cause__!r}")
        return said

    told = " ".join(asyncio.run(scenario())) + caplog.text
    assert "401" in told
    assert SECRET not in told
