"""Tells in a policy's status whether it counts: the condition ``Accepted``.

Written at most once for each generation of an object, one at a time and at a bounded rate, so two
pickers that disagree do not write for ever. Without the right to write it is off.

**Source:** Kubernetes' ``metav1.Condition``; RFC 7396 (a list is replaced whole, so other
conditions are written back as they were).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from epp.collect.parse.policies import Seen
from epp.kube.client import Kube
from epp.kube.errors import KubeError

TYPE = "Accepted"
PAUSE_SECONDS = 0.2
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


class StatusWriter:
    """Writes conditions, one after the other.

    Args:
        kube: the client.
        leads: whether it is this picker's turn to write; the others keep theirs for later.
    """

    def __init__(
        self, kube: Kube, leads: Callable[[], bool], *, pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        self._kube = kube
        self._leads = leads
        self._pause_seconds = pause_seconds
        self._wanted: dict[str, Mapping[str, Any]] = {}
        self._written: dict[str, tuple[int, str]] = {}

    def look(self, collection: str, objects: list[Seen]) -> None:
        """Have written what these objects' statuses lack."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for seen in objects:
            condition = condition_of(seen, now)
            path = f"{collection}/{seen.name}"
            if condition is None:
                self._wanted.pop(path, None)
                continue
            mark = seen.generation, condition["message"]
            if self._written.get(path) != mark:
                self._written[path] = mark
                others = [c for c in seen.conditions if c.get("type") != TYPE]
                self._wanted[path] = {"status": {"conditions": [*others, condition]}}

    async def run(self) -> None:
        """Write until cancelled, or until the server says that we may not."""
        while True:
            await asyncio.sleep(self._pause_seconds)
            if not (self._wanted and self._leads()):
                continue
            path = next(iter(self._wanted))
            try:
                await self._kube.patch_status(path, self._wanted.pop(path))
            except KubeError as error:
                if error.status in (401, 403):
                    log.info("statuses are not written: it needs the verb patch on %s/status", path)
                    return
                log.warning("the status of %s was not written: %s", path, error)
