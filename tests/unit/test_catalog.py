"""Which plugin types there are, and how users bring their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from epp.catalog import BUILT_IN, NOT_YET, Catalog, kinds_of, stability
from epp.errors import ConfigError

OWN = """
from epp import plugin

class Helper:
    pass

class Likes:
    type = "likes-scorer"
    class Params(plugin.Params, frozen=True):
        name: str = "a"
    def __init__(self, params, tools):
        self.liked = params.name
    def score(self, request, endpoints):
        return [1.0 if each.name == self.liked else 0.0 for each in endpoints]
    def filter(self, request, endpoints):
        return endpoints
"""

#: accepted because configurations name them: what they did is done elsewhere
DO_NOTHING = {
    "disagg-headers-handler",
    "prefill-header-handler",
    "inflight-load-producer",
}


def written(folder: Path, text: str, name: str = "own.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def refused(*paths: str) -> str:
    with pytest.raises(ConfigError) as raised:
        Catalog(paths)
    return str(raised.value)


@pytest.mark.parametrize("class_", BUILT_IN, ids=lambda each: each.type)
def test_every_built_in_type_has_a_class_with_parameters_and_a_kind(class_: Any) -> None:
    catalog = Catalog()
    assert catalog.get(class_.type) is class_
    assert msgspec.inspect.type_info(class_.Params)
    assert bool(catalog.kinds(class_.type)) is (class_.type not in DO_NOTHING)
    assert stability(class_) in ("alpha", "beta", "stable")
    assert class_.type not in catalog.foreign


def test_no_two_built_in_classes_have_the_same_type() -> None:
    types = [each.type for each in BUILT_IN]  # type: ignore[attr-defined]
    assert len(types) == len(set(types))


@pytest.mark.parametrize(
    ("type_", "kinds"),
    [
        ("queue-scorer", {"scorer"}),
        ("max-score-picker", {"picker"}),
        ("single-profile-handler", {"handler"}),
        ("openai-parser", {"parser"}),
        ("approx-prefix-cache-producer", {"producer", "observer"}),
        ("metrics-data-source", {"source"}),
        ("utilization-detector", {"detector", "filter"}),
    ],
)
def test_a_type_is_of_the_kinds_whose_methods_it_has(type_: str, kinds: set[str]) -> None:
    assert Catalog().kinds(type_) == kinds


def test_an_unknown_type_has_no_class_and_no_kind() -> None:
    catalog = Catalog()
    assert catalog.get("quue-scorer") is None
    assert catalog.kinds("quue-scorer") == frozenset()
    assert kinds_of(None) == frozenset()


def test_types_that_are_not_supported_are_known_but_have_no_class() -> None:
    catalog = Catalog()
    for type_, not_yet in NOT_YET.items():
        assert catalog.get(type_) is None, type_
        assert type_ in catalog.types()
        assert not_yet.policy in ("ignored", "refused")
        assert not_yet.why
        assert not not_yet.why.endswith(".")


def test_a_file_brings_its_classes_with_a_type(tmp_path: Path) -> None:
    catalog = Catalog([written(tmp_path, OWN)])
    assert catalog.foreign == {"likes-scorer"}
    assert catalog.kinds("likes-scorer") == {"scorer", "filter"}
    assert "likes-scorer" in catalog.types()


def test_an_imported_class_is_not_the_files_own(tmp_path: Path) -> None:
    text = "from epp.schedule.scorers import SCORERS\nQueue = SCORERS[0]\n" + OWN
    assert Catalog([written(tmp_path, text)]).foreign == {"likes-scorer"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("def broken(:\n", "SyntaxError", id="no Python"),
        pytest.param("import nowhere_to_be_found\n", "ModuleNotFoundError", id="an import"),
        pytest.param("raise RuntimeError('boom')\n", "RuntimeError: boom", id="it raises"),
        pytest.param("import sys\nsys.exit(3)\n", "SystemExit: 3", id="it exits"),
        pytest.param("class A:\n    pass\n", "no class with a `type`", id="nothing in it"),
        pytest.param("class A:\n    type = 'a'\n", "`Params`", id="no Params"),
        pytest.param(
            "class A:\n    type = 'a'\n    Params = 5\n", "`Params`", id="Params is no struct"
        ),
        pytest.param(
            OWN.replace("def score", "def scroe").replace("def filter", "def fitler"),
            "plugin 'likes-scorer' has no method",
            id="no method of a plugin",
        ),
        pytest.param(OWN.replace("likes-", "queue-"), "'queue-scorer' is taken", id="built in"),
        pytest.param(
            OWN.replace("likes-scorer", "latency-scorer"),
            "'latency-scorer' is taken",
            id="reserved",
        ),
        pytest.param(OWN + OWN.replace("Likes", "Other"), "'likes-scorer' is taken", id="twice"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    message = refused(path)
    assert path in message
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["missing.py", "plugin.txt", "."])
def test_what_is_not_a_python_file_is_refused(tmp_path: Path, name: str) -> None:
    if name == "plugin.txt":
        written(tmp_path, OWN, name)
    assert "is not a Python file" in refused(str(tmp_path / name))


def test_two_files_of_one_name_are_both_loaded(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    other = OWN.replace("likes-scorer", "hates-scorer")
    paths = [written(tmp_path, OWN), written(tmp_path / "b", other)]
    assert Catalog(paths).foreign == {"likes-scorer", "hates-scorer"}


def installed(folder: Path, module: str, target: str) -> None:
    """Lay out what an installed distribution with one entry point looks like."""
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[epp.plugins]\nlikes = {target}\n")


def test_an_installed_package_brings_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, OWN, "likes_package.py")
    installed(tmp_path, "likes_package", "likes_package:Likes")
    monkeypatch.syspath_prepend(str(tmp_path))
    catalog = Catalog()
    assert catalog.foreign == {"likes-scorer"}
    assert catalog.kinds("likes-scorer") == {"scorer", "filter"}


@pytest.mark.parametrize("target", ["likes_gone:Likes", "likes_gone.nothing:Likes"])
def test_a_broken_entry_point_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    installed(tmp_path, "likes_gone", target)
    monkeypatch.syspath_prepend(str(tmp_path))
    message = refused()
    assert "plugin entry point 'likes'" in message
    assert "ModuleNotFoundError" in message
