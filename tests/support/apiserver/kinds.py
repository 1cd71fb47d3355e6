"""Which kinds a fake API server serves, and what it says to an object of one."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import jsonschema

from tests.support.kube_objects import Object
from tests.support.manifests import check

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
#: Built-in kinds by API version: plural, kind, and whether its objects stand in namespaces.
BUILT_IN: dict[str, dict[str, tuple[str, bool]]] = {
    "v1": {
        "namespaces": ("Namespace", False),
        "pods": ("Pod", True),
        "services": ("Service", True),
        "configmaps": ("ConfigMap", True),
        "serviceaccounts": ("ServiceAccount", True),
    },
    "apps/v1": {"deployments": ("Deployment", True)},
    "policy/v1": {"poddisruptionbudgets": ("PodDisruptionBudget", True)},
    "networking.k8s.io/v1": {"networkpolicies": ("NetworkPolicy", True)},
    "coordination.k8s.io/v1": {"leases": ("Lease", True)},
    "authentication.k8s.io/v1": {"tokenreviews": ("TokenReview", False)},
    "authorization.k8s.io/v1": {"subjectaccessreviews": ("SubjectAccessReview", False)},
    "apiextensions.k8s.io/v1": {"customresourcedefinitions": ("CustomResourceDefinition", False)},
    "rbac.authorization.k8s.io/v1": {
        "roles": ("Role", True),
        "rolebindings": ("RoleBinding", True),
        "clusterroles": ("ClusterRole", False),
        "clusterrolebindings": ("ClusterRoleBinding", False),
    },
}
WITH_STATUS = {"namespaces", "pods", "services", "deployments", "poddisruptionbudgets"}
ABOUT = {
    "name", "namespace", "labels", "annotations", "finalizers", "ownerReferences", "generateName",
    "resourceVersion", "uid", "creationTimestamp", "generation", "managedFields",
    "deletionTimestamp", "deletionGracePeriodSeconds",
}  # fmt: skip


class Invalid(Exception):
    """The object is refused."""


@dataclass
class Kinds:
    """The kinds served: the built-in ones and those of CRDs."""

    served: dict[str, dict[str, tuple[str, bool]]] = field(
        default_factory=lambda: copy.deepcopy(BUILT_IN)
    )
    schemas: dict[tuple[str, str], Object] = field(default_factory=dict)  #: of custom ones

    def define(self, crd: Object) -> None:
        """Serve the kind of a CustomResourceDefinition."""
        spec = crd["spec"]
        group, names = spec["group"], spec["names"]
        approved = (crd["metadata"].get("annotations") or {}).get("api-approved.kubernetes.io")
        if group.endswith(".k8s.io") and not approved:
            raise Invalid("protected groups must have the annotation api-approved.kubernetes.io")
        for version in spec["versions"]:
            at = f"{group}/{version['name']}"
            self.served.setdefault(at, {})[names["plural"]] = (names["kind"], True)
            schema = _strict(version["schema"]["openAPIV3Schema"])
            self.schemas[at, names["plural"]] = schema

    def withdraw(self, crd: Object) -> None:
        for version in crd["spec"]["versions"]:
            self.served[f"{crd['spec']['group']}/{version['name']}"].pop(
                crd["spec"]["names"]["plural"]
            )

    def has_status(self, at: str, plural: str) -> bool:
        return plural in WITH_STATUS or (at, plural) in self.schemas

    def check(self, at: str, plural: str, it: Object) -> None:
        """Refuse unknown and wrong fields.

        Raises:
            Invalid: there are some.
        """
        kind, _ = self.served[at][plural]
        if (it.get("apiVersion"), it.get("kind")) != (at, kind):
            raise Invalid(f"{it.get('apiVersion')} {it.get('kind')} is no {at} {kind}")
        unknown = set(it["metadata"]) - ABOUT
        if unknown:
            raise Invalid(f"unknown field metadata.{unknown.pop()}")
        schema = self.schemas.get((at, plural))
        try:
            if schema is None:
                check(_without_names(it))
            else:
                jsonschema.validate(it, schema)
        except (jsonschema.ValidationError, AssertionError) as error:
            raise Invalid(str(error).splitlines()[0]) from error

    def fill(self, at: str, plural: str, it: Object) -> None:
        """Write a custom kind's defaults into an object."""
        if (schema := self.schemas.get((at, plural))) is not None:
            _fill(schema, it)

    def listing(self, at: str) -> Object:
        """What discovery says of an API version."""
        resources = [
            {"name": plural, "kind": kind, "namespaced": namespaced}
            for plural, (kind, namespaced) in self.served[at].items()
        ]
        return {"kind": "APIResourceList", "groupVersion": at, "resources": resources}


def _without_names(it: Object) -> Object:
    """The same object for the check, which is slow and remembers."""
    same = {**it, "metadata": {"name": "x"}}
    status = it.get("status")
    if isinstance(status, dict) and status.get("podIPs"):
        same["status"] = {**status, "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
    return same


def _strict(schema: Any) -> Any:
    """The schema with unknown fields refused, as ``fieldValidation=Strict`` does."""
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items() if key != "properties"}
    if "properties" in schema:
        made["properties"] = {key: _strict(value) for key, value in schema["properties"].items()}
        made.setdefault("additionalProperties", False)
    return made


def _fill(schema: Object, value: Any) -> None:
    if isinstance(value, list):
        for each in value:
            _fill(schema.get("items") or {}, each)
    if isinstance(value, dict):
        for key, inner in (schema.get("properties") or {}).items():
            if "default" in inner:
                value.setdefault(key, copy.deepcopy(inner["default"]))
            if key in value:
                _fill(inner, value[key])
