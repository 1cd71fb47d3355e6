"""The generated files: written, checked, complete."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from epp.catalog import BUILT_IN
from epp.reference import examples, plugins, schema
from epp.reference.__main__ import PAGES, main
from epp.reference.groups import GROUPS
from tests.support import build

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    assert main(["docs"], tmp_path) == 0
    return tmp_path


def test_what_was_written_passes_the_check(written: Path) -> None:
    assert main(["docs", "--check"], written) == 0


def test_the_check_names_the_stale_file_and_the_line(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = written / "docs/plugins.md"
    stale.write_text(stale.read_text().replace("# Plugins", "# Plug-ins", 1))
    capsys.readouterr()
    assert main(["docs", "--check"], written) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"{stale} is stale: run `make docs`")
    assert "-# Plug-ins\n+# Plugins" in said
    assert "compatibility" not in said


def test_the_check_names_a_missing_file_and_keeps_its_diff_short(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (written / "docs/config.schema.json").unlink()
    capsys.readouterr()
    assert main(["docs", "--check"], written) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith("config.schema.json is stale: run `make docs`")
    assert len(said) == 22
    assert "lines more" in said[-1]


def test_the_check_writes_nothing(written: Path) -> None:
    (written / "docs/plugins.md").write_text("old")
    main(["docs", "--check"], written)
    assert (written / "docs/plugins.md").read_text() == "old"


def test_the_pages_are_the_three_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [name for name in PAGES if name not in readme] == []


def test_the_groups_hold_every_built_in_plugin_once() -> None:
    grouped = [each for group in GROUPS for each in group.classes]
    assert sorted(each.type for each in grouped) == sorted(each.type for each in BUILT_IN)


def test_every_plugin_has_its_entry_in_the_contents_and_a_section() -> None:
    page = plugins.page()
    for class_ in BUILT_IN:
        assert f"[{class_.type}](#{class_.type})" in page
        assert f"\n### {class_.type}\n" in page


def made(type_: str, **others: object) -> object:
    """An instance with the parameters of its example, and those it refers to."""
    class_ = next(each for each in BUILT_IN if each.type == type_)
    params = msgspec.convert(examples.entry(type_).get("parameters", {}), class_.Params)
    refs = class_.refs(params) if hasattr(class_, "refs") else ()
    return class_(params, build.tools(plugins={name: made(name) for name in refs}))


@pytest.mark.parametrize("class_", BUILT_IN, ids=lambda class_: class_.type)
def test_a_plugin_can_be_built_from_its_example_unless_it_says_that_it_is_refused(
    class_: type,
) -> None:
    if schema.is_refused(class_):
        with pytest.raises(ValueError, match="not supported yet"):
            made(class_.type)
    else:
        assert isinstance(made(class_.type), class_)


def test_no_example_is_of_a_plugin_that_is_not_there() -> None:
    assert examples.EXAMPLES.keys() <= {each.type for each in BUILT_IN}


def test_examples_are_written_as_yaml() -> None:
    assert examples.yaml_of("queue-scorer") == "- type: queue-scorer"
    assert examples.yaml_of("load-aware-scorer") == (
        "- type: load-aware-scorer\n  parameters:\n    threshold: 64"
    )
