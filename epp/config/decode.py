"""YAML or JSON -> plain values, bounded in size before anything is built from them.

Anchors are written out, so that no two places share a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from epp.errors import ConfigError

MAX_BYTES = 2**20
MAX_ALIASES = 100  #: references to anchors in one file
MAX_DEPTH = 50  #: of nesting
MAX_VALUES = 100_000  #: with each reference to an anchor written out


def decode(text: str | bytes | None) -> Mapping[str, Any]:
    """Return the file's sections, those without a value left out; blank text has none.

    Raises:
        ConfigError: it is no YAML mapping, is too large, or has a key twice.
    """
    if text is None or not text.strip():
        return {}
    if len(text) > MAX_BYTES:
        raise ConfigError(f"the configuration has {len(text)} bytes, more than {MAX_BYTES}")
    try:
        _check_size(text)
        raw = _construct(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())  # YAML's errors have several lines
        raise ConfigError(f"the configuration is not YAML: {said}") from error
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise ConfigError("the configuration is not a mapping of names to values - at `$`")
    try:
        plain: Mapping[str, Any] = _plain(raw, iter(range(MAX_VALUES)))
    except RecursionError as error:
        raise ConfigError("the configuration holds itself") from error
    return plain


def _check_size(text: str | bytes) -> None:
    aliases = depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        aliases += isinstance(event, yaml.AliasEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if aliases > MAX_ALIASES:
            raise ConfigError(f"the configuration has more than {MAX_ALIASES} YAML aliases")
        if depth > MAX_DEPTH:
            raise ConfigError(f"the configuration is nested more than {MAX_DEPTH} deep")


def _construct(text: str | bytes) -> Any:
    loader = yaml.CSafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_keys(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_keys(root: yaml.Node) -> None:
    """Refuse a key that is there twice, where YAML libraries take the last one."""
    waiting: list[Any] = [root]
    done: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in done or isinstance(node, yaml.ScalarNode):
            continue
        done.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
            continue
        seen: set[str] = set()
        for key, value in node.value:
            waiting.append(value)
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                place = f"line {key.start_mark.line + 1}"
                raise ConfigError(f"key {key.value!r} is there twice - at {place}")
            seen.add(key.value)


def _plain(value: Any, room: Iterator[int]) -> Any:
    """A copy without shared parts, and without empty keys outside of plugins' parameters."""
    if next(room, None) is None:
        raise ConfigError(f"the configuration has more than {MAX_VALUES} values")
    if isinstance(value, list):
        return [_plain(each, room) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _parameters(each, room) if key == "parameters" else _plain(each, room)
        for key, each in value.items()
        if each is not None
    }


def _parameters(value: Any, room: Iterator[int]) -> Any:
    """The same where null may mean something."""
    if next(room, None) is None:
        raise ConfigError(f"the configuration has more than {MAX_VALUES} values")
    if isinstance(value, list):
        return [_parameters(each, room) for each in value]
    if isinstance(value, dict):
        return {key: _parameters(each, room) for key, each in value.items()}
    return value
