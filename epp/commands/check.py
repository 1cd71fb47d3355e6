"""Checks configurations for ``epp check``: is it right, and what does it mean."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from epp.build import Parts, configure
from epp.catalog import Catalog
from epp.clock import SystemClock
from epp.config.decode import MAX_BYTES
from epp.config.load import Loaded
from epp.errors import ConfigError
from epp.ledger import Ledger
from epp.pipeline import Pipeline
from epp.pool import Pool


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is said of one file."""

    file: str
    ok: bool
    error: str = ""
    warnings: tuple[str, ...] = ()
    config: dict[str, Any] | None = None  #: as it will be used
    profiles: dict[str, dict[str, Any]] | None = None  #: what each does, in order


def check(
    files: Sequence[str],
    *,
    allow_experimental: bool = False,
    plugin_paths: Sequence[str] = (),
    output: str = "text",
) -> int:
    """Check ``files`` and print what is found; return 1 if any is wrong."""
    catalog = Catalog(plugin_paths)
    reports = [_report(file, catalog, allow_experimental=allow_experimental) for file in files]
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode(reports)).decode())  # noqa: T201
    else:
        print("\n\n".join(_text(report) for report in reports))  # noqa: T201
    return 0 if all(report.ok for report in reports) else 1


def _report(file: str, catalog: Catalog, *, allow_experimental: bool) -> Report:
    clock = SystemClock()
    parts = Parts(
        clock=clock,
        random=random.Random(),
        ledger=Ledger(),
        pool=Pool(),
        catalog=catalog,
        allow_experimental=allow_experimental,
    )
    try:
        with Path(file).open("rb") as source:
            text = source.read(MAX_BYTES + 1).decode()  # a device may have no end
        loaded, pipeline = configure(text, parts, source=file)
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        return Report(file, ok=False, error=str(error))
    return _good(file, loaded, pipeline)


def _good(file: str, loaded: Loaded, pipeline: Pipeline) -> Report:
    names = {id(made): name for name, made in pipeline.plugins.items()}
    profiles = {
        profile.name: {
            "filters": [names[id(each)] for each in profile.filters],
            "scorers": {names[id(each)]: weight for each, weight in profile.scorers},
            "picker": names[id(profile.picker)],
        }
        for profile in pipeline.scheduler.profiles.values()
    }
    return Report(
        file,
        ok=True,
        warnings=(*loaded.warnings, *pipeline.warnings),
        config=msgspec.to_builtins(loaded.config),
        profiles=profiles,
    )


def _text(report: Report) -> str:
    if not report.ok:
        return f"{report.file}: ERROR\n  {report.error}"
    lines = [f"{report.file}: OK", *(f"  warning: {warning}" for warning in report.warnings)]
    for name, does in (report.profiles or {}).items():
        lines.append(f"  profile {name!r}:")
        lines.append(f"    filters  {' > '.join(does['filters']) or 'none: every ready endpoint'}")
        weights = [f"{weight:g} x {scorer}" for scorer, weight in does["scorers"].items()]
        lines.append(f"    scores   {' + '.join(weights) or 'none: all are equal'}")
        lines.append(f"    picks    {does['picker']}")
    lines.append("  used as:")
    used = msgspec.yaml.encode(report.config).decode()
    lines += [f"    {line}" for line in used.splitlines()]
    return "\n".join(lines)
