"""A fake API server as strict as a real one: tokens, rights, subresources, fields, finalizers.

It has no controllers, as a bare kube-apiserver has none: nothing starts pods, makes a namespace's
default service account or empties a namespace that is deleted.
"""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from tests.support import kube
from tests.support.apiserver.kinds import CRDS, Invalid, Kinds
from tests.support.apiserver.rights import Rights, Wish, review
from tests.support.kube import Asked, FakeKube
from tests.support.kube_objects import Object

NAMESPACES = "/api/v1/namespaces"
NAMED = "metadata.name="
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"


@dataclass
class _Call:
    """One request, taken apart."""

    verb: str
    at: str  #: API version
    plural: str
    namespace: str
    name: str
    sub: str
    collection: str
    dry: bool = False
    content: str = ""
    selected: str = ""  #: the one object that a list's or watch's field selector names

    @property
    def wish(self) -> Wish:
        resource = f"{self.plural}/{self.sub}" if self.sub else self.plural
        verb = "patch" if self.verb == "apply" else self.verb
        name = self.name or self.selected
        return Wish(verb, self.at.rpartition("/")[0], resource, self.namespace, name)


class Refused(Exception):
    """Status code, message and, if it is not the usual one, reason."""


class StrictKube(FakeKube):
    """The server; whoever shows the token ``admin`` may do everything."""

    def __init__(self) -> None:
        super().__init__()
        self.rights = Rights(self.objects)
        self.kinds = Kinds()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = "/" + request.match_info["path"]
        call = _take_apart(request, path)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        now = asyncio.get_running_loop().time()
        self.requests.append(Asked(call.verb, path, dict(request.query), token, now))
        if self.faults.hang:
            await asyncio.Event().wait()
        try:
            refused = self._refused(call.verb, call.collection, token)
            if refused is not None:
                return refused
            self._admit(call, token, path)
            if call.verb in {"watch", "list"}:
                return await self._read_many(request, call)
            body = await request.read()
            return self._do(call, json.loads(body) if body else {})
        except Refused as error:
            code, message, *reason = error.args
            return kube._refusal(code, message, reason=reason[0] if reason else "")

    async def _read_many(self, request: web.Request, call: _Call) -> web.StreamResponse:
        if call.verb == "watch":
            return await self._watch(request, call.collection)
        return self._list(request, call.collection)

    def _admit(self, call: _Call, token: str, path: str) -> None:
        """First who it is, then whether it may, then whether there is such a thing."""
        user = self.rights.users.get(token)
        if user is None:
            raise Refused(401, "Unauthorized")
        wish = call.wish if call.plural else Wish(call.verb, path=path)
        if not self.rights.allows(user, wish) and call.plural:
            raise Refused(403, self.rights.refusal(user, wish))
        if call.at not in self.kinds.served or (
            call.plural and call.plural not in self.kinds.served[call.at]
        ):
            raise Refused(404, "404 page not found")

    def _do(self, call: _Call, body: Object) -> web.Response:
        if not call.plural:
            return web.json_response(self.kinds.listing(call.at))
        if call.plural.endswith("reviews"):
            return web.json_response(review(self.rights, body), status=201)
        if call.sub == "token":
            token = self.rights.token_of(call.namespace, call.name)
            return web.json_response({**body, "status": {"token": token}}, status=201)
        return web.json_response(*self._object_of(call, body))

    def _object_of(self, call: _Call, body: Object) -> Any:
        old = self.get(call.collection, call.name)
        if call.verb == "create" or (call.verb == "apply" and old is None):
            return [self._create(call, body)]
        if old is None:
            raise Refused(404, f'{call.plural} "{call.name}" not found')
        if call.verb == "get":
            return [old]
        if call.verb == "delete":
            return [self._delete(call, old)]
        return [self._write(call, old, self._changed_by(call, old, body))]

    def _create(self, call: _Call, body: Object) -> Object:
        new, about = copy.deepcopy(body), body.get("metadata") or {}
        name = about.get("name") or ""
        if "resourceVersion" in about:
            raise Refused(400, "resourceVersion should not be set on objects to be created")
        if call.namespace and about.get("namespace", call.namespace) != call.namespace:
            raise Refused(400, "the namespace of the object does not match the request's")
        self._check(call, new)
        self._admits(call, new)
        if self.get(call.collection, name) is not None:
            raise Refused(409, f'{call.plural} "{name}" already exists', "AlreadyExists")
        if self.kinds.has_status(call.at, call.plural):
            new.pop("status", None)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        new["metadata"] |= {"creationTimestamp": now, "generation": 1, "managedFields": []}
        if call.dry:
            return new
        if call.collection == CRDS:
            self._define(new)
        return self.put(call.collection, new)

    def _define(self, crd: Object) -> None:
        try:
            self.kinds.define(crd)
        except Invalid as error:
            raise Refused(422, str(error)) from error
        crd["status"] = {"conditions": [{"type": "Established", "status": "True"}]}

    def _admits(self, call: _Call, new: Object) -> None:
        if not call.namespace:
            return
        space = self.get(NAMESPACES, call.namespace)
        if space is None:
            raise Refused(404, f'namespaces "{call.namespace}" not found')
        if "deletionTimestamp" in space["metadata"]:
            raise Refused(403, f"namespace {call.namespace} is being terminated")
        if call.plural == "pods":
            account = new["spec"].get("serviceAccountName", "default")
            accounts = f"{NAMESPACES}/{call.namespace}/serviceaccounts"
            if self.get(accounts, account) is None:
                raise Refused(403, f'serviceaccount "{account}" not found')

    def _changed_by(self, call: _Call, old: Object, body: Object) -> Object:
        stale = (body.get("metadata") or {}).get("resourceVersion")
        if stale and stale != old["metadata"]["resourceVersion"]:
            raise Refused(409, f'Operation cannot be fulfilled on "{call.name}": modified')
        if call.verb == "replace":
            return body
        if call.content not in {MERGE, APPLY}:
            raise Refused(415, f"the body of the request was in an unknown format: {call.content}")
        return dict(kube._merge(old, body))

    def _write(self, call: _Call, old: Object, given: Object) -> Object:
        """Keep what this request may not change, and count a generation if the spec changed."""
        new = copy.deepcopy(given)
        kept = ("uid", "creationTimestamp", "generation", "deletionTimestamp")
        new["metadata"] |= {key: old["metadata"][key] for key in kept if key in old["metadata"]}
        if self.kinds.has_status(call.at, call.plural):
            if call.sub == "status":
                new = {**copy.deepcopy(old), "status": new.get("status", {})}
            elif "status" in old:
                new["status"] = old["status"]
        self._check(call, new)
        if new.get("spec") != old.get("spec") and call.plural not in {"pods", "leases"}:
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        if call.dry:
            return new
        new = self.put(call.collection, new)
        if "deletionTimestamp" in new["metadata"] and not new["metadata"].get("finalizers"):
            self.remove(call.collection, call.name)
        return new

    def _delete(self, call: _Call, old: Object) -> Object:
        about = old["metadata"]
        if call.dry:
            return old
        if about.get("finalizers") or call.collection == NAMESPACES:
            if "deletionTimestamp" not in about:
                now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                times = {"deletionTimestamp": now, "deletionGracePeriodSeconds": 0}
                return self.put(call.collection, {**old, "metadata": {**about, **times}})
            return old
        if call.collection == CRDS:
            self.kinds.withdraw(old)
        self.remove(call.collection, call.name)
        return kube._status(200, "")

    def _check(self, call: _Call, it: Object) -> None:
        self.kinds.fill(call.at, call.plural, it)
        try:
            self.kinds.check(call.at, call.plural, it)
        except Invalid as error:
            raise Refused(422 if call.at in self.kinds.served else 400, str(error)) from error


def _take_apart(request: web.Request, path: str) -> _Call:
    parts = path.strip("/").split("/")
    head = 2 if parts[0] == "api" else 3
    at, rest = "/".join(parts[1:head]), parts[head:]
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    plural, name, sub = [*rest, "", "", ""][:3]
    base = f"/{'/'.join(parts[:head])}" + (f"/namespaces/{namespace}" if namespace else "")
    verb = kube._verb(request, name) if plural else "get"
    content = request.headers.get("Content-Type", "")
    if verb == "patch" and content == APPLY:
        verb = "apply"
    dry = request.query.get("dryRun") == "All"
    selector = request.query.get("fieldSelector", "")
    selected = selector.removeprefix(NAMED) if selector.startswith(NAMED) else ""
    return _Call(verb, at, plural, namespace, name, sub, f"{base}/{plural}", dry, content, selected)
