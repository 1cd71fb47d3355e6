"""A fake Kubernetes API server on loopback: lists, watches, writes, and the ways they fail.

What it answers was observed on a real one (1.36): see the shapes of `expired`, bookmarks, 409s.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from epp.kube.access import Access
from epp.kube.identity.credentials import Credential, Fixed
from epp.kube.identity.tls import Trust
from tests.support.kube_objects import Object, Objects, selector
from tests.support.kube_reviews import Reviews

REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
TRUST = Trust()  #: in the system's authorities
EXPIRED = "too old resource version: {} ({})"


@dataclass
class Asked:
    """One request that came."""

    verb: str  #: list, watch, get, create, replace, patch or delete
    path: str
    query: dict[str, str]
    token: str
    at: float  #: the loop's time


@dataclass
class Refusal:
    """Answers to the next requests."""

    status: int
    times: int
    verbs: tuple[str, ...]
    path: str
    retry_after: int | None


@dataclass
class Faults:
    """What is wrong with the server; all may be changed at any time."""

    refusals: list[Refusal] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)  #: collections that are not served
    expired_as_status: bool = False  #: an expired watch gets HTTP 410, not an ERROR in a 200
    silent: bool = False  #: watches say nothing any more, not even that they end
    hang: bool = False  #: requests are accepted and never answered
    expired_pages: int = 0  #: so many continue tokens are answered with 410


@dataclass(eq=False)
class _Watch:
    """One open watch."""

    path: str
    answer: web.StreamResponse
    transport: asyncio.Transport
    over: asyncio.Event = field(default_factory=asyncio.Event)
    last: bytes = b""  #: said before it ends


class FakeKube:
    """The server; an async context manager.

    Args:
        tokens: which bearer tokens are known; None: anybody may come.
        tls: serve https with it.
        bookmark_seconds: between two bookmarks of a watch.
    """

    def __init__(
        self,
        *,
        tokens: set[str] | None = None,
        tls: ssl.SSLContext | None = None,
        bookmark_seconds: float = 60.0,
    ) -> None:
        self.objects = Objects()
        self.faults, self.reviews = Faults(), Reviews()
        self.tokens = tokens
        self.requests: list[Asked] = []
        self.bookmark_seconds = bookmark_seconds
        self.port = 0
        self._tls = tls
        self._watches: set[_Watch] = set()
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the port of last time."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True
        )
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Die: watches break, connections are refused."""
        self.cut_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def access(
        self, token: str = "", *, trust: Trust = TRUST, namespace: str = "default"
    ) -> Access:
        return Access(self.url, namespace, Fixed(Credential(token)), trust)

    def put(self, collection: str, it: Object) -> Object:
        """Create or replace an object; watches hear of it."""
        new = self.objects.put(collection, it)
        self._notify()
        return new

    def remove(self, collection: str, name: str) -> None:
        self.objects.remove(collection, name)
        self._notify()

    def get(self, collection: str, name: str) -> Object | None:
        return self.objects.collection(collection).get(name)

    def refuse(
        self,
        status: int,
        *,
        times: int = 1,
        verbs: tuple[str, ...] = (),
        path: str = "",
        retry_after: int | None = None,
    ) -> None:
        """Answer the next ``times`` requests (of these verbs, to this collection) with it."""
        self.faults.refusals.append(Refusal(status, times, verbs, path, retry_after))

    def expire(self) -> None:
        """Forget the history: a watch from an older version is expired."""
        self.objects.forget()

    def end_watches(self) -> None:
        """End all watches cleanly."""
        for watch in self._watches:
            watch.over.set()

    def fail_watches(self, code: int, message: str = "something broke") -> None:
        """Send an ERROR event to all watches and end them."""
        for watch in self._watches:
            watch.last = _line("ERROR", _status(code, message))
            watch.over.set()

    def cut_watches(self, *, mid_line: bool = False) -> None:
        """Reset the connections of all watches, perhaps in the middle of a line."""
        for watch in list(self._watches):
            if mid_line:
                half = _line("MODIFIED", {"kind": "Pod", "metadata": {"name": "half"}})[:30]
                watch.transport.write(b"%x\r\n" % (len(half) + 50) + half)
            watch.transport.close() if mid_line else watch.transport.abort()

    def say(self, text: bytes) -> None:
        """Write raw bytes into all watches."""
        for watch in self._watches:
            self._soon(watch.answer.write(text))

    def asked(self, verb: str, path: str = "") -> list[Asked]:
        return [each for each in self.requests if each.verb == verb and path in each.path]

    @property
    def watching(self) -> int:
        return len(self._watches)

    def _notify(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._soon(notify())

    def _soon(self, work: Any) -> None:
        try:
            task = asyncio.get_running_loop().create_task(work)
        except RuntimeError:  # before the server runs nobody watches
            work.close()
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = "/" + request.match_info["path"]
        collection, name, sub = _parse(path)
        verb = _verb(request, name)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        now = asyncio.get_running_loop().time()
        self.requests.append(Asked(verb, path, dict(request.query), token, now))
        if self.faults.hang:
            await asyncio.Event().wait()
        refused = self._refused(verb, collection, token)
        if refused is not None:
            return refused
        if verb == "watch":
            return await self._watch(request, collection)
        if verb == "list":
            return self._list(request, collection)
        body = await request.read()
        if collection.endswith("reviews"):
            return web.json_response(self.reviews.answer(json.loads(body)), status=201)
        return self._object(verb, (collection, name, sub), json.loads(body) if body else None)

    def _refused(self, verb: str, collection: str, token: str) -> web.Response | None:
        if self.tokens is not None and token not in self.tokens:
            return _refusal(401, "Unauthorized")
        for refusal in self.faults.refusals:
            if (refusal.verbs and verb not in refusal.verbs) or refusal.path not in collection:
                continue
            refusal.times -= 1
            if refusal.times <= 0:
                self.faults.refusals.remove(refusal)
            after = refusal.retry_after
            headers = {} if after is None else {"Retry-After": str(after)}
            return _refusal(refusal.status, "refused by the test", headers=headers)
        if collection in self.faults.missing:
            return _refusal(404, "the server could not find the requested resource")
        return None

    def _list(self, request: web.Request, collection: str) -> web.Response:
        selects = selector(
            request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
        )
        version, start = self.objects.version, 0
        if token := request.query.get("continue"):
            if self.faults.expired_pages > 0:
                self.faults.expired_pages -= 1
                return _refusal(410, "The provided continue parameter is too old")
            version, start = json.loads(base64.urlsafe_b64decode(token))
        every = [it for _, it in sorted(self.objects.collection(collection).items()) if selects(it)]
        end = start + int(request.query.get("limit") or len(every) or 1)
        about: dict[str, Any] = {"resourceVersion": str(version)}
        if end < len(every):
            about["continue"] = base64.urlsafe_b64encode(
                json.dumps([version, end]).encode()
            ).decode()
            about["remainingItemCount"] = len(every) - end
        return web.json_response({"kind": "List", "metadata": about, "items": every[start:end]})

    def _object(self, verb: str, at: tuple[str, str, str], body: Object | None) -> web.Response:
        collection, name, sub = at
        name = body["metadata"]["name"] if verb == "create" and body else name
        old = self.get(collection, name)
        if verb == "create":
            if old is not None:
                return _refusal(409, f'"{name}" already exists', reason="AlreadyExists")
            return web.json_response(self.put(collection, body), status=201)
        if old is None:
            return _refusal(404, f'"{name}" not found')
        if verb == "delete":
            self.remove(collection, name)
            return web.json_response(_status(200, "deleted"))
        stale = ((body or {}).get("metadata") or {}).get("resourceVersion")
        if stale and stale != old["metadata"]["resourceVersion"]:
            return _refusal(409, f'Operation cannot be fulfilled on "{name}": modified')
        if verb == "patch":
            body = {**old, "status": _merge(old.get("status", {}), (body or {}).get("status", {}))}
            assert sub == "status"
        return web.json_response(old if verb == "get" else self.put(collection, body))

    async def _watch(self, request: web.Request, collection: str) -> web.StreamResponse:
        query = request.query
        since = int(query["resourceVersion"])
        expired = since < self.objects.forgotten
        if expired and self.faults.expired_as_status:
            return _refusal(410, EXPIRED.format(since, self.objects.version))
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        if expired:
            said = EXPIRED.format(since, self.objects.version)
            await answer.write(_line("ERROR", _status(410, said)))
            return answer
        watch = _Watch(collection, answer, request.transport)
        self._watches.add(watch)
        try:
            selects = selector(query.get("labelSelector", ""), query.get("fieldSelector", ""))
            bookmarks = query.get("allowWatchBookmarks") == "true"
            lifetime = float(query.get("timeoutSeconds") or 1800)
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(lifetime):
                    await self._follow(watch, since, selects, bookmarks=bookmarks)
            while self.faults.silent and not watch.transport.is_closing():
                await asyncio.sleep(0.02)
        finally:
            self._watches.discard(watch)
        return answer

    async def _follow(self, watch: _Watch, since: int, selects, *, bookmarks: bool) -> None:
        loop = asyncio.get_running_loop()
        next_bookmark = loop.time() + self.bookmark_seconds
        while not (watch.over.is_set() or watch.transport.is_closing()):
            for write in self.objects.after(watch.path, since):
                since = write.version
                event = write.event(selects)
                if event is not None and not self.faults.silent:
                    await watch.answer.write(_line(*event))
            if bookmarks and loop.time() >= next_bookmark and not self.faults.silent:
                next_bookmark = loop.time() + self.bookmark_seconds
                since = self.objects.version
                about = {"resourceVersion": str(since), "creationTimestamp": None}
                await watch.answer.write(_line("BOOKMARK", {"kind": "Pod", "metadata": about}))
            with suppress(TimeoutError):
                async with asyncio.timeout(0.02), self._changed:
                    await self._changed.wait()
        if watch.last and not watch.transport.is_closing():
            await watch.answer.write(watch.last)


def _parse(path: str) -> tuple[str, str, str]:
    """Collection, name and subresource of a path."""
    parts = path.strip("/").split("/")
    head = 2 if parts[0] == "api" else 3
    if len(parts) > head + 2 and parts[head] == "namespaces":
        head += 2
    rest = [*parts[head + 1 :], "", ""]
    return "/" + "/".join(parts[: head + 1]), rest[0], rest[1]


def _verb(request: web.Request, name: str) -> str:
    if request.method == "GET":
        watch = request.query.get("watch") in {"1", "true"}
        return "get" if name else "watch" if watch else "list"
    return {"POST": "create", "PUT": "replace", "PATCH": "patch", "DELETE": "delete"}[
        request.method
    ]


def _merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def _status(code: int, message: str, reason: str = "") -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success" if code < 300 else "Failure",
        "message": message,
        "reason": reason or REASONS.get(code, ""),
        "code": code,
    }


def _refusal(
    code: int, message: str, *, reason: str = "", headers: dict[str, str] | None = None
) -> web.Response:
    return web.json_response(_status(code, message, reason), status=code, headers=headers)


def _line(kind: str, it: Object) -> bytes:
    return json.dumps({"type": kind, "object": it}).encode() + b"\n"
