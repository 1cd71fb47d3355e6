"""What the documentation says of a `Params`, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from epp import plugin
from epp.reference.groups import GROUPS
from epp.reference.parameters import REQUIRED, Parameter, parameters_of, type_text

CLASSES = [each for group in GROUPS for each in group.classes]


class Cap(msgspec.Struct, frozen=True, rename="camel"):
    """One cap."""

    max_value: Annotated[float, Meta(ge=0)]  #: requests


class Params(plugin.Params, frozen=True):
    caps: tuple[Cap, ...] = ()
    mode: Literal["fast", "slow"] = "fast"  #: how ``it`` runs
    per_second: float | None = 128.0
    """Tokens."""
    labels: Mapping[str, str] = {}
    off: str | None = None


class MoreParams(Params, frozen=True):
    extra: int = 1  #: in a heir


def test_each_field_is_a_row_and_blocks_inside_are_rows_too() -> None:
    assert parameters_of(Params) == [
        Parameter("caps", "list of object", "`[]`", "One cap."),
        Parameter("caps[].maxValue", "number ≥ 0", REQUIRED, "requests"),
        Parameter("mode", "`fast` or `slow`", '`"fast"`', "how `it` runs"),
        Parameter("perSecond", "number", "`128`", "Tokens."),
        Parameter("labels", "map of string", "`{}`", ""),
        Parameter("off", "string", "–", ""),
    ]


def test_an_heir_has_what_its_base_says_too() -> None:
    rows = parameters_of(MoreParams)
    assert [row.meaning for row in rows if row.name in ("mode", "extra")] == [
        "how `it` runs",
        "in a heir",
    ]


def test_parameters_of_any_name_are_one_row() -> None:
    assert parameters_of(dict[str, str]) == [Parameter("any name", "string", "–", "")]


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "integer"),
        (str | float | None, "string or number"),
        (Annotated[int, Meta(gt=0, le=9)], "integer > 0, ≤ 9"),
        (Annotated[str, Meta(pattern="^/")], "string like `^/`"),
        (tuple[str, ...], "list of string"),
    ],
)
def test_types_in_words(hint: object, words: str) -> None:
    assert type_text(hint) == words


@pytest.mark.parametrize("class_", CLASSES, ids=lambda class_: class_.type)
def test_every_number_says_what_it_counts(class_: type) -> None:
    unsaid = [
        row.name
        for row in parameters_of(class_.Params)
        if row.type.startswith(("number", "integer")) and not row.meaning
    ]
    assert unsaid == []
