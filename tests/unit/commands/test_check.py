"""``epp check``: whether configurations are right, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from epp.cli import main
from epp.commands.check import check
from epp.errors import ConfigError

GOOD = """
plugins:
- {type: label-selector-filter, name: zone, parameters: {matchLabels: {zone: x}}}
- {type: queue-scorer}
- {type: prefix-cache-scorer}
schedulingProfiles:
- name: near
  plugins:
  - {pluginRef: zone}
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 0.5}
"""
OLD = "apiVersion: inference.networking.x-k8s.io/v1alpha1\nplugins: [{type: queue-scorer}]\n"
IGNORED = "plugins: [{type: local-syncer}, {type: queue-scorer}]\n"
BAD = "plugins: [{type: quue-scorer}]\n"


def written(folder: Path, **texts: str) -> list[str]:
    paths = []
    for name, text in texts.items():
        path = folder / f"{name}.yaml"
        path.write_text(text)
        paths.append(str(path))
    return paths


def as_json(capsys: pytest.CaptureFixture[str], files: list[str], **more: Any) -> list[Any]:
    check(files, output="json", **more)
    reports: list[Any] = msgspec.json.decode(capsys.readouterr().out)
    return reports


def test_a_good_file_is_ok_and_says_what_each_profile_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = written(tmp_path, good=GOOD)
    assert check([file]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        f"{file}: OK",
        "  profile 'near':",
        "    filters  zone",
        "    scores   2 x queue-scorer + 0.5 x prefix-cache-scorer",
        "    picks    max-score-picker",
    ]
    assert lines[5] == "  used as:"
    assert "    - type: approx-prefix-cache-producer" in lines


def test_what_it_prints_as_used_is_a_configuration_that_means_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = written(tmp_path, good=GOOD)
    assert check([file]) == 0
    first = capsys.readouterr().out
    used = first.partition("  used as:\n")[2]
    (again,) = written(tmp_path, again="\n".join(line[4:] for line in used.splitlines()))
    assert check([again]) == 0
    assert capsys.readouterr().out == first.replace(file, again)


def test_a_profile_without_filters_and_scorers_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(written(tmp_path, random="plugins: [{type: random-picker}]"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:5] == [
        "    filters  none: every ready endpoint",
        "    scores   none: all are equal",
        "    picks    random-picker",
    ]


def test_an_empty_file_is_the_default_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (report,) = as_json(capsys, written(tmp_path, empty=""))
    assert report["ok"] is True
    assert report["profiles"]["default"] == {
        "filters": [],
        "scorers": {
            "queue-scorer": 2.0,
            "kv-cache-utilization-scorer": 2.0,
            "prefix-cache-scorer": 3.0,
            "in-flight-load-scorer": 80.0,
        },
        "picker": "max-score-picker",
    }


def test_warnings_are_told_and_are_no_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = written(tmp_path, old=OLD, ignored=IGNORED)
    assert check(files) == 0
    out = capsys.readouterr().out
    assert (
        "  warning: plugin 'local-syncer' is ignored: --peers makes pickers tell each other" in out
    )
    assert "inference.networking.x-k8s.io/v1alpha1" in out
    old, ignored = as_json(capsys, files)
    assert len(old["warnings"]) == 1
    assert len(ignored["warnings"]) == 1


def test_one_wrong_file_among_several_is_told_with_its_place_and_fails_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, old = written(tmp_path, good=GOOD, bad=BAD, old=OLD)
    assert check([good, bad, old]) == 1
    blocks = capsys.readouterr().out.split("\n\n")
    assert blocks[0].startswith(f"{good}: OK\n")
    assert blocks[1] == (
        f"{bad}: ERROR\n  unknown plugin type 'quue-scorer', did you mean 'queue-scorer'? - at "
        "`$.plugins[0].type`"
    )
    assert blocks[2].startswith(f"{old}: OK\n")


@pytest.mark.parametrize("kind", ["missing", "folder", "binary"])
def test_a_file_that_cannot_be_read_is_an_error_of_that_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    files = [str(path), *written(tmp_path, good=GOOD)]
    wrong, good = as_json(capsys, files)
    assert wrong["ok"] is False
    assert wrong["error"]
    assert good["ok"] is True
    assert check(files) == 1


def test_json_has_the_configuration_as_it_will_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = as_json(capsys, written(tmp_path, good=GOOD, bad=BAD))
    assert good["profiles"]["near"]["filters"] == ["zone"]
    types = [each["type"] for each in good["config"]["plugins"]]
    assert types[:3] == ["label-selector-filter", "queue-scorer", "prefix-cache-scorer"]
    assert {"approx-prefix-cache-producer", "max-score-picker", "openai-parser"} <= set(types)
    assert set(bad) == {"file", "ok", "error"}


def test_experimental_plugins_must_be_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from epp import plugin\n"
        "class Own:\n"
        "    type = 'own-scorer'\n"
        "    stability = 'alpha'\n"
        "    class Params(plugin.Params, frozen=True): ...\n"
        "    def __init__(self, params, tools): ...\n"
        "    def score(self, request, endpoints): return [0.0] * len(endpoints)\n"
    )
    files = written(tmp_path, own="plugins: [{type: own-scorer}]")
    assert check(files, plugin_paths=[str(own)]) == 1
    assert "--allow-experimental-plugins" in capsys.readouterr().out
    assert check(files, plugin_paths=[str(own)], allow_experimental=True) == 0
    assert "1 x own-scorer" in capsys.readouterr().out


def test_a_plugin_file_that_cannot_be_loaded_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a Python file"):
        check(written(tmp_path, good=GOOD), plugin_paths=[str(tmp_path / "none.py")])


def test_the_command_line_returns_what_check_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = written(tmp_path, good=GOOD, bad=BAD)
    assert main(["check", good]) == 0
    assert main(["check", good, bad]) == 1
    assert main(["check", "--plugin-path", str(tmp_path / "none.py"), good]) == 2
    said = capsys.readouterr().err
    assert said.startswith("epp check: plugin file ")
    assert said.count("\n") == 1


def test_a_file_without_an_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "/dev/zero"]) == 1
    assert "more than 1048576" in capsys.readouterr().out + capsys.readouterr().err
