"""Who may read the admin port, as a fake cluster says, and its TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from epp.clock import ManualClock
from epp.errors import ConfigError
from epp.kube.review import KEPT_SECONDS, MOST_KEPT, Reviewer
from epp.process.server_tls import server_context
from epp.serve.admin_port import admin_of, admitting, bearer, cluster_of
from epp.serve.options import ServeOptions
from epp.telemetry.admin import AdminPages, AdminServer
from epp.telemetry.metrics import Metrics
from tests.support.certificates import Authority
from tests.support.clusters import POOLS, kubeconfig
from tests.support.kube import FakeKube
from tests.support.kube_reviews import EXTRA
from tests.support.pods import inference_pool
from tests.support.serving import serving

PAGES = AdminPages(ready=lambda: True, config=dict, endpoints=tuple, plugins=dict)
SCRAPER = "system:serviceaccount:monitoring:prometheus"


class Guarded:
    """An admin port that asks a cluster."""

    def __init__(self, kube: FakeKube, http: aiohttp.ClientSession, clock: ManualClock) -> None:
        self.kube = kube
        self.clock = clock
        self._http = http
        kube.reviews.users = {"good": SCRAPER, "other": "somebody"}
        kube.reviews.rights = {(SCRAPER, "get", "/metrics")}

    async def get(self, path: str = "/metrics", token: str = "") -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self._http.get(path, headers=headers) as answer:
            if answer.status == 401:
                assert answer.headers["WWW-Authenticate"] == "Bearer"
            return answer.status

    @property
    def kinds(self) -> list[str]:
        return [each["kind"] for each in self.kube.reviews.asked]


def guarded(script: Callable[[Guarded], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        clock = ManualClock(10.0)
        async with FakeKube() as kube:
            admit = admitting(Reviewer(kube.access("ours"), clock))
            server = AdminServer(
                "127.0.0.1", 0, Metrics(process=False), PAGES, middlewares=(admit,)
            )
            port = await server.start()
            try:
                async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
                    return await script(Guarded(kube, http, clock))
            finally:
                await server.stop()

    return asyncio.run(main())


def test_only_whom_the_cluster_allows_reads_the_metrics() -> None:
    async def script(it: Guarded) -> list[int]:
        return [await it.get(token=token) for token in ("", "made-up", "other", "good")]

    assert guarded(script) == [401, 401, 403, 200]


def test_the_reviews_ask_about_the_reader_and_with_our_own_token() -> None:
    async def script(it: Guarded) -> None:
        assert await it.get(token="good") == 200
        token, rights = it.kube.reviews.asked
        assert (token["apiVersion"], token["kind"]) == ("authentication.k8s.io/v1", "TokenReview")
        assert token["spec"] == {"token": "good"}
        assert rights["apiVersion"] == "authorization.k8s.io/v1"
        assert rights["kind"] == "SubjectAccessReview"
        assert rights["spec"] == {
            "user": SCRAPER,
            "uid": f"uid of {SCRAPER}",
            "groups": ["system:authenticated"],
            "extra": EXTRA,
            "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        }
        assert {each.token for each in it.kube.requests} == {"ours"}

    guarded(script)


def test_a_verdict_is_kept_for_a_minute_and_no_longer() -> None:
    async def script(it: Guarded) -> None:
        for token, status in (("good", 200), ("good", 200), ("made-up", 401), ("made-up", 401)):
            assert await it.get(token=token) == status
        assert it.kinds == ["TokenReview", "SubjectAccessReview", "TokenReview"]
        it.kube.reviews.users = {"made-up": SCRAPER}
        it.clock.advance(KEPT_SECONDS - 1)
        assert await it.get(token="good") == 200
        it.clock.advance(1)
        assert await it.get(token="good") == 401
        assert await it.get(token="made-up") == 200

    guarded(script)


def test_each_page_needs_a_right_of_its_own_and_health_none() -> None:
    async def script(it: Guarded) -> list[int]:
        paths = ("/", "/debug/pool", "/nowhere", "/healthz", "/readyz")
        return [await it.get(path, "good") for path in paths[:3]] + [
            await it.get(path) for path in paths[3:]
        ]

    assert guarded(script) == [403, 403, 403, 200, 200]


def test_a_cluster_that_does_not_answer_admits_nobody_and_is_asked_again() -> None:
    async def script(it: Guarded) -> None:
        it.kube.refuse(403, times=1)
        assert await it.get(token="good") == 500
        assert await it.get(token="good") == 200

    guarded(script)


def test_verdicts_about_made_up_tokens_are_bounded() -> None:
    async def main() -> int:
        async with FakeKube() as kube:
            reviewer = Reviewer(kube.access(), ManualClock())
            for number in range(MOST_KEPT, 0, -1):
                reviewer._keep((b"%d" % number, "get", "/metrics"), "unknown")
            assert await reviewer.review("new", "get", "/metrics") == "unknown"
            return len(reviewer._kept)

    assert asyncio.run(main()) == MOST_KEPT


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", ""), ("Bearer", ""),
        ("", ""), ("Bearer " + "x" * 20_000, ""), ("Bearer \xe9", ""),
    ],
)  # fmt: skip
def test_what_counts_as_a_bearer_token(header: str, token: str) -> None:
    assert bearer(header) == token


# --- when a cluster is asked ---------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (ServeOptions(pool_name="p"), True),
        (ServeOptions(endpoint_selector="app=vllm"), True),
        (ServeOptions(pool_name="p", metrics_endpoint_auth=False), False),
        (ServeOptions(pool_name="p", endpoints="10.0.0.1:8000"), False),
        (ServeOptions(endpoints="10.0.0.1:8000"), False),
        (ServeOptions(endpoints="10.0.0.1:8000", metrics_endpoint_auth=True), True),
    ],
)
def test_a_picker_that_is_not_told_asks_the_cluster_that_tells_its_endpoints(
    options: ServeOptions, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            path = kubeconfig(tmp_path, kube).partition("=")[2]
            monkeypatch.setenv("KUBECONFIG", path)
            assert (cluster_of(options) is not None) == asked

    asyncio.run(main())


def test_a_picker_in_a_cluster_guards_its_metrics(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            kube.put(POOLS, inference_pool())
            kube.reviews.users = {"good": SCRAPER}
            kube.reviews.rights = {(SCRAPER, "get", "/metrics")}
            flags = (kubeconfig(tmp_path, kube), "--metrics-endpoint-auth")
            async with serving(tmp_path, *flags, endpoints="--pool-name=pool") as picker:
                assert (await picker.get("/metrics"))[0] == 401
                url = f"http://127.0.0.1:{picker.ports.admin}/metrics"
                headers = {"Authorization": "Bearer good"}
                async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as said:
                    assert said.status == 200

    asyncio.run(main())


# --- TLS -----------------------------------------------------------------------------


def pair(authority: Authority, folder: Path, name: str) -> None:
    """Put a new certificate and its key where the picker reads them."""
    for path, wanted in zip(authority.issue(name), ("tls.crt", "tls.key"), strict=True):
        path.rename(folder / wanted)


async def shown(port: int, context: ssl.SSLContext) -> str:
    """The common name of the server's certificate."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    return str(dict(part[0] for part in certificate["subject"])["commonName"])


