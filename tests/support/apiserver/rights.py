"""Who may do what: the Role-based access control of a fake API server, over its own objects."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.kube_objects import Object, Objects

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMIN = "admin"
VERBS = {"replace": "update"}  #: of requests, where rights have another word


@dataclass
class Wish:
    """What a request wants to do."""

    verb: str
    group: str = ""
    resource: str = ""  #: with its subresource: ``pods/status``
    namespace: str = ""
    name: str = ""  #: of the object; of a list or watch the one that its field selector names
    path: str = ""  #: of no resource, such as ``/metrics``


@dataclass
class Rights:
    """Knows tokens and evaluates the bindings among ``objects``."""

    objects: Objects
    users: dict[str, str] = field(default_factory=lambda: {ADMIN: ADMIN})  #: by token

    def token_of(self, namespace: str, account: str) -> str:
        """Make a token of a service account."""
        token = secrets.token_urlsafe(24)
        self.users[token] = f"system:serviceaccount:{namespace}:{account}"
        return token

    def allows(self, user: str, wish: Wish) -> bool:
        """Whether ``user`` may; the admin always may."""
        return user == ADMIN or any(_grants(rule, wish) for rule in self._rules(user, wish))

    def refusal(self, user: str, wish: Wish) -> str:
        """What the server says instead."""
        if wish.path:
            return f'forbidden: User "{user}" cannot {wish.verb} path "{wish.path}"'
        return (
            f'{wish.resource} is forbidden: User "{user}" cannot {wish.verb} resource '
            f'"{wish.resource}" in API group "{wish.group}" in the namespace "{wish.namespace}"'
        )

    def _rules(self, user: str, wish: Wish) -> Iterator[Object]:
        spaces = [f"{RBAC}/namespaces/{wish.namespace}"] if wish.namespace else []
        for at, plural in [*((space, "rolebindings") for space in spaces),
                           (RBAC, "clusterrolebindings")]:  # fmt: skip
            for binding in self.objects.collection(f"{at}/{plural}").values():
                if any(_is(subject, user) for subject in binding.get("subjects") or ()):
                    yield from self._role(at, binding["roleRef"])

    def _role(self, at: str, reference: Object) -> list[Object]:
        place = at if reference["kind"] == "Role" else RBAC
        plural = f"{reference['kind'].lower()}s"
        role = self.objects.collection(f"{place}/{plural}").get(reference["name"])
        return list((role or {}).get("rules") or ())


def _is(subject: Object, user: str) -> bool:
    account = f"system:serviceaccount:{subject.get('namespace')}:{subject['name']}"
    return subject["kind"] == "ServiceAccount" and account == user


def _grants(rule: Object, wish: Wish) -> bool:
    def has(key: str, value: str) -> bool:
        return bool({"*", value} & set(rule.get(key) or ()))

    if not has("verbs", VERBS.get(wish.verb, wish.verb)):
        return False
    if wish.path:
        return has("nonResourceURLs", wish.path)
    named = not rule.get("resourceNames") or wish.name in rule["resourceNames"]
    return named and has("apiGroups", wish.group) and has("resources", wish.resource)


def review(rights: Rights, body: Object) -> Object:
    """Answer a TokenReview or a SubjectAccessReview."""
    spec = body["spec"]
    if body["kind"] == "TokenReview":
        user = rights.users.get(spec["token"])
        if user is None:
            return {**body, "status": {"user": {}, "error": "[invalid bearer token]"}}
        about: dict[str, Any] = {"username": user, "uid": "1", "groups": ["system:authenticated"]}
        return {**body, "status": {"authenticated": True, "user": about}}
    wanted = spec["nonResourceAttributes"]
    wish = Wish(wanted["verb"], path=wanted["path"])
    return {**body, "status": {"allowed": rights.allows(spec["user"], wish)}}
