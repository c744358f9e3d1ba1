"""What koordlet may do on its node, and what the roles' tokens may not do in the cluster: a table each, and the manifests after it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from koord.version import VERSION
from roles.koordlet import rights
from roles.tools import manifests
from roles.tools.doctor.rights import ACCOUNTS, Question, questions
from tests.support.processes import ROOT

pytestmark = pytest.mark.feature("BEY-SEC-01")
Obj = dict[str, Any]


def agent(*overlays: str) -> tuple[Obj, Obj]:
    found = next(d for d in manifests.rendered(crds=False, overlays=overlays) if d["kind"] == "DaemonSet")
    pod = found["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


def test_the_daemonset_has_what_the_table_says_and_no_more() -> None:
    pod, container = agent()
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": list(rights.capabilities())}
    assert (security["allowPrivilegeEscalation"], security.get("privileged", False)) == (False, False)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    paths = {volume["name"]: volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume}
    assert paths == {m.name: {"path": m.path, **({"type": "DirectoryOrCreate"} if m.made else {})} for m in rights.mounts()}
    assert "/" not in {path["path"] for path in paths.values()}
    mounted = {mount["name"]: mount for mount in container["volumeMounts"] if mount["name"] in paths}
    for mount in rights.mounts():
        found = mounted[mount.name]
        assert found["mountPath"] == f"/host{mount.path}"
        assert (found.get("readOnly", False), found.get("mountPropagation")) == (
            not mount.writable,
            "HostToContainer" if mount.follows else None,
        ), mount.name


def test_every_file_that_a_flag_names_lies_on_a_mount() -> None:
    _, container = agent()
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    for argument in container["args"]:
        flag, _, value = argument.partition("=")
        if flag in ("--audit-log-dir", "--tsdb-path", "--prediction-checkpoint-filepath"):
            assert any(value == path or value.startswith(f"{path}/") for path in writable), argument


def test_the_unit_has_the_same_capabilities() -> None:
    unit = (ROOT / "packaging/systemd/koordlet.service").read_text()
    [line] = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    assert set(line.split()) == {f"CAP_{name}" for name in rights.capabilities()}


def test_the_documentation_has_the_table() -> None:
    text = (ROOT / "docs/host.md").read_text()
    assert rights.table() in text, "python -c 'from roles.koordlet.rights import table; print(table())'"


def test_all_rights_are_there_for_whom_asks() -> None:
    pod, container = agent("koordlet-privileged")
    assert container["securityContext"]["privileged"] is True
    assert {"path": "/"} in [volume.get("hostPath") for volume in pod["volumes"]]
    _, observing = agent("koordlet-observe")
    assert observing["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_images_are_of_this_release_and_pulled_once() -> None:
    for overlay in ((), *((name,) for name in manifests.OVERLAYS)):
        for document in manifests.rendered(crds=False, overlays=overlay):
            if document["kind"] in ("Deployment", "DaemonSet"):
                [container] = document["spec"]["template"]["spec"]["containers"]
                assert container["image"].endswith(f":v{VERSION}")
                assert container["imagePullPolicy"] == "IfNotPresent"
    pinned = "registry.example.com/koord@sha256:" + "0" * 64
    found = [d for d in manifests.rendered(image=pinned, crds=False) if d["kind"] == "Deployment"]
    assert {d["spec"]["template"]["spec"]["containers"][0]["image"] for d in found} == {pinned}


# -- tokens --------------------------------------------------------------------------------------------------------------------

#: (verb, group, resource, subresource) that lead to more than the role's own work. "*" is any verb.
DANGEROUS = {
    "run commands in containers": [("*", "", "pods", "exec"), ("*", "", "pods", "attach"), ("*", "", "nodes", "proxy")],
    "reach into pods": [("*", "", "pods", "proxy"), ("*", "", "services", "proxy"), ("*", "", "pods", "portforward"),
                        ("*", "", "pods", "ephemeralcontainers")],
    "read secrets of others": [("get", "", "secrets", ""), ("list", "", "secrets", ""), ("watch", "", "secrets", "")],
    "become somebody else": [("*", "", "serviceaccounts", "token"), ("impersonate", "", "users", ""), ("impersonate", "", "groups", ""),
                             ("impersonate", "", "serviceaccounts", ""),
                             ("*", "certificates.k8s.io", "certificatesigningrequests", "approval")],
    "give themselves rights": [(verb, "rbac.authorization.k8s.io", kind, "") for verb in ("create", "update", "patch", "bind")
                               for kind in ("roles", "clusterroles", "rolebindings", "clusterrolebindings")],
    "start programs": [(verb, group, kind, "") for verb in ("create", "update", "patch") for group, kind in
                       (("apps", "deployments"), ("apps", "daemonsets"), ("apps", "statefulsets"), ("batch", "jobs"),
                        ("batch", "cronjobs"))]
    + [("create", "", "pods", ""), ("update", "", "pods", "")],
    "change what is installed": [(verb, group, kind, "") for verb in ("create", "update", "patch", "delete") for group, kind in
                                 (("apiextensions.k8s.io", "customresourcedefinitions"),
                                  ("admissionregistration.k8s.io", "validatingadmissionpolicies"))],
    "take nodes away": [("delete", "", "nodes", ""), ("create", "", "nodes", ""), ("update", "", "nodes", "")],
}  # fmt: skip
#: What a role holds of that all the same, each with its bound.
ALLOWED = {
    ("manager", "get", "secrets"): "koordinator-webhook-certs",
    ("manager", "list", "secrets"): "koordinator-webhook-certs",
    ("manager", "watch", "secrets"): "koordinator-webhook-certs",
}


def holds(question: Question, wanted: tuple[str, str, str, str]) -> bool:
    verb, group, resource, subresource = wanted
    return (
        verb in ("*", question.verb)
        and question.group in (group, "*")
        and question.resource in (resource, "*")
        and question.subresource in (subresource, "*")
    )


@pytest.mark.parametrize("role", ACCOUNTS)
@pytest.mark.parametrize("overlay", ["", *manifests.OVERLAYS])
def test_what_a_stolen_token_may_not_do(role: str, overlay: str) -> None:
    documents = manifests.rendered(crds=False, overlays=tuple(filter(None, [overlay])))
    held = questions(documents, ACCOUNTS[role])
    assert held
    for danger, rules in DANGEROUS.items():
        for wanted in rules:
            for question in held:
                if holds(question, wanted):
                    bound = ALLOWED.get((role, question.verb, question.resource))
                    assert bound is not None, f"{role} could {danger}: {question}"
                    assert (question.name, question.namespace) == (bound, manifests.NAMESPACE), f"{role}: {question}"


def test_rights_for_what_is_off_are_not_bound() -> None:
    patching = {
        role
        for role in ACCOUNTS
        if any(holds(q, ("patch", "", "nodes", "")) for q in questions(manifests.rendered(crds=False), ACCOUNTS[role]))
    }
    assert patching == {"manager"}
    names = {d["metadata"]["name"] for d in manifests.rendered(crds=False) if d["kind"] == "ClusterRole"}
    assert {"koord-scheduler-device-plugins", "koord-descheduler-cordon"} <= names


def test_wildcards_stand_for_one_thing_only() -> None:
    for document in manifests.rendered(crds=False):
        for rule in document.get("rules") or ():
            assert "*" not in rule["verbs"]
            assert "*" not in rule.get("resources", ())
            assert "*" not in rule.get("apiGroups", ()) or rule == {"apiGroups": ["*"], "resources": ["*/scale"], "verbs": ["get"]}
