"""What is compared with RBAC: who may what, who may give it to others, and as whom a request counts."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from .scenarios import DEPLOYMENTS, MAPS, PODS, config_map, pod
from .transcript import APPLY, MERGE, Transcript, settle

GROUP = "rbac.authorization.k8s.io"
RBAC = f"/apis/{GROUP}/v1"
HERE = f"{RBAC}/namespaces/{{ns}}"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"


@contextlib.contextmanager
def _as(t: Transcript, user: str, **headers: str) -> Iterator[None]:
    """Requests as somebody else."""
    known = t.target.session.headers
    kept = dict(known)
    known.update({f"Impersonate-{key}": value for key, value in {"User": user, **headers}.items() if value})
    try:
        yield
    finally:
        known.clear()
        known.update(kept)


def _rule(*verbs: str, resources: tuple[str, ...] = ("configmaps",), group: str = "", names: tuple[str, ...] = ()) -> dict[str, Any]:
    rule = {"verbs": list(verbs), "apiGroups": [group], "resources": list(resources)}
    return {**rule, "resourceNames": list(names)} if names else rule


def _bound(name: str, role: str, subject: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": role}, "subjects": [subject]}


def _grant(t: Transcript, user: str, *rules: dict[str, Any]) -> None:
    """Give a user these rights in the namespace of this run."""
    t.raw("POST", HERE + "/roles", {"metadata": {"name": user}, "rules": list(rules)})
    t.raw("POST", HERE + "/rolebindings", _bound(user, user, {"kind": "User", "name": user}))
    verb, resource = rules[0]["verbs"][0], rules[0]["resources"][0].partition("/")
    asked = {"verb": verb, "group": rules[0]["apiGroups"][0], "resource": resource[0], "subresource": resource[2], "namespace": t.ns}
    asked["name"] = (rules[0].get("resourceNames") or [""])[0]
    for _ in range(400):
        out = t.raw("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": {"user": user, "resourceAttributes": asked}})[1]
        if out["status"].get("allowed"):
            return
        settle()
    raise AssertionError(f"{user} never got {rules}")


def rights_are_not_multiplied(t: Transcript) -> None:
    """Nobody gives what he does not have, unless he may."""
    managed = _rule("create", "update", "patch", "get", resources=("roles", "rolebindings"), group=GROUP)
    _grant(t, "joe", _rule("get", "list"), managed)
    t.raw("POST", HERE + "/roles", {"metadata": {"name": "big"}, "rules": [_rule("delete", resources=("secrets",))]})
    eve = {"kind": "User", "name": "eve"}
    with _as(t, "joe"):
        for name, *rules in (
            ("same", _rule("get")),
            ("more", _rule("get", "delete")),
            ("star", {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
            ("named", _rule("get", names=("a",))),
            ("other", _rule("get", resources=("secrets",)), _rule("get", resources=("pods", "pods/log"))),
        ):
            t.call("POST", HERE + "/roles", {"metadata": {"name": name}, "rules": rules})
        t.verdict("PATCH", HERE + "/roles/same", {"rules": [_rule("get", "delete")]}, MERGE)
        t.verdict("PATCH", HERE + "/roles/same", {"metadata": {"labels": {"a": "b"}}}, MERGE)
        t.verdict("POST", HERE + "/rolebindings", _bound("b1", "same", eve))
        t.call("POST", HERE + "/rolebindings", _bound("b2", "big", eve))
        t.verdict("POST", HERE + "/rolebindings", _bound("b3", "missing", eve))
        t.verdict("PATCH", HERE + "/rolebindings/b1", {"subjects": [{"kind": "User", "name": "bob", "apiGroup": GROUP}]}, MERGE)
        t.call("POST", RBAC + "/clusterroles", {"metadata": {"name": f"{t.ns}-c"}, "rules": []})
    _grant(t, "trusted", _rule("create", "escalate", "bind", resources=("roles", "rolebindings"), group=GROUP))
    with _as(t, "trusted"):
        t.verdict("POST", HERE + "/roles", {"metadata": {"name": "more2"}, "rules": [_rule("delete", resources=("secrets",))]})
        t.verdict("POST", HERE + "/rolebindings", _bound("b4", "big", eve))


def impersonation(t: Transcript) -> None:
    """As whom a request counts."""
    account = "system:serviceaccount:x:y"
    for user, headers in (
        ("u", {}),
        ("u", {"Group": "g"}),
        ("u", {"Group": "system:unauthenticated"}),
        ("u", {"Uid": "5"}),
        ("u", {"Extra-scopes": "a", "Extra-a%2fb": "c"}),
        ("system:anonymous", {}),
        (account, {}),
        (account, {"Group": "g"}),
        ("system:serviceaccount:none", {}),
        ("", {"Group": "g"}),
        ("", {"Uid": "5"}),
        ("", {"Extra-x": "y"}),
    ):
        with _as(t, user, **headers):
            status, out = t.raw("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
        t.note(user=user, headers=headers, status=status, counts=out["status"]["userInfo"] if status == 201 else out["reason"])


def verbs(t: Transcript) -> None:
    """An update that creates needs the right to create; names and subresources are rights of their own."""
    _grant(t, "pat", _rule("get", "patch", "update"), _rule("update", "patch", "get", resources=("leases",), group="coordination.k8s.io"))
    with _as(t, "pat"):
        t.call("PATCH", MAPS + "/new?fieldManager=x", config_map("new", a="1"), APPLY)
        t.call("PUT", LEASES + "/l", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "m"}})
        for method, path in (
            ("GET", MAPS),
            ("GET", MAPS + "/none"),
            ("DELETE", MAPS + "/none"),
            ("DELETE", MAPS),
            ("GET", "/api/v1/configmaps"),
            ("GET", PODS + "/p/log"),
            ("GET", "/metrics"),
        ):
            t.call(method, path)
        t.note(open=[t.raw("GET", path)[0] for path in ("/healthz", "/apis", "/version")])
    _grant(t, "one", _rule("get", "list", "watch", names=("a", "b")))
    t.raw("POST", MAPS, config_map("a"))
    with _as(t, "one"):
        for query in ("fieldSelector=metadata.name%3Da", "fieldSelector=metadata.name%3Dc", "labelSelector=a", "limit=1"):
            t.note(query=query, status=t.raw("GET", f"{MAPS}?{query}")[0])
        t.watch(MAPS + "?fieldSelector=metadata.name%3Da&resourceVersion=0")
        for name in "ac":
            t.verdict("GET", f"{MAPS}/{name}")
    _grant(t, "part", _rule("patch", "get", resources=("pods/status", "*/scale")))
    t.raw("POST", PODS, pod())
    with _as(t, "part"):
        t.verdict("PATCH", PODS + "/p/status", {"status": {"phase": "Running"}}, MERGE)
        t.verdict("PATCH", PODS + "/p", {"metadata": {"labels": {"a": "b"}}}, MERGE)
        t.verdict("GET", PODS + "/p")
        t.verdict("GET", DEPLOYMENTS + "/x/scale")


def answers(t: Transcript) -> None:
    """What access reviews say."""
    _grant(t, "rev", _rule("get", "list"), _rule("*", resources=("pods",), names=("p",)))
    for asked in (
        {"verb": "get", "resource": "configmaps", "namespace": t.ns},
        {"verb": "get", "resource": "configmaps"},
        {"verb": "delete", "resource": "pods", "namespace": t.ns, "name": "p"},
        {"verb": "delete", "resource": "pods", "namespace": t.ns},
        {"verb": "get", "resource": "pods", "subresource": "log", "namespace": t.ns, "name": "p"},
    ):
        t.verdict("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": {"user": "rev", "resourceAttributes": asked}})
    with _as(t, "rev"):
        out = t.raw("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {"spec": {"namespace": t.ns}})[1]
        t.note(rules=sorted(json.dumps(rule, sort_keys=True) for rule in out["status"]["resourceRules"]))
        question = {"user": "x", "resourceAttributes": {"verb": "get", "resource": "pods"}}
        t.verdict("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": question})
        t.verdict("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}})


SCENARIOS = (rights_are_not_multiplied, impersonation, verbs, answers)
