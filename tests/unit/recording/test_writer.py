"""The thread that writes: full files are put aside, nobody waits, and what is dropped is counted."""

from __future__ import annotations

import gzip
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from epp.errors import ConfigError
from epp.recording.writer import QUEUED, RollingFile, Writer
from tests.support.process import eventually


def line(number: int) -> bytes:
    return f"{number:09d}\n".encode()


def written(folder: Path) -> list[int]:
    """All numbers in the file and those put aside, the oldest first."""
    aside = sorted(folder.glob("*.gz"), key=lambda path: -int(path.name.split(".")[-2]))
    data = b"".join(gzip.decompress(path.read_bytes()) for path in aside)
    return [int(each) for each in (data + (folder / "r").read_bytes()).split()]


def writer(
    folder: Path, encode: Callable[[int], bytes] = line, *, most_bytes: int = 10**9, kept: int = 3
) -> Writer[int]:
    return Writer(RollingFile(folder / "r", most_bytes, kept), encode)


def test_all_that_is_handed_in_is_written_in_order(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.start()
    for number in range(500):
        made.put(number)
    made.stop()
    assert written(tmp_path) == list(range(500))
    assert (made.written, made.overflowed, made.failed) == (500, 0, 0)


def test_full_files_are_compressed_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    made = writer(tmp_path, most_bytes=100, kept=2)  # ten lines each
    made.start()
    for number in range(45):
        made.put(number)
    made.stop()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "r.1.gz", "r.2.gz", "r.lock"]
    assert written(tmp_path) == list(range(20, 45))


def test_a_file_is_continued_after_a_restart(tmp_path: Path) -> None:
    for number in (1, 2):
        made = writer(tmp_path)
        made.start()
        made.put(number)
        made.stop()
    assert written(tmp_path) == [1, 2]


def test_a_line_that_was_cut_off_by_a_crash_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(line(1) + line(2)[:4])
    made = writer(tmp_path)
    made.start()
    made.put(3)
    made.stop()
    assert (tmp_path / "r").read_bytes() == line(1) + line(2)[:4] + b"\n" + line(3)


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    made = writer(tmp_path, most_bytes=10)
    made.start()
    made.put(1)
    made.put(2)
    made.stop()
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_two_do_not_write_one_file(tmp_path: Path) -> None:
    first = writer(tmp_path)
    first.start()
    with pytest.raises(ConfigError, match="another picker records there"):
        writer(tmp_path).start()
    first.stop()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot record: .*nowhere"):
        Writer(RollingFile(tmp_path / "nowhere" / "r", 1, 1), line).start()


def test_a_stuck_disk_holds_nobody_up_and_what_is_dropped_is_counted(tmp_path: Path) -> None:
    stuck, go_on = threading.Event(), threading.Event()

    def encode(number: int) -> bytes:
        stuck.set()
        assert go_on.wait(20.0)
        return line(number)

    made = writer(tmp_path, encode)
    made.start()
    made.put(0)
    assert stuck.wait(10.0)
    for number in range(1, QUEUED + 101):
        made.put(number)  # would wait here for ever
    assert made.overflowed == 100
    go_on.set()
    made.stop()
    assert written(tmp_path) == list(range(QUEUED + 1))


def test_an_error_of_the_disk_is_counted_and_the_next_lines_are_written(tmp_path: Path) -> None:
    made = writer(tmp_path, most_bytes=25, kept=1)  # two lines a file
    made.start()
    made.put(1)
    made.put(2)
    eventually(lambda: made.written == 2)
    (tmp_path / "r.1.gz").mkdir()  # where the full file would go
    made.put(3)
    eventually(lambda: made.failed == 1)
    (tmp_path / "r.1.gz").rmdir()
    made.put(4)
    made.stop()
    assert made.written == 3
    assert written(tmp_path)[-1] == 4


def test_an_item_that_cannot_be_encoded_is_counted_and_no_more(tmp_path: Path) -> None:
    def encode(number: int) -> bytes:
        if number == 1:
            raise RuntimeError("what was said")
        return line(number)

    made = writer(tmp_path, encode)
    made.start()
    for number in range(3):
        made.put(number)
    made.stop()
    assert written(tmp_path) == [0, 2]
    assert (made.failed, made.last_error) == (1, "RuntimeError")
