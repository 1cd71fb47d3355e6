"""The watched endpoints file, on a real file system."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from epp.collect.discovery import EndpointsFile
from epp.collect.static import StaticEndpoints, apply
from epp.errors import ConfigError
from epp.model import EndpointId
from epp.pool import Pool
from tests.support import build
from tests.support.pages import running, until


def entries(*names: str) -> str:
    lines = [f"- {{name: {name}, address: {name}.svc, port: 80}}" for name in names]
    return "endpoints:\n" + "\n".join(lines) + "\n"


def ids(pool: Pool) -> list[str]:
    return sorted(endpoint.name for endpoint in pool.snapshot())


def follow(path: Path, pool: Pool, heard: list[str]) -> EndpointsFile:
    return EndpointsFile(path, report=heard.append, poll_seconds=0.01)


def test_a_static_list_fills_the_pool_and_syncs_it() -> None:
    pool = Pool()
    assert not pool.synced
    asyncio.run(StaticEndpoints("10.0.0.1:80,[::1]:81").run(pool))
    assert pool.synced
    assert [e.address for e in pool.snapshot()] == ["10.0.0.1:80", "[::1]:81"]


def test_a_bad_static_list_is_a_configuration_error_that_names_the_culprit() -> None:
    with pytest.raises(ConfigError, match=r"--endpoints.*'nope'"):
        StaticEndpoints("a:1,nope")


def test_an_unwatched_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(entries("a", "b"))
    pool = Pool()
    asyncio.run(EndpointsFile(path, watch=False).run(pool))
    assert ids(pool) == ["a", "b"]
    assert pool.synced


@pytest.mark.parametrize(
    "text", [None, "{", entries("a") + "- {name: b}\n"], ids=["no file", "no YAML", "a bad entry"]
)
def test_a_bad_file_at_the_start_is_an_error_that_names_it(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "endpoints.yaml"
    if text is not None:
        path.write_text(text)
    pool = Pool()
    with pytest.raises(ConfigError, match=r"endpoints\.yaml"):
        asyncio.run(EndpointsFile(path).run(pool))
    assert not pool.synced
    assert len(pool) == 0


def test_changes_are_followed_and_what_stays_keeps_its_load(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(entries("a", "b"))
    pool, heard = Pool(), []
    forgotten: list[EndpointId] = []
    pool.on_forget(forgotten.append)

    async def main() -> None:
        async with running(follow(path, pool, heard).run(pool)):
            await until(lambda: ids(pool) == ["a", "b"])
            pool.set_load(EndpointId("a.svc:80"), build.load(queued=5))
            path.write_text(entries("a", "c"))
            await until(lambda: ids(pool) == ["a", "c"])

    asyncio.run(main())
    kept = pool.get(EndpointId("a.svc:80"))
    assert kept is not None
    assert kept.load is not None
    assert kept.load.queued == 5
    assert forgotten == ["b.svc:80"]
    assert heard == []


def test_a_bad_file_later_changes_nothing_and_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(entries("a"))
    pool, heard = Pool(), []

    async def main() -> None:
        async with running(follow(path, pool, heard).run(pool)):
            await until(lambda: ids(pool) == ["a"])
            path.write_text("endpoints: [oh")
            await until(lambda: len(heard) == 1)
            path.unlink()
            await until(lambda: len(heard) == 2)
            await asyncio.sleep(0.05)  # five more looks: nothing is said twice
            assert len(heard) == 2
            assert ids(pool) == ["a"]
            path.write_text(entries("b"))
            await until(lambda: ids(pool) == ["b"])

    asyncio.run(main())
    assert "endpoints.yaml" in heard[0]


def test_a_pipe_in_the_files_place_is_reported_and_not_waited_for(tmp_path: Path) -> None:
    path, pipe, good = (tmp_path / name for name in ("endpoints.yaml", "pipe", "good"))
    path.write_text(entries("a"))
    good.write_text(entries("b"))
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # closed at the end: whoever waits for the pipe gets on
    pool, heard = Pool(), list[str]()

    async def main() -> None:
        async with running(follow(path, pool, heard).run(pool)):
            await until(lambda: ids(pool) == ["a"])
            pipe.replace(path)
            try:
                await until(lambda: heard)
                good.replace(path)
                await until(lambda: ids(pool) == ["b"])
            finally:
                os.close(writer)

    asyncio.run(main())
    assert "no file any more; the endpoints stay as they were" in heard[0]


def test_a_config_maps_symlink_swap_is_seen(tmp_path: Path) -> None:
    for version, name in (("v1", "a"), ("v2", "b")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "endpoints.yaml").write_text(entries(name))
    (tmp_path / "data").symlink_to(tmp_path / "v1")
    path = tmp_path / "endpoints.yaml"
    path.symlink_to(tmp_path / "data" / "endpoints.yaml")
    pool, heard = Pool(), []

    async def main() -> None:
        async with running(follow(path, pool, heard).run(pool)):
            await until(lambda: ids(pool) == ["a"])
            (tmp_path / "next").symlink_to(tmp_path / "v2")
            (tmp_path / "next").rename(tmp_path / "data")
            await until(lambda: ids(pool) == ["b"])

    asyncio.run(main())


def test_another_name_at_the_same_address_is_another_endpoint() -> None:
    pool = Pool()
    forgotten: list[EndpointId] = []
    pool.on_forget(forgotten.append)
    old = build.endpoint("old", host="10.0.0.1", queued=5)
    new = build.endpoint("new", host="10.0.0.1", queued=None)
    same = EndpointId("10.0.0.1:8000")
    old, new = (type(e)(same, e.host, e.port, e.name, load=e.load) for e in (old, new))
    apply(pool, (), (old,))
    apply(pool, (old,), (new,))
    assert forgotten == [same]
    assert pool.snapshot() == (new,)
