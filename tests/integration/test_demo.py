"""``epp demo`` that is told to end: nothing that it has started goes on. Out: its figures."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from epp.local.processes import epp
from tests.support.process import eventually

MARK = "EPP_TEST_MARK"


def of(mark: str) -> list[str]:
    """Names of the processes that were started with ``mark`` in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "comm").read_text().strip())
        except OSError:
            continue  # it has ended
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_demo_that_is_told_to_end_leaves_nothing_running(
    number: signal.Signals, tmp_path: Path
) -> None:
    mark = str(uuid.uuid4())
    with (tmp_path / "out").open("wb") as out:
        demo = subprocess.Popen(
            epp("demo", f"--output={tmp_path / 'figures.json'}"), stdout=out, stderr=out,
            env={**os.environ, MARK: mark}, cwd=tmp_path,
        )  # fmt: skip
        try:
            eventually(lambda: len(of(mark)) >= 4, 60.0, "the demo and three engines")
            demo.send_signal(number)
            assert demo.wait(30.0) == 130
        finally:
            demo.kill()
    eventually(lambda: not of(mark), 10.0, "the end of all")
    assert "nothing is left running" in (tmp_path / "out").read_text()
