"""``docs/plugins.md``: every plugin with its parameters, and how to write one."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from epp import plugin
from epp.catalog import stability
from epp.reference.comments import paragraphs
from epp.reference.examples import yaml_of
from epp.reference.groups import GROUPS, Group
from epp.reference.parameters import Parameter, parameters_of
from epp.wrap import guard

OWN_PLUGIN = Path(__file__).resolve().parents[2] / "tests/data/plugins/zone_scorer.py"
PROTOCOLS = (
    plugin.Filter,
    plugin.Scorer,
    plugin.Picker,
    plugin.ProfileHandler,
    plugin.Screener,
    plugin.Admitter,
    plugin.Preparer,
    plugin.Enricher,
    plugin.Observer,
    plugin.Sharer,
    plugin.Decider,
    plugin.SaturationDetector,
    plugin.RequestHeaderAdder,
    plugin.AnswerHeaderAdder,
    plugin.AnswerReporter,
    plugin.PoolWatcher,
    plugin.StateDumper,
)

PIPE = r"\|"  #: inside a cell

HEAD = """\
# Plugins

Made from the code by `make docs`; do not edit.

A configuration names plugins by type and gives them parameters; profiles refer to them by name.
Unknown types and parameters are refused with the nearest known one. Types marked *alpha* need
`--allow-experimental-plugins`. `epp check FILE` says what a configuration means. For completion
in an editor begin the file with

    # yaml-language-server: $schema=docs/config.schema.json

An endpoint whose load is not known never scores better than one whose load is.
"""

OWN = """\
## Your own plugin

A plugin is a class with a `type`, a `Params` struct and a constructor `(params, tools)`. Its
methods decide what it is. This file is a whole scorer:

```python
{source}
```

    epp serve --plugin-path zone_scorer.py --config-file config.yaml

```yaml
plugins:
  - type: zone-scorer
    parameters: {{zone: eu-1}}
```

An installed package offers the same class as an entry point, and needs no `--plugin-path`:

```toml
[project.entry-points."epp.plugins"]
zone-scorer = "my_package.zone_scorer:ZoneScorer"
```

Fields of `Params` are camelCase in YAML. `tools` has the clock, the random source, what is in
flight by endpoint, and the plugins that this one names. Calls of your plugin are guarded: one that
raises, takes longer than {budget:g} ms or returns the wrong shape has no say in that request, and
after {faults} such calls of a method in a row the plugin rests for {rest:g} s
(`epp_plugin_faults_total` counts them). To refuse a request, raise an error of `epp.errors`.

| method | what it does |
| --- | --- |
{methods}
"""


def page() -> str:
    """Return the text of ``docs/plugins.md``."""
    sections = [_section(group) for group in GROUPS]
    return "\n".join([HEAD, _contents(), *sections, _own_plugin()])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(_line(cells) for cells in lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', PIPE) for cell in cells)} |"


def _contents() -> str:
    lines = [
        f"* [{group.title}](#{group.title.lower().replace(' ', '-')}): "
        + ", ".join(f"[{each.type}](#{each.type})" for each in group.classes)
        for group in GROUPS
    ]
    return "\n".join([*lines, "* [Your own plugin](#your-own-plugin)", ""])


def _section(group: Group) -> str:
    entries = [_entry(each) for each in group.classes]
    return "\n".join([f"## {group.title}", "", group.does, "", *entries])


def _entry(class_: Any) -> str:
    first, *rest = paragraphs(class_)
    alpha = " *(alpha)*" if stability(class_) == "alpha" else ""
    parts = [f"### {class_.type}", first + alpha, *rest]
    rows = parameters_of(class_.Params)
    parts += [_parameters(rows)] if rows else []
    parts.append(f"```yaml\n{yaml_of(class_.type)}\n```")
    return "\n\n".join(parts) + "\n"


def _parameters(rows: Sequence[Parameter]) -> str:
    cells = [(f"`{row.name}`", row.type, row.default, row.meaning) for row in rows]
    return table(("parameter", "type", "default", "meaning"), cells)


def _own_plugin() -> str:
    source = OWN_PLUGIN.read_text(encoding="utf-8").rstrip()
    methods = [_method(each) for each in PROTOCOLS]
    return OWN.format(
        source=source,
        methods="\n".join(methods),
        budget=guard.BUDGET_SECONDS * 1000,
        faults=guard.FAULTS_IN_A_ROW,
        rest=guard.REST_SECONDS,
    )


def _method(protocol: Any) -> str:
    own = [name for name in vars(protocol) if inspect.isfunction(vars(protocol)[name])]
    calls = ", ".join(
        f"`{name}({', '.join(list(inspect.signature(vars(protocol)[name]).parameters)[1:])})`"
        for name in own
        if not name.startswith("_")
    )
    return f"| {calls} | {paragraphs(protocol)[0]} |"
