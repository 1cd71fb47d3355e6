"""Asks the cluster whether the owner of a token may read a path of ours.

Verdicts are kept for a minute, so that a scraper costs two calls a minute. What is kept is a
digest of the token, never the token.

**Source:** TokenReview of authentication.k8s.io/v1 and SubjectAccessReview of
authorization.k8s.io/v1, asked as controller-runtime guards its metrics.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any, Literal

from epp.clock import Clock
from epp.kube.access import Access
from epp.kube.client import Kube

Verdict = Literal["allowed", "unknown", "forbidden"]  #: unknown: nobody the cluster knows

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
RIGHTS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
KEPT_SECONDS = 60.0
MOST_KEPT = 1000
CALL_SECONDS = 5.0  #: for each of the two calls
AT_ONCE = 4  #: reviews; others wait, so that made-up tokens do not flood the API server
WHO = ("username", "uid", "groups", "extra")


class Reviewer:
    """Reviews tokens.

    Args:
        access: to the API server; we must be allowed to create both kinds of review there.
        clock: tells how old a verdict is.
    """

    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._kept: dict[tuple[bytes, str, str], tuple[Verdict, float]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def review(self, token: str, verb: str, path: str) -> Verdict:
        """Say whether ``token``'s owner may do ``verb`` (``get``) on ``path`` (``/metrics``).

        Raises:
            errors.KubeError: the API server does not say.
        """
        key = (hashlib.sha256(token.encode()).digest(), verb, path)
        async with self._turns:
            verdict, until = self._kept.get(key, ("unknown", 0.0))
            if self._clock.now() >= until:
                verdict = await self._ask(token, {"path": path, "verb": verb})
                self._keep(key, verdict)
        return verdict

    def _keep(self, key: tuple[bytes, str, str], verdict: Verdict) -> None:
        self._kept.pop(key, None)
        while len(self._kept) >= MOST_KEPT:
            del self._kept[next(iter(self._kept))]  # the oldest
        self._kept[key] = (verdict, self._clock.now() + KEPT_SECONDS)

    async def _ask(self, token: str, wanted: Mapping[str, str]) -> Verdict:
        async with Kube(self._access, seconds=CALL_SECONDS) as kube:
            said = await kube.create(
                TOKENS, _review("authentication.k8s.io/v1", "TokenReview", {"token": token})
            )
            status = _part(said, "status")
            if status.get("authenticated") is not True:
                return "unknown"
            user = _part(status, "user")
            spec = {to: user[it] for it, to in zip(WHO, ("user", *WHO[1:]), strict=True)
                    if user.get(it)}  # fmt: skip
            rights = _review(
                "authorization.k8s.io/v1", "SubjectAccessReview",
                {**spec, "nonResourceAttributes": wanted},
            )  # fmt: skip
            allowed = _part(await kube.create(RIGHTS, rights), "status").get("allowed")
        return "allowed" if allowed is True else "forbidden"


def _review(version: str, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"apiVersion": version, "kind": kind, "spec": spec}


def _part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = whole.get(name)
    return found if isinstance(found, dict) else {}
