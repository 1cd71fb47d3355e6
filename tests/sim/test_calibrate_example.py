"""The documented example of a log, run as it is written: what it says is what comes of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

PAGE = Path(__file__).parents[2] / "docs/simulator.md"


def test_the_example_of_a_log_gives_what_the_page_says(tmp_path: Path) -> None:
    (script,) = re.findall(r"```bash\n(cat > h100\.yaml.*?)```", PAGE.read_text(), re.DOTALL)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "# WARNING: decode is not identified" in done.stdout
    found = msgspec.json.decode((tmp_path / "found.json").read_bytes())
    assert found["numbers"]["prefill"] == pytest.approx(28 / 20.2, rel=0.02)
    assert found["numbers"]["request"] == pytest.approx(0.030, abs=0.003)
    assert [each.split(":")[0] for each in found["warnings"]] == ["decode is not identified"]
    assert list(found["after"]["classes"]) == ["chat", "documents"]
