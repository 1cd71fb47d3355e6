"""The admin pages: of one pool, and of all pools of a process together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from epp.lanes.lane import Lane
from epp.model import Endpoint
from epp.telemetry.admin import AdminPages, Page

Lanes = Mapping[str, Lane]


def pages_of(lane: Lane, ready: Callable[[], bool], state: Page) -> AdminPages:
    """The pages of one lane; ``ready`` and ``state`` are the process's."""
    return AdminPages(
        ready=ready,
        config=lane.config_page,
        endpoints=lane.pool.snapshot,
        plugins=lambda: lane.plugins,
        in_flight=lane.board.in_flight,
        state=state,
        live=lane.board.answer,
        decisions=lane.watching.receipts,
    )


def all_pages(lanes: Lanes, ready: Callable[[], bool], state: Page) -> AdminPages:
    """The pages of all lanes, by pool; the live page is only of one."""

    def endpoints() -> tuple[Endpoint, ...]:
        return tuple(each for lane in lanes.values() for each in lane.pool.snapshot())

    def in_flight(endpoint: Endpoint) -> dict[str, int]:
        """An engine may be in several pools: what is under way there is the sum."""
        counts: dict[str, int] = {}
        for lane in lanes.values():
            for what, number in lane.board.in_flight(endpoint).items():
                counts[what] = counts.get(what, 0) + number
        return counts

    return AdminPages(
        ready=ready,
        config=lambda: {name: lane.config_page() for name, lane in lanes.items()},
        endpoints=endpoints,
        plugins=lambda: {
            f"{name}/{plugin}": made
            for name, lane in lanes.items()
            for plugin, made in lane.plugins.items()
        },
        in_flight=in_flight,
        state=state,
        decisions=Decisions(lanes),
    )


class Decisions:
    """The last decisions of all lanes."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def last(self, limit: int) -> Any:
        """The last ``limit`` decisions, the newest first, each with its pool."""
        found = [
            {"pool": name, **shown}
            for name, lane in self._lanes.items()
            if (kept := lane.watching.receipts) is not None
            for shown in kept.last(limit)
        ]
        return sorted(found, key=lambda shown: float(shown["seconds_ago"]))[:limit]

    def find(self, request_id: str) -> Any | None:
        """The newest decision about a request, of whichever pool."""
        for name, lane in self._lanes.items():
            kept = lane.watching.receipts
            found = None if kept is None else kept.find(request_id)
            if found is not None:
                return {"pool": name, **found}
        return None
