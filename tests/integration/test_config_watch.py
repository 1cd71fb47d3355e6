"""A watched file: rewritten, swapped as a ConfigMap's is, deleted, brought back."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from epp.config.watch import watch_file

INTERVAL = 0.01
BOUND = 5.0
QUIET = 0.3  #: seconds, many intervals, in which nothing may be told

Script = Callable[["Watched"], Awaitable[None]]


class Watched:
    """What the watch told: the file's content each time, as a reload would read it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[str] = []
        self.fault: Exception | None = None

    async def changed(self) -> None:
        self.told.append(self.path.read_text())
        if self.fault is not None:
            raise self.fault

    async def tells(self, *contents: str) -> None:
        """Wait until exactly these were told."""
        give_up = asyncio.get_running_loop().time() + BOUND
        while self.told != [*contents]:
            assert asyncio.get_running_loop().time() < give_up, self.told
            await asyncio.sleep(INTERVAL)

    async def stays_quiet(self) -> None:
        told = list(self.told)
        await asyncio.sleep(QUIET)
        assert self.told == told


def watch(path: Path, script: Script, used: bytes | None = None) -> Watched:
    """Run ``script`` beside a watch of ``path``."""

    async def main() -> Watched:
        watched = Watched(path)
        task = asyncio.create_task(
            watch_file(str(path), watched.changed, interval=INTERVAL, used=used)
        )
        await asyncio.sleep(0)  # it has read the file by then
        try:
            await script(watched)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return watched

    return asyncio.run(main())


def test_a_file_rewritten_in_place_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("one")

    async def script(watched: Watched) -> None:
        await watched.stays_quiet()
        path.write_text("two")
        await watched.tells("two")
        await watched.stays_quiet()
        path.write_text("six")  # as long as before
        await watched.tells("two", "six")

    watch(path, script)


def test_a_file_replaced_by_another_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("one")

    async def script(watched: Watched) -> None:
        other = tmp_path / "new"
        other.write_text("two")
        stamp = path.stat()
        os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # only the inode is new
        other.rename(path)
        await watched.tells("two")

    watch(path, script)


def test_a_configmap_s_swapped_link_is_told(tmp_path: Path) -> None:
    def publish(version: str, content: str) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / version / "config.yaml").write_text(content)
        link = tmp_path / "..data_tmp"
        link.symlink_to(version)
        link.rename(tmp_path / "..data")

    publish("..v1", "one")
    path = tmp_path / "config.yaml"
    path.symlink_to("..data/config.yaml")

    async def script(watched: Watched) -> None:
        publish("..v2", "two")
        await watched.tells("two")
        publish("..v3", "two")  # a new version of the map with this file as it was
        await watched.stays_quiet()
        publish("..v4", "three")
        await watched.tells("two", "three")

    watch(path, script)


def test_a_deleted_file_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("one")

    async def script(watched: Watched) -> None:
        path.unlink()
        await watched.stays_quiet()
        path.write_text("one")
        await watched.stays_quiet()  # back as it was
        path.unlink()
        path.write_text("two")
        await watched.tells("two")

    watch(path, script)


def test_a_file_that_is_not_there_yet_is_told_when_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"

    async def script(watched: Watched) -> None:
        await watched.stays_quiet()
        path.write_text("one")
        await watched.tells("one")

    watch(path, script)


def test_touching_a_file_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("one")

    async def script(watched: Watched) -> None:
        path.touch()
        await watched.stays_quiet()

    assert watch(path, script).told == []


def test_a_file_being_written_is_read_only_when_it_is_at_rest(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("one")

    async def script(watched: Watched) -> None:
        with path.open("w") as file:
            for letter in "a long one":
                file.write(letter)
                file.flush()
                await asyncio.sleep(INTERVAL)
        await watched.tells("a long one")

    watch(path, script)


def test_a_failing_reload_does_not_end_the_watch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("one")

    async def script(watched: Watched) -> None:
        watched.fault = RuntimeError("no")
        path.write_text("two")
        await watched.tells("two")
        watched.fault = None
        path.write_text("three")
        await watched.tells("two", "three")

    with caplog.at_level(logging.ERROR):
        watch(path, script)
    assert [r.message for r in caplog.records] == [
        f"reloading after a change of {path} failed"
    ]  # fmt: skip


def test_a_change_between_reading_and_watching_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("two")

    async def script(watched: Watched) -> None:
        await watched.tells("two")
        await watched.stays_quiet()

    watch(path, script, used=b"one")


def test_a_file_as_it_was_read_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("one")

    async def script(watched: Watched) -> None:
        await watched.stays_quiet()

    assert watch(path, script, used=b"one").told == []


def test_a_pipe_is_read_once_only() -> None:
    """``--config-file <(command)``: what is read again is empty, and that is a valid one."""
    reading, writing = os.pipe()
    os.close(writing)
    try:
        watch(Path(f"/dev/fd/{reading}"), lambda watched: watched.stays_quiet(), used=b"one")
    finally:
        os.close(reading)
