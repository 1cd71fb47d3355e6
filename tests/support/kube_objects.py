"""The objects of the fake API server: versions, a history, and selectors."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

Object = dict[str, Any]

_TERM = re.compile(
    r"\s*(?:(!?)([\w./-]+)\s*(?:(==|=|!=)\s*([\w.-]*)|\s(in|notin)\s*\(([^)]*)\))?)\s*"
)


@dataclass
class Write:
    """One change: what was there, and what is."""

    version: int
    collection: str
    old: Object | None
    new: Object | None

    def event(self, selects) -> tuple[str, Object] | None:
        """What a watch with this selector is told."""
        was = self.old is not None and selects(self.old)
        now = self.new is not None and selects(self.new)
        if now:
            return "MODIFIED" if was else "ADDED", self.new
        if was:
            last = copy.deepcopy(self.old)
            last["metadata"]["resourceVersion"] = str(self.version)
            return "DELETED", last
        return None


@dataclass
class Objects:
    """Collections by path, and every write since the last `forget`."""

    version: int = 100
    forgotten: int = 0  #: watches from before this version are expired
    by_path: dict[str, dict[str, Object]] = field(default_factory=dict)
    history: list[Write] = field(default_factory=list)

    def collection(self, path: str) -> dict[str, Object]:
        return self.by_path.setdefault(path, {})

    def put(self, path: str, given: Object) -> Object:
        """Create or replace; the server fills in what servers fill in."""
        new = copy.deepcopy(given)
        about = new.setdefault("metadata", {})
        old = self.collection(path).get(about["name"])
        namespace = re.search(r"/namespaces/([^/]+)/", path)
        if namespace:
            about["namespace"] = namespace[1]
        about["uid"] = old["metadata"]["uid"] if old else about.get("uid") or str(uuid4())
        about.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        if old is not None:
            about["resourceVersion"] = old["metadata"]["resourceVersion"]
            if new == old:
                return old  # a write that changes nothing has no new version
        self.version += 1
        about["resourceVersion"] = str(self.version)
        self.collection(path)[about["name"]] = new
        self.history.append(Write(self.version, path, old, new))
        return new

    def remove(self, path: str, name: str) -> Object:
        old = self.collection(path).pop(name)
        self.version += 1
        self.history.append(Write(self.version, path, old, None))
        return old

    def forget(self) -> None:
        """Lose the history, as compaction does."""
        self.version += 1
        self.forgotten = self.version
        self.history.clear()

    def after(self, path: str, version: int) -> list[Write]:
        return [w for w in self.history if w.collection == path and w.version > version]


def selector(labels: str, fields: str):
    """A predicate over objects for the two selector parameters."""
    by_label = [_label_term(text) for text in _split(labels)]
    by_field = [_field_term(text) for text in fields.split(",") if text]

    def selects(it: Object) -> bool:
        has = it["metadata"].get("labels") or {}
        return all(term(has) for term in by_label) and all(term(it) for term in by_field)

    return selects


def _split(labels: str) -> list[str]:
    return [text for text in re.split(r",(?![^(]*\))", labels) if text.strip()]


def _label_term(text: str):
    found = _TERM.fullmatch(text)
    assert found, f"no label selector: {text!r}"
    absent, key, sign, value, word, listed = found.groups()
    values = {each.strip() for each in (listed or "").split(",")}
    if word:
        return lambda has: (has.get(key) in values) is (word == "in")
    if sign:
        return lambda has: (has.get(key) == value) is (sign != "!=")
    return lambda has: (key in has) is not bool(absent)


def _field_term(text: str):
    path, sign, value = re.fullmatch(r"([\w.]+)(==|=|!=)(.*)", text).groups()

    def holds(it: Object) -> bool:
        found: Any = it
        for part in path.split("."):
            found = (found or {}).get(part)
        return ((found or "") == value) is (sign != "!=")

    return holds
