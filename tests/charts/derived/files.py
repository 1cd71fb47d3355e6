"""The chart's files that follow from others; ``python -m tests.charts.derived`` writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from epp.gateway.options import GatewayOptions
from epp.gateway.render import dumped, render
from tests.charts.derived.documented import Value, translations, values
from tests.charts.derived.lean import Lean, manifests
from tests.charts.derived.schema import schema
from tests.support.chart import CHART

BOOTSTRAPS = {
    f"envoy-{mode}-{placement}.yaml": GatewayOptions(
        mode=mode, listen_host="0.0.0.0", picker_host=host, picker_tls=placement == "service"
    )
    for mode in ("lean", "stock")
    for placement, host in (("sidecar", "127.0.0.1"), ("service", "picker.invalid"))
}


def derived() -> dict[Path, str]:
    """Return each file that follows from others, with the text it should have."""
    readme, answers = CHART / "README.md", Lean(tls=True).answers
    text = _replace(readme.read_text(), "values", _values_table())
    return {
        CHART / "values.schema.json": json.dumps(schema(), indent=1) + "\n",
        readme: _replace(text, "translations", _translations_table()),
        **manifests(),
        **{CHART / "files" / name: _bootstrap(each) for name, each in BOOTSTRAPS.items()},
        CHART / "files/envoy-lean-ttft-filters.yaml": dumped(answers[2:]),
        CHART / "files/envoy-lean-usage-filters.yaml": dumped(answers[:2]),
    }


def _bootstrap(options: GatewayOptions) -> str:
    command = (
        f"# epp gateway --mode {options.mode} --listen-host {options.listen_host} "
        f"--picker-host {options.picker_host} --picker-tls={str(options.picker_tls).lower()}\n"
    )
    return command + render(options)


def _replace(text: str, name: str, table: str) -> str:
    begin, end = f"<!-- {name}: made, do not edit -->", f"<!-- end of {name} -->"
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    replaced, count = re.subn(pattern, lambda _: f"{begin}\n{table}{end}", text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"README.md has {count} parts named {name!r}")
    return replaced


def _values_table() -> str:
    rows = [f"| `{each.path}` | {_default(each)} | {each.says} |\n" for each in values()]
    return "".join(["| value | default | what |\n", "| --- | --- | --- |\n", *rows])


def _default(value: Value) -> str:
    if isinstance(value.default, dict) and value.default and "." not in value.path:
        return ""
    return f"`{value.text()}`"


def _translations_table() -> str:
    rows = []
    for each in translations():
        came = ", ".join(f"`{path}`" for path in each.came)
        read = "".join(f"; {json.dumps(k)} is {json.dumps(v)}" for k, v in each.read.items())
        rows.append(f"| {came} | {f'`{each.to}`{read}' if each.to else each.ignored} |\n")
    return "".join(["| there | here, or why it changes nothing |\n", "| --- | --- |\n", *rows])
