"""Any one value of a good configuration replaced by nonsense: refused or used, never a crash."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from epp.build import configure
from epp.errors import ConfigError
from tests.support.replayed import ANY_PARTS, CONFIGS

NONSENSE = (None, 0, -1, 1.5, True, "", "x", [], [None], [{}], {}, {"x": 1}, {"type": "x"}, [["x"]])
FILES = sorted([*CONFIGS.glob("dialects/*.yaml"), *CONFIGS.glob("shapes/*.yaml")])
EACH = 40  #: broken copies of each file


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def broken(raw: Any, path: tuple[Any, ...], nonsense: Any) -> Any:
    made = copy.deepcopy(raw)
    inside = made
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = nonsense
    return made


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_nonsense_in_any_place_is_refused_or_used(file: Any) -> None:
    raw = yaml.safe_load(file.read_text())
    every = [(path, nonsense) for path in places(raw) for nonsense in NONSENSE]
    refused = 0
    chosen = random.Random(1).sample(every, min(EACH, len(every)))
    for path, nonsense in chosen:
        text = yaml.safe_dump(broken(raw, path, nonsense))
        try:
            configure(text, ANY_PARTS)
        except ConfigError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{nonsense!r} at {path}: {error!r}") from error
    assert refused > EACH / 3
