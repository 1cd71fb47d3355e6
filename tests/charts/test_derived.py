"""Files of the chart that follow from others say what those say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from epp import __version__
from tests.charts.derived.documented import values
from tests.charts.derived.files import derived
from tests.support.chart import CHART

FILES = derived()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_fresh(path: Path) -> None:
    assert path.read_text() == FILES[path], "python -m tests.charts.derived writes it"


def test_the_chart_s_version_is_the_picker_s() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_every_value_is_read_by_some_template() -> None:
    templates = "".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))
    unread = [each.path for each in values() if each.path.rsplit(".", 1)[-1] not in templates]
    assert unread == []
