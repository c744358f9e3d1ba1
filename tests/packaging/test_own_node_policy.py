"""The admission policy that ties a koordlet to its node, evaluated: what CEL says of own and of foreign objects (BEY-SEC-01)."""

from __future__ import annotations

from typing import Any

import pytest

from koord.apiserver.cel.policy import compile_policy
from roles.tools import manifests

Obj = dict[str, Any]
KOORDLET = "system:serviceaccount:koordinator-system:koordlet"
NODE = "authentication.kubernetes.io/node-name"
STATUS = ("slo.koordinator.sh", "nodemetrics/status", "UPDATE")


class Policy:
    """A ValidatingAdmissionPolicy as an API server applies it: constraints, conditions, variables, validations, in this order."""

    def __init__(self, namespace: str = manifests.NAMESPACE) -> None:
        documents = manifests.rendered(crds=False, namespace=namespace)
        self.spec = next(d["spec"] for d in documents if d["kind"] == "ValidatingAdmissionPolicy")
        binding = next(d["spec"] for d in documents if d["kind"] == "ValidatingAdmissionPolicyBinding")
        assert binding == {"policyName": "koordlet-own-node", "validationActions": ["Deny"]}
        self.policy = compile_policy("koordlet-own-node", self.spec)
        assert not self.policy.causes

    def applies(self, group: str, resource: str, operation: str) -> bool:
        return any(
            group in rule["apiGroups"] and resource in rule["resources"] and operation in rule["operations"]
            for rule in self.spec["matchConstraints"]["resourceRules"]
        )

    def refusal(self, name: str, user: str = KOORDLET, node: str | None = "n1", write: tuple[str, str, str] = STATUS) -> str:
        """Why a write of the object `name` is denied; empty when it is let through."""
        if not self.applies(*write):
            return ""
        extra = {NODE: [node]} if node is not None else {"authentication.kubernetes.io/pod-name": ["koordlet-x"]}
        context = {"request": {"userInfo": {"username": user, "extra": extra}}, "object": {"metadata": {"name": name}}}
        verdicts = self.policy.judge(context) if self.policy.applies(context) else []
        return verdicts[0].message if verdicts else ""


WRITES = [
    STATUS,
    ("topology.node.k8s.io", "noderesourcetopologies", "CREATE"),
    ("topology.node.k8s.io", "noderesourcetopologies", "UPDATE"),
    ("scheduling.koordinator.sh", "devices", "CREATE"),
    ("scheduling.koordinator.sh", "devices", "UPDATE"),
]


@pytest.mark.feature("BEY-SEC-01")
@pytest.mark.parametrize("write", WRITES, ids=lambda write: f"{write[2]} {write[1]}")
def test_own_objects_pass_and_foreign_ones_do_not(write: tuple[str, str, str]) -> None:
    policy = Policy()
    assert policy.refusal("n1", write=write) == ""
    assert policy.refusal("n2", write=write) == "the koordlet of node n1 may not write n2"
    assert policy.refusal("n1", node=None, write=write) == "the token of this koordlet names no node"
    assert policy.refusal("", node="", write=write) == "the token of this koordlet names no node", "no name is no node"


@pytest.mark.feature("BEY-SEC-01")
def test_every_right_of_koordlet_to_write_node_objects_is_covered() -> None:
    policy = Policy()
    role = next(d for d in manifests.documents("install") if d["kind"] == "ClusterRole" and d["metadata"]["name"] == "koordlet")
    verbs = {"create": "CREATE", "patch": "UPDATE", "update": "UPDATE", "delete": "DELETE"}
    loose = [
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb in verbs and not policy.applies(group, resource, verbs[verb])
    ]
    # evictions name pods of any node, events are only told
    assert {(group, resource) for group, resource, _ in loose} == {("", "pods/eviction"), ("", "events"), ("events.k8s.io", "events")}


def test_others_are_not_asked_and_the_namespace_follows() -> None:
    policy = Policy()
    assert policy.refusal("n2", user="system:serviceaccount:koordinator-system:koord-manager") == ""
    assert policy.spec["failurePolicy"] == "Fail"
    moved = Policy("colocation")
    assert moved.refusal("n2", user="system:serviceaccount:colocation:koordlet") == "the koordlet of node n1 may not write n2"
    assert moved.refusal("n2") == "", "an account of another namespace is not ours"