def served(options: ServeOptions, script: Callable[[int], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        metrics = Metrics(process=False)
        server = admin_of(options, metrics, pages=PAGES, clock=ManualClock())
        port = await server.start()
        try:
            return await script(port)
        finally:
            await server.stop()

    return asyncio.run(main())


def test_with_a_certificate_the_port_speaks_tls_and_follows_its_files(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair(authority, tmp_path, "first")
    client = ssl.create_default_context(cafile=authority.path)

    async def script(port: int) -> list[str]:
        names = [await shown(port, client)]
        pair(authority, tmp_path, "second")
        return [*names, await shown(port, client)]

    options = ServeOptions(host="127.0.0.1", metrics_port=0, metrics_cert_dir=str(tmp_path))
    assert served(options, script) == ["first", "second"]


@pytest.mark.parametrize("port", ["metrics", "sidecar"])
def test_a_pair_that_is_not_taken_is_said_to_be_that_of_its_port(
    port: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    pair(authority, tmp_path, "first")
    client = ssl.create_default_context(cafile=authority.path)

    async def main() -> list[str]:
        tls = server_context(tmp_path, port=port)
        server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0, ssl=tls)
        async with server:
            (tmp_path / "tls.key").write_text("half a file")
            where = server.sockets[0].getsockname()[1]
            return [await shown(where, client) for _ in range(3)]

    assert asyncio.run(main()) == ["first"] * 3
    (warning,) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert warning.startswith(f"keeping the {port} certificate in use: ")


def test_a_reader_without_a_certificate_of_the_authority_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair(authority, tmp_path, "server")

    async def status(port: int, context: ssl.SSLContext) -> int:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"https://127.0.0.1:{port}/healthz", ssl=context) as answer,
        ):
            return answer.status

    async def script(port: int) -> int:
        stranger = ssl.create_default_context(cafile=authority.path)
        with pytest.raises(aiohttp.ClientError):
            await status(port, stranger)
        known = ssl.create_default_context(cafile=authority.path)
        known.load_cert_chain(*authority.issue("reader"))
        assert await status(port, known) == 200
        pair(authority, tmp_path, "renewed")
        with pytest.raises(aiohttp.ClientError):
            await status(port, stranger)
        return await status(port, known)

    options = ServeOptions(
        host="127.0.0.1", metrics_port=0, metrics_cert_dir=str(tmp_path),
        metrics_client_ca_file=str(authority.path),
    )  # fmt: skip
    assert served(options, script) == 200


def test_tls_that_cannot_be_is_refused_at_the_start(tmp_path: Path) -> None:
    for options in (
        ServeOptions(metrics_cert_dir=str(tmp_path)),
        ServeOptions(metrics_client_ca_file="/ca.pem"),
    ):
        with pytest.raises(ConfigError):
            admin_of(options, Metrics(process=False), pages=PAGES, clock=ManualClock())
    pair(Authority(tmp_path), tmp_path, "server")
    options = ServeOptions(metrics_cert_dir=str(tmp_path), metrics_client_ca_file="/nowhere.pem")
    with pytest.raises(ConfigError, match=r"--metrics-client-ca-file /nowhere\.pem"):
        admin_of(options, Metrics(process=False), pages=PAGES, clock=ManualClock())
