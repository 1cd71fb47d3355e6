"""An administrator's hands on an API server, real or fake, over plain HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from epp.kube.client import MERGE_PATCH, Call, Kube
from epp.kube.errors import KubeError

APPLY_PATCH = "application/apply-patch+yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OUR_CRDS = Path(__file__).parents[2] / "data/crds"
NAMESPACES = "/api/v1/namespaces"
ESTABLISHED_SECONDS = 20.0
MANAGER = "epp-tests"

Object = dict[str, Any]


class NotServed(Exception):
    """The server has no such kind."""


class Admin:
    """Writes as an administrator does; every field of an object is checked by the server."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self._kinds: dict[str, dict[str, tuple[str, bool]]] = {}

    async def path_of(self, it: Object, namespace: str) -> str:
        """Where an object stands.

        Raises:
            NotServed: nowhere.
        """
        at = it["apiVersion"]
        if at not in self._kinds:
            self._kinds[at] = await self._served(at)
        if it["kind"] not in self._kinds[at]:
            raise NotServed(f"{at} {it['kind']}")
        plural, namespaced = self._kinds[at][it["kind"]]
        base = f"/apis/{at}" if "/" in at else f"/api/{at}"
        space = f"/namespaces/{namespace}" if namespaced else ""
        return f"{base}{space}/{plural}"

    async def create(self, it: Object, namespace: str) -> Object:
        path = await self.path_of(it, namespace)
        return await self._send("POST", path, it, {"fieldValidation": "Strict"})

    async def apply(self, it: Object, namespace: str, *, dry: bool = False) -> Object:
        """Apply an object on the server's side, as `kubectl apply --server-side` does."""
        path = f"{await self.path_of(it, namespace)}/{it['metadata']['name']}"
        about = dict(it["metadata"])
        if "/namespaces/" in path:
            about["namespace"] = namespace
        params = {"fieldManager": MANAGER, "force": "true", "fieldValidation": "Strict"}
        if dry:
            params["dryRun"] = "All"
        return await self._send("PATCH", path, {**it, "metadata": about}, params, APPLY_PATCH)

    async def patch(self, path: str, body: Mapping[str, Any]) -> Object:
        """Merge ``body`` into an object, or into its status where ``path`` ends with it."""
        return await self._send("PATCH", path, body, {"fieldValidation": "Strict"}, MERGE_PATCH)

    async def get(self, path: str) -> Object | None:
        """Read an object; None: there is none."""
        try:
            return await self.kube.get(path)
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def delete(self, path: str) -> None:
        """Delete an object; one that is gone already is no error."""
        try:
            await self.kube.delete(path)
        except KubeError as error:
            if error.status != 404:
                raise

    async def token_of(self, namespace: str, account: str) -> str:
        """Ask for a token of a service account."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        path = f"{NAMESPACES}/{namespace}/serviceaccounts/{account}/token"
        return str((await self._send("POST", path, body))["status"]["token"])

    async def define(self) -> None:
        """Have the CRDs that the cluster lacks; they stay, as another run may use them.

        Raises:
            AssertionError: a kind is there, but not in the version that is needed.
        """
        for file in sorted(OUR_CRDS.glob("*.yaml")):
            crd = yaml.safe_load(file.read_text())
            path = f"{CRDS}/{crd['metadata']['name']}"
            if await self.get(path) is None:
                await self._send("POST", CRDS, crd)
            await self._established(path, crd)

    async def _established(self, path: str, crd: Object) -> None:
        spec = crd["spec"]
        at = f"{spec['group']}/{spec['versions'][0]['name']}"
        kind = spec["names"]["kind"]
        deadline = asyncio.get_running_loop().time() + ESTABLISHED_SECONDS
        while kind not in await self._served(at):
            found = (await self.get(path) or {}).get("spec") or {}
            versions = [each["name"] for each in found.get("versions") or () if each["served"]]
            late = asyncio.get_running_loop().time() > deadline
            assert not late, f"the cluster does not serve {kind} of {at}; its CRD: {versions}"
            await asyncio.sleep(0.1)

    async def empty(self, namespace: str, paths: Sequence[str]) -> None:
        """Delete what was made in a namespace, and it.

        Without a controller nobody ends a namespace; then it is ended here, for the controller
        that makes its default service account is the one that would.
        """
        path = f"{NAMESPACES}/{namespace}"
        controlled = await self.get(f"{path}/serviceaccounts/default") is not None
        for each in reversed(paths):
            await self._end(each)
        await self.delete(path)
        left = await self.get(path)
        if left is not None and not controlled:
            left["spec"] = {"finalizers": []}
            await self._send("PUT", f"{path}/finalize", left)

    async def _end(self, path: str) -> None:
        """Delete an object, held or not."""
        await self.delete(path)
        if await self.get(path) is not None:
            with contextlib.suppress(KubeError):
                await self.patch(path, {"metadata": {"finalizers": None}})

    async def _served(self, at: str) -> dict[str, tuple[str, bool]]:
        found = await self.get(f"/apis/{at}" if "/" in at else f"/api/{at}") or {}
        return {
            each["kind"]: (each["name"], each["namespaced"])
            for each in found.get("resources") or ()
            if "/" not in each["name"]
        }

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        params: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Object:
        call = Call(method, path, params or {}, msgspec.json.encode(body), content)
        return msgspec.json.decode(await self.kube.read(call), type=dict[str, Any])
