"""Keeps a copy of one collection: list, watch, again for ever.

A watch alone is not enough: it may fall silent, break in the middle of a line, or end because the
server forgot the version it began from. So each watch is bounded in time, everything is read
again when it cannot be resumed, and from time to time anyway; what disappeared meanwhile is
told as gone. While the server cannot be reached the copy stays as it is.

**Source:** kubernetes.io, "Kubernetes API Concepts": efficient detection of changes, watch
bookmarks, retrieving large result sets in chunks, 410 Gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from epp.clock import Clock, SystemClock
from epp.kube.client import Call, Kube
from epp.kube.copy import About, Change, Copy, Key
from epp.kube.errors import KubeError, error_of_event
from epp.kube.pace import Pace, may_resume
from epp.kube.wire import Event, decode_about, decode_event, decode_page, lines

log = logging.getLogger(__name__)

TURN_OBJECTS = 25  #: so many objects are decoded before others get their turn


def without_managed_fields(object: dict[str, Any]) -> Any:
    """The object without its largest part, which only server-side apply reads."""
    object["metadata"].pop("managedFields", None)
    return object


class Habits(msgspec.Struct, frozen=True):
    """How a reflector works; tests shorten the times and own the clock."""

    keep: Callable[[dict[str, Any]], Any] = without_managed_fields  #: what is kept of an object
    on_synced: Callable[[], None] = lambda: None  #: after each list
    pace: Pace = Pace()
    clock: Clock = SystemClock()
    random: Random = Random()


class Reflector:
    """Keeps a copy of one collection and tells what changes.

    Attributes:
        synced: the collection was read once.
        forbidden: the message of the last 401 or 403; "" once a watch is open.
        missing: the collection is not served, its CRD is not installed, and nothing of it is held
            any more. It is asked for again.
        heard_at: the clock's seconds when the server last answered; None: never.
    """

    def __init__(
        self,
        kube: Kube,
        path: str,
        *,
        label_selector: str = "",
        field_selector: str = "",
        on_put: Callable[[Any], None],
        on_gone: Callable[[Any], None],
        habits: Habits = Habits(),  # noqa: B008 - frozen
    ) -> None:
        """Prepare to follow the collection at ``path``.

        Args:
            kube: the client.
            path: of a collection.
            label_selector: which objects; "" for all.
            field_selector: which objects; "" for all.
            on_put: is told what ``habits.keep`` returned for each object that is new or changed.
            on_gone: is told what was kept of an object that is gone; if it was created anew, before
                ``on_put`` of the new one.
            habits: what is kept, and times.
        """
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        self._kube = kube
        self._path = path
        self._selected = {name: value for name, value in selectors.items() if value}
        self._on_put = on_put
        self._on_gone = on_gone
        self._habits = habits
        self._copy = Copy()
        self._version = ""  #: to watch from; "": everything is to be read
        self._relist_at = 0.0
        self._failures = 0
        self._missing_since: float | None = None
        self.synced = False
        self.forbidden = ""
        self.heard_at: float | None = None

    @property
    def missing(self) -> bool:
        return self._missing_since is not None and not len(self._copy)

    async def run(self) -> None:
        """Follow the collection until cancelled."""
        while True:
            began = self._now()
            problem: KubeError | None = None
            try:
                await self._follow()
            except KubeError as error:
                problem = error
                self._note(error)
            except Exception as error:  # the copy must outlive a bug
                problem = KubeError(type(error).__name__)
                self._version = ""
                log.exception("%s: following it failed", self._path)
            if problem is None and self._now() - began >= self._habits.pace.steady:
                self._failures = 0
            else:
                self._failures += 1
                await asyncio.sleep(self._pause(problem))

    async def _follow(self) -> None:
        """One watch, after a list if that is due."""
        if not self._version or self._now() >= self._relist_at:
            await self._list()
        await self._watch()

    async def _list(self) -> None:
        self._version = ""  # a list that breaks off leaves newer objects than this version
        seen: set[Key] = set()
        params = {**self._selected, "limit": str(self._habits.pace.page)}
        while True:
            call = Call("GET", self._path, params, seconds=self._habits.pace.call)
            page = decode_page(str(call), await self._kube.read(call))
            self._heard()
            for index, item in enumerate(page.items or ()):
                about = decode_about(str(call), item)
                seen.add(about.key)
                if not self._copy.has(about):
                    self._put(about, item)
                if index % TURN_OBJECTS == 0:
                    await asyncio.sleep(0)
            if not page.metadata.next_page:
                break
            if page.metadata.next_page == params.get("continue"):
                raise KubeError(f"{call}: the same page follows itself", reason="answer")
            params["continue"] = page.metadata.next_page
        self._tell(self._copy.keep_only(seen))
        self._listed(page.metadata.version)

    def _listed(self, version: str) -> None:
        habits = self._habits
        self._version = version
        self._relist_at = self._now() + habits.pace.relist_after(habits.random.random())
        if not self.synced:
            log.info("%s: read, %d objects", self._path, len(self._copy))
        self.synced = True
        _call(self._path, habits.on_synced)

    async def _watch(self) -> None:
        habits = self._habits
        lifetime = habits.pace.watch_for(habits.random.random())
        params = {
            **self._selected,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(lifetime),
        }
        call = Call("GET", self._path, params, seconds=lifetime + habits.pace.grace)
        async with self._kube.stream(call) as answer:
            self._opened()
            async for line in lines(str(call), answer):
                self._heard()
                self._take(decode_event(str(call), line))

    def _take(self, event: Event) -> None:
        what = f"watch of {self._path}"
        if event.type == "ERROR":
            self._version = ""
            raise error_of_event(what, event.object)
        about = decode_about(what, event.object)
        if event.type == "DELETED":
            self._tell(self._copy.remove(about.key))
        elif event.type != "BOOKMARK":
            self._put(about, event.object)
        self._version = about.version or self._version

    def _put(self, about: About, item: msgspec.Raw) -> None:
        """Take an object; one that cannot be used counts as gone, and harms no other."""
        try:
            value = self._habits.keep(msgspec.json.decode(item))
        except Exception:
            log.exception("%s: %s/%s cannot be used", self._path, *about.key)
            self._tell(self._copy.remove(about.key))
            return
        self._tell(self._copy.put(about, value))

    def _tell(self, changes: list[Change]) -> None:
        for change in changes:
            listener = self._on_put if change.kind == "put" else self._on_gone
            _call(self._path, listener, change.value)

    def _heard(self) -> None:
        """The server answered well."""
        self.heard_at = self._now()
        self._missing_since = None

    def _opened(self) -> None:
        """The watch is open: all rights are there."""
        self._heard()
        self._failures = min(self._failures, self._habits.pace.short_row)
        if self.forbidden:
            log.info("%s: is allowed again", self._path)
        self.forbidden = ""

    def _note(self, error: KubeError) -> None:
        """Remember what went wrong."""
        count = self._failures + 1
        often = error.status == 410 or count & (count - 1)  # only powers of two are worth a line
        level = logging.DEBUG if often else logging.WARNING
        if error.status == 404:  # what is not installed may stay so for good
            level = logging.DEBUG if count > 1 else logging.INFO
        log.log(level, "%s (failure %d in a row)", error, count)
        if not may_resume(error):
            self._version = ""
        if error.status:
            self.heard_at = self._now()
        if error.status in {401, 403}:
            self.forbidden = str(error)
        elif error.status == 404:
            self._not_served()

    def _not_served(self) -> None:
        """Give the copy up, but not at once: a server that just started does not know its CRDs."""
        if self._missing_since is None:
            self._missing_since = self._now()
        if self._now() - self._missing_since >= self._habits.pace.missing:
            self._tell(self._copy.keep_only(frozenset()))

    def _pause(self, problem: KubeError | None) -> float:
        habits = self._habits
        if self.missing:
            return habits.pace.missing
        asked = problem.retry_after if problem is not None else 0.0
        return habits.pace.backoff.pause(self._failures, habits.random.random(), asked=asked)

    def _now(self) -> float:
        return self._habits.clock.now()


def _call(path: str, listener: Callable[..., None], *what: Any) -> None:
    """Call ``listener``; its failure must not end the copy."""
    try:
        listener(*what)
    except Exception:
        log.exception("%s: a listener failed", path)
