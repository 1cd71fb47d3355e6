"""Follows InferenceObjectives and InferenceModelRewrites and keeps the rule books of their pools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from epp.collect.kube.accepted import StatusWriter
from epp.collect.kube.served import Served, State
from epp.collect.kube.wanted import Wanted
from epp.collect.parse.policies import (
    Policy,
    Seen,
    build_table,
    read_objective,
    read_rewrite,
    see,
)
from epp.kube.client import Kube
from epp.kube.reflect import Habits
from epp.rules import RuleBook

KINDS: Mapping[str, tuple[str, str]] = {
    "inferenceobjectives": ("InferenceObjective", "objectives give no priority"),
    "inferencemodelrewrites": ("InferenceModelRewrite", "no model is rewritten by rule"),
}

log = logging.getLogger(__name__)


class Policies:
    """Objectives and rewrites of pools; both are optional features of a cluster.

    Args:
        kube: the client.
        wanted: whose policies count; without a pool's name, those of all `books`.
        books: by pool; each is given a new table for each change.
        leads: whether this picker writes statuses.
        habits: of the watches.
    """

    def __init__(
        self,
        kube: Kube,
        wanted: Wanted,
        *,
        books: Mapping[str, RuleBook],
        leads: Callable[[], bool],
        habits: Habits,
        report: Callable[[str], None],
    ) -> None:
        readers = {"inferenceobjectives": read_objective, "inferencemodelrewrites": read_rewrite}
        self._served = {
            plural: Served(
                kube,
                wanted.policies(plural),
                habits=_keeping(habits, partial(read, pool=wanted.pool_name), report),
            )
            for plural, read in readers.items()
        }
        self._books = books
        self._writer = StatusWriter(kube, leads)
        self._seen = -1
        self._said: dict[str, State] = {}

    async def run(self) -> None:
        """Follow them until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for plural, served in self._served.items():
                tasks.create_task(served.run(), name=f"watch {plural}")
            tasks.create_task(self._writer.run(), name="write statuses")

    def look(self) -> None:
        """Put a new table into the book if anything changed; say what is off."""
        for plural, served in self._served.items():
            self._say(plural, served)
        changes = sum(served.changes for served in self._served.values())
        if changes == self._seen:
            return
        self._seen = changes
        objectives, rewrites = (_by_pool(served.objects()) for served in self._served.values())
        for pool, book in self._books.items():
            book.table = build_table(objectives.get(pool, ()), rewrites.get(pool, ()))
        for served in self._served.values():
            ours = [each for each in served.objects() if each.policy is None
                    or each.policy.pool in self._books]  # fmt: skip
            self._writer.look(served.path, ours)

    def look_again(self) -> None:
        """Read the tables anew at the next `look`: there is another book."""
        self._seen = -1

    def _say(self, plural: str, served: Served) -> None:
        state = served.state
        if self._said.get(plural) == state:
            return
        self._said[plural] = state
        kind, effect = KINDS[plural]
        if state == "missing":
            log.info("%s is not installed in this cluster: %s", kind, effect)
        elif state == "forbidden":
            needs = f"its role needs get, list and watch on {plural}"
            log.warning("%s: %s (%s)", effect, needs, served.forbidden)


def _by_pool(objects: list[Seen]) -> Mapping[str, list[Policy]]:
    found: dict[str, list[Policy]] = {}
    for policy in (seen.policy for seen in objects):
        if policy is not None:
            found.setdefault(policy.pool, []).append(policy)
    return found


def _keeping(
    habits: Habits,
    read: Callable[[Mapping[str, Any]], Policy | None],
    report: Callable[[str], None],
) -> Habits:
    def keep(manifest: dict[str, Any]) -> Seen:
        seen = see(manifest, read)
        problem = seen.unreadable or (seen.policy.problem if seen.policy is not None else "")
        if problem:
            report(f"{manifest.get('kind', 'policy')} {seen.name}: {problem}")
        return seen

    return msgspec.structs.replace(habits, keep=keep)
