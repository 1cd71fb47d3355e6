"""The documented plugin of one's own works as documented."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from epp import cli
from epp.build import Parts, configure
from epp.catalog import Catalog
from epp.clock import ManualClock
from epp.ledger import Ledger
from epp.pool import Pool
from epp.reference import plugins
from tests.support import build

FILE = Path(__file__).resolve().parents[2] / "data/plugins/zone_scorer.py"
CONFIG = "plugins:\n  - type: zone-scorer\n    parameters: {zone: eu-1}\n"
LABEL = "topology.kubernetes.io/zone"
ENTRY_POINT = "[epp.plugins]\nzone-scorer = my_package_of_a_test:ZoneScorer\n"


def chosen(catalog: Catalog) -> list[str]:
    parts = Parts(ManualClock(), build.tools().random, Ledger(), Pool(), catalog=catalog)
    _, pipeline = configure(CONFIG, parts)
    endpoints = [build.endpoint("far", labels={LABEL: "us-1"}),
                 build.endpoint("near", labels={LABEL: "eu-1"}),
                 build.endpoint("nowhere")]  # fmt: skip
    pick = pipeline.scheduler.pick(build.request(), endpoints)
    return [each.name for each in pick.endpoints]


def test_the_page_shows_the_file_that_is_tested_here() -> None:
    assert f"```python\n{FILE.read_text().rstrip()}\n```" in plugins.page()
    assert CONFIG in plugins.page()


def test_a_file_given_by_path_decides() -> None:
    assert chosen(Catalog([str(FILE)])) == ["near"]


def test_an_entry_point_of_an_installed_package_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_package_of_a_test.py").write_text(FILE.read_text())
    installed = tmp_path / "my_package_of_a_test-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(ENTRY_POINT)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    assert chosen(Catalog()) == ["near"]


def test_epp_check_takes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    assert cli.main(["check", str(config)]) == 1
    assert "unknown plugin type 'zone-scorer'" in capsys.readouterr().out
    assert cli.main(["check", "--plugin-path", str(FILE), str(config)]) == 0
    assert "1 x zone-scorer" in capsys.readouterr().out
