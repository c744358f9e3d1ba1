"""What each role needs to be allowed, read from its manifest, as questions for an access review. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Obj = dict[str, Any]
ACCOUNTS = {"manager": "koord-manager", "scheduler": "koord-scheduler", "descheduler": "koord-descheduler", "koordlet": "koordlet"}


_BUILT_IN: dict[tuple[str, str, str], Obj] = {
    ("ClusterRole", "", "system:auth-delegator"): {
        "rules": [
            {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
            {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        ]
    }
}
"""Roles of Kubernetes itself that the manifests bind."""


@dataclass(frozen=True, slots=True)
class Question:
    """One thing that a role does. `namespace` "" is the whole cluster."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    def wire(self) -> Obj:
        """As `resourceAttributes` of an access review."""
        fields = ("verb", "group", "resource", "subresource", "namespace", "name")
        return {field: value for field in fields if (value := getattr(self, field))}

    def __str__(self) -> str:
        what = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        what = f"{what}.{self.group}" if self.group else what
        return f"{self.verb} {what}" + (f" {self.name}" if self.name else "") + (f" in {self.namespace}" if self.namespace else "")


def questions(documents: Iterable[Obj], account: str) -> list[Question]:
    """Everything that the manifests grant an account, each once."""
    found = list(documents)
    roles = _BUILT_IN | {
        (d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]): d for d in found if d["kind"] in ("ClusterRole", "Role")
    }
    asked: dict[Question, None] = {}
    for binding in found:
        if binding["kind"] not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        if not any(subject.get("kind") == "ServiceAccount" and subject.get("name") == account for subject in binding.get("subjects") or ()):
            continue
        reference, namespace = binding["roleRef"], binding["metadata"].get("namespace", "")
        role = roles.get((reference["kind"], namespace if reference["kind"] == "Role" else "", reference["name"]))
        for rule in (role or {}).get("rules") or ():
            asked |= dict.fromkeys(_of_rule(rule, namespace))
    return list(asked)


def _of_rule(rule: Obj, namespace: str) -> Iterator[Question]:
    for group in rule.get("apiGroups") or ():
        for full in rule.get("resources") or ():
            resource, _, subresource = full.partition("/")
            if resource == "*":
                # `*/scale`: of any workload; one that every cluster serves stands for all.
                group, resource = "apps", "deployments"
            for verb in rule.get("verbs") or ():
                for name in rule.get("resourceNames") or ("",):
                    yield Question(verb, group, resource, subresource, namespace, name)
