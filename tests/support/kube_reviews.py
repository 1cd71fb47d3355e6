"""What a fake API server knows of tokens and rights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

EXTRA = {"authentication.kubernetes.io/pod-name": ["prometheus-0"]}


@dataclass
class Reviews:
    """Answers TokenReviews and SubjectAccessReviews."""

    users: dict[str, str] = field(default_factory=dict)  #: names by token
    rights: set[tuple[str, str, str]] = field(default_factory=set)  #: user, verb, path
    asked: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        spec = body["spec"]
        if body["kind"] == "TokenReview":
            return {**body, "status": self._token(spec["token"])}
        wanted = spec["nonResourceAttributes"]
        allowed = (spec["user"], wanted["verb"], wanted["path"]) in self.rights
        return {**body, "status": {"allowed": allowed}}

    def _token(self, token: str) -> dict[str, Any]:
        if token not in self.users:
            return {"user": {}, "error": "[invalid bearer token]"}
        user = {
            "username": self.users[token],
            "uid": f"uid of {self.users[token]}",
            "groups": ["system:authenticated"],
            "extra": EXTRA,
        }
        return {"authenticated": True, "user": user}
