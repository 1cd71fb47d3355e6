"""Tells in a policy's status whether it counts: the condition ``Accepted``.

Written once for each generation of an object, one at a time and at a bounded rate, so two pickers
that disagree do not write for ever. Without the right to write it asks less and less.

**Source:** Kubernetes' ``metav1.Condition``; RFC 7396 (a list is replaced whole, so other
conditions are written back as they were).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from epp.collect.parse.policies import Seen
from epp.kube.client import Kube
from epp.kube.errors import KubeError
from epp.kube.pace import Backoff

TYPE = "Accepted"
PAUSE_SECONDS = 0.2
BACKOFF = Backoff(first=2.0, limit=300.0)
COUNTS = "the endpoint picker uses it"

log = logging.getLogger(__name__)


def condition_of(seen: Seen, now: str) -> dict[str, Any] | None:
    """Return the condition to write; None if there is nothing to say, or it is said already.

    Args:
        seen: the object.
        now: RFC 3339.
    """
    if seen.policy is None:
        return None
    wanted: dict[str, Any] = {
        "type": TYPE,
        "status": "True",
        "reason": "Accepted",
        "message": seen.policy.problem or COUNTS,
        "observedGeneration": seen.generation,
    }
    old = next((c for c in seen.conditions if c.get("type") == TYPE), {})
    if wanted.items() <= old.items():
        return None
    same = old.get("status") == wanted["status"] and old.get("lastTransitionTime")
    return {**wanted, "lastTransitionTime": same or now}


class _Write(msgspec.Struct, frozen=True):
    """A status to write."""

    mark: tuple[str, int, str]  #: the object, its generation, and what is said of it
    body: Mapping[str, Any]


class StatusWriter:
    """Writes conditions, one after the other.

    A write names the version that was read, so conditions that others wrote meanwhile are not
    lost: the server refuses it, and the newer object is looked at.

    Args:
        kube: the client.
        leads: whether it is this picker's turn to write; the others keep theirs for later.
        backoff: pauses after what was refused.
    """

    def __init__(
        self, kube: Kube, leads: Callable[[], bool], *, backoff: Backoff = BACKOFF
    ) -> None:
        self._kube = kube
        self._leads = leads
        self._backoff = backoff
        self._wanted: dict[str, _Write] = {}
        self._done: dict[str, tuple[str, int, str]] = {}  #: marks of what needs no more writes
        self._failures = 0

    def look(self, collection: str, objects: list[Seen]) -> None:
        """Have written what the statuses of these objects, all of a collection, lack."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        here = {f"{collection}/{seen.name}": seen for seen in objects}
        for kept in (self._wanted, self._done):
            for path in [p for p in kept if p.rpartition("/")[0] == collection and p not in here]:
                del kept[path]
        for path, seen in here.items():
            self._wanted.pop(path, None)
            condition = condition_of(seen, now)
            if condition is None:
                continue
            mark = seen.uid, seen.generation, condition["message"]
            if self._done.get(path) != mark:
                self._wanted[path] = _Write(mark, _body(seen, condition))

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(self._pause())
            if self._wanted and self._leads():
                path = next(iter(self._wanted))
                await self._write(path, self._wanted.pop(path))

    async def _write(self, path: str, write: _Write) -> None:
        try:
            await self._kube.patch_status(path, write.body)
        except KubeError as error:
            self._note(path, error)
            if _may_pass(error):
                self._failures += 1
                self._wanted.setdefault(path, write)  # behind the others
                return
        self._failures = 0
        self._done[path] = write.mark
        if path in self._wanted and self._wanted[path].mark == write.mark:
            del self._wanted[path]  # it was looked at before the server told what we wrote

    def _pause(self) -> float:
        if not self._failures:
            return PAUSE_SECONDS
        return self._backoff.pause(self._failures, random.random())

    def _note(self, path: str, error: KubeError) -> None:
        """Say what was refused; of a row, what is worth a line."""
        if error.status == 409 or self._failures & (self._failures + 1):
            log.debug("the status of %s was not written: %s", path, error)
        elif error.status in (401, 403):
            log.info("statuses are not written: it needs the verb patch on %s/status", path)
        else:
            log.warning("the status of %s was not written: %s", path, error)


def _body(seen: Seen, condition: Mapping[str, Any]) -> Mapping[str, Any]:
    others = [c for c in seen.conditions if c.get("type") != TYPE]
    body: dict[str, Any] = {"status": {"conditions": [*others, condition]}}
    return {"metadata": {"resourceVersion": seen.version}, **body} if seen.version else body


def _may_pass(error: KubeError) -> bool:
    """Whether the same write may be taken later: a server that just started refuses rights, too."""
    return error.status in (0, 401, 403, 409, 429) or error.status >= 500
