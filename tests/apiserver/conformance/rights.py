"""What is compared, continued: roles and their bindings, and questions about tokens and access."""

from __future__ import annotations

from typing import Any

from .transcript import MERGE, Transcript

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLES, BOUND = f"{RBAC}/namespaces/{{ns}}/roles", f"{RBAC}/namespaces/{{ns}}/rolebindings"
GROUP = "rbac.authorization.k8s.io"


def roles(t: Transcript) -> None:
    for rule in (
        {"verbs": [], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["get"]},
        {"verbs": ["get"], "nonResourceURLs": ["/x"]},
        {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]},
    ):
        t.call("POST", ROLES + "?dryRun=All", {"metadata": {"name": "r"}, "rules": [rule]})
    both = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "nonResourceURLs": ["/x"]}
    for rule in (both, {"verbs": ["get"], "nonResourceURLs": ["/x"]}):
        t.verdict("POST", f"{RBAC}/clusterroles?dryRun=All", {"metadata": {"name": f"{t.ns}-r"}, "rules": [rule]})


def role_bindings(t: Transcript) -> None:
    def bind(ref: dict[str, Any] | None, *subjects: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {"name": "b"}, "subjects": list(subjects), **({"roleRef": ref} if ref else {})}

    role = {"apiGroup": GROUP, "kind": "Role", "name": "x"}
    for wanted in (
        bind(None),
        bind(role, {"kind": "User", "name": "u"}),
        bind({**role, "apiGroup": "x"}),
        bind({**role, "kind": "Nope"}),
        bind({"kind": "Role", "name": "x"}),
        bind(role, {"kind": "ServiceAccount", "name": "a"}),
        bind(role, {"kind": "Alien", "name": "a"}),
        bind(role, {"kind": "User", "name": ""}),
        bind(role, {"kind": "Group", "name": "g", "apiGroup": "x"}),
    ):
        t.verdict("POST", BOUND + "?dryRun=All", wanted)
    name = f"{t.ns}-b"
    for subject in ({"kind": "ServiceAccount", "name": "a"}, {"kind": "ServiceAccount", "name": "a", "namespace": t.ns}):
        wanted = {"metadata": {"name": name}, "subjects": [subject], "roleRef": {**role, "kind": "ClusterRole"}}
        t.verdict("POST", f"{RBAC}/clusterrolebindings?dryRun=All", wanted)
    t.verdict("POST", f"{RBAC}/clusterrolebindings?dryRun=All", {"metadata": {"name": name}, "roleRef": role})
    t.raw("POST", BOUND, bind(role))
    t.verdict("PATCH", BOUND + "/b", {"roleRef": {"name": "y"}}, MERGE)
    t.verdict("PATCH", BOUND + "/b", {"subjects": [{"kind": "Group", "name": "g"}]}, MERGE)


def questions(t: Transcript) -> None:
    access, pods = "/apis/authorization.k8s.io/v1", {"verb": "get", "resource": "pods"}
    path = {"path": "/x", "verb": "get"}
    for place, spec in (
        ("selfsubjectaccessreviews", {}),
        ("selfsubjectaccessreviews", {"resourceAttributes": pods, "nonResourceAttributes": path}),
        ("subjectaccessreviews", {"resourceAttributes": pods}),
        ("subjectaccessreviews", {"user": "u"}),
        ("namespaces/{ns}/localsubjectaccessreviews", {"user": "u", "resourceAttributes": {**pods, "namespace": "other"}}),
        ("selfsubjectrulesreviews", {}),
    ):
        t.verdict("POST", f"{access}/{place}", {"spec": spec})
    tokens = "/apis/authentication.k8s.io/v1"
    t.call("POST", f"{tokens}/tokenreviews", {"spec": {}})
    t.call("POST", f"{tokens}/tokenreviews", {"spec": {"token": "nobody's"}})


SCENARIOS = (roles, role_bindings, questions)
