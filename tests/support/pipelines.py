"""Pipelines built from configurations, one user's plugin included."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from epp.build import Parts, configure
from epp.catalog import Catalog
from epp.clock import ManualClock
from epp.errors import ConfigError
from epp.ledger import Ledger
from epp.pipeline import Pipeline
from epp.pool import Pool

OWN = """
from epp import plugin

class Counting:
    type = "counting-scorer"
    class Params(plugin.Params, frozen=True):
        fail: str = ""
        helper: str = ""
    @staticmethod
    def refs(params):
        if params.fail == "refs":
            raise RuntimeError("refs are broken")
        return [params.helper] if params.helper else []
    def __init__(self, params, tools):
        if params.fail == "value":
            raise ValueError("fail must not be set")
        if params.fail == "bug":
            raise KeyError("oops")
        self.scored = 0
        self.fail = params.fail
        self.helper = tools.plugins.get(params.helper)
        self.forgotten = []
    def score(self, request, endpoints):
        self.scored += 1
        if self.fail == "score":
            raise RuntimeError("no score")
        return [0.5] * len(endpoints)
    def forget(self, endpoint_id):
        self.forgotten.append(endpoint_id)
    def __len__(self):
        return 0
    def dump_state(self):
        return {"scored": self.scored, "forgotten": len(self.forgotten),
                "helper": self.helper is not None}
"""

PLAIN = """
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: queue-scorer, weight: 0}
"""


class Timings:
    def __init__(self) -> None:
        self.decisions = 0
        self.calls: list[tuple[str, str, str]] = []

    def scheduled(self, seconds: float) -> None:
        self.decisions += 1

    def plugin_ran(self, point: str, kind: str, name: str, seconds: float) -> None:
        self.calls.append((point, kind, name))


class World:
    def __init__(self, folder: Path | None = None, **more: Any) -> None:
        paths = []
        if folder is not None:
            (folder / "own.py").write_text(OWN)
            paths = [str(folder / "own.py")]
        self.pool = Pool()
        self.faults: list[tuple[str, str]] = []
        self.parts = Parts(
            clock=ManualClock(),
            random=random.Random(0),
            ledger=Ledger(),
            pool=self.pool,
            catalog=Catalog(paths),
            on_fault=lambda name, kind: self.faults.append((name, kind)),
            **more,
        )

    def pipeline(self, text: str | None, previous: Pipeline | None = None) -> Pipeline:
        return configure(text, self.parts, previous=previous)[1]

    def error(self, text: str, previous: Pipeline | None = None) -> str:
        with pytest.raises(ConfigError) as raised:
            self.pipeline(text, previous)
        return str(raised.value)


def counting(**parameters: object) -> str:
    return (
        f"plugins: [{{type: counting-scorer, name: mine, parameters: {parameters!r}}}, "
        "{type: queue-scorer, name: other}]"
    )


def profile_names(pipeline: Pipeline) -> dict[str, Any]:
    names = {id(made): name for name, made in pipeline.plugins.items()}
    return {
        profile.name: (
            [names[id(each)] for each in profile.filters],
            [(names[id(each)], weight) for each, weight in profile.scorers],
            names[id(profile.picker)],
        )
        for profile in pipeline.scheduler.profiles.values()
    }
