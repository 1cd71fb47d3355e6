"""The statuses of policies, written while others write them too and the server refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from epp.collect.kube import accepted
from epp.collect.kube.accepted import StatusWriter
from epp.collect.parse.policies import PoolName, read_objective, see
from epp.kube.client import Kube
from epp.kube.pace import Backoff
from tests.support.clusters import OBJECTIVES
from tests.support.kube import FakeKube
from tests.support.pages import running, until
from tests.support.pods import V1, objective

QUICK = Backoff(first=0.02, limit=0.1)
READ = partial(read_objective, pool=PoolName("pool", frozenset({V1})))
OTHERS = {"type": "Audited", "status": "True", "reason": "Fine", "message": ""}


def conditions(kube: FakeKube, name: str = "high") -> dict[str, dict[str, Any]]:
    found = kube.get(OBJECTIVES, name) or {}
    return {c["type"]: c for c in (found.get("status") or {}).get("conditions") or ()}


def changed(it: dict[str, Any], **about: Any) -> dict[str, Any]:
    return {**it, "metadata": {**it["metadata"], **about}}


def run(
    case: Callable[[FakeKube, StatusWriter, Callable[[], None]], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run a case with a writer, and with what has it look at the server's objects as they are."""
    monkeypatch.setattr(accepted, "PAUSE_SECONDS", 0.01)

    async def main() -> None:
        async with FakeKube() as fake, Kube(fake.access()) as kube:
            writer = StatusWriter(kube, lambda: True, backoff=QUICK)

            def look() -> None:
                found = fake.objects.collection(OBJECTIVES).values()
                writer.look(OBJECTIVES, [see(each, READ) for each in found])

            fake.put(OBJECTIVES, objective("high", 10))
            async with running(writer.run()):
                await case(fake, writer, look)

    asyncio.run(main())


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_what_is_refused_for_a_moment_is_written_later(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case(kube: FakeKube, _writer: StatusWriter, look: Callable[[], None]) -> None:
        kube.refuse(status, times=3, verbs=("patch",))
        look()
        await until(lambda: "Accepted" in conditions(kube))
        assert len(kube.asked("patch")) >= 4

    run(case, monkeypatch)


def test_a_condition_that_another_wrote_meanwhile_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def case(kube: FakeKube, _writer: StatusWriter, look: Callable[[], None]) -> None:
        look()
        it = dict(kube.get(OBJECTIVES, "high") or {})
        kube.put(OBJECTIVES, {**it, "status": {"conditions": [OTHERS]}})
        await until(lambda: len(kube.asked("patch")) >= 2)
        assert set(conditions(kube)) == {"Audited"}  # refused: it was read before that
        look()
        await until(lambda: set(conditions(kube)) == {"Audited", "Accepted"})

    run(case, monkeypatch)


@pytest.mark.parametrize("status", [404, 422])
def test_what_will_never_be_taken_is_asked_once_for_each_generation(
    status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def case(kube: FakeKube, _writer: StatusWriter, look: Callable[[], None]) -> None:
        kube.refuse(status, times=1, verbs=("patch",))
        look()
        await until(lambda: len(kube.asked("patch")) == 1)
        look()
        kube.put(OBJECTIVES, objective("next", 10))
        look()
        await until(lambda: "Accepted" in conditions(kube, "next"))
        assert len(kube.asked("patch", "/high/")) == 1
        kube.put(OBJECTIVES, changed(objective("high", 11), generation=2))
        look()
        await until(lambda: "Accepted" in conditions(kube))

    with caplog.at_level(logging.WARNING):
        run(case, monkeypatch)
    assert caplog.text.count("was not written") == 1


def test_an_object_created_anew_is_told_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(kube: FakeKube, _writer: StatusWriter, look: Callable[[], None]) -> None:
        look()
        await until(lambda: "Accepted" in conditions(kube))
        kube.remove(OBJECTIVES, "high")
        kube.put(OBJECTIVES, changed(objective("high", 10), uid="another"))
        look()
        await until(lambda: "Accepted" in conditions(kube))

    run(case, monkeypatch)


def test_nothing_is_kept_of_objects_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(kube: FakeKube, writer: StatusWriter, look: Callable[[], None]) -> None:
        look()
        await until(lambda: "Accepted" in conditions(kube))
        assert (len(writer._done), len(writer._wanted)) == (1, 0)
        kube.remove(OBJECTIVES, "high")
        look()
        assert (len(writer._done), len(writer._wanted)) == (0, 0)

    run(case, monkeypatch)
