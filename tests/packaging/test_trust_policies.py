"""The admission policies of who may write what, evaluated: current, and of one mind with the webhook's table."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api import names, trust
from koord.apiserver.cel.library import authorizer
from koord.apiserver.cel.policy import compile_policy
from roles.tools import manifests, policies

Obj = dict[str, Any]
SCHEDULER = "system:serviceaccount:koordinator-system:koord-scheduler"
P = "scheduling.koordinator.sh/"


class Policy:
    """A ValidatingAdmissionPolicy as an API server applies it; ``binds`` is what it would say of the user's right to bind pods."""

    def __init__(self, name: str, namespace: str = manifests.NAMESPACE) -> None:
        documents = [d for d in manifests.rendered(crds=False, namespace=namespace) if d["metadata"]["name"] == name]
        self.spec = next(d["spec"] for d in documents if d["kind"] == "ValidatingAdmissionPolicy")
        binding = next(d["spec"] for d in documents if d["kind"] == "ValidatingAdmissionPolicyBinding")
        assert binding == {"policyName": name, "validationActions": ["Deny"]}
        self.policy = compile_policy(name, self.spec, lambda question: (self.binds, ""))
        self.binds = False
        assert not self.policy.causes

    def denied(self, new: dict[str, str], old: dict[str, str] | None = None, user: str = "tenant", binds: bool = False, **info: Any) -> str:
        """The message that a write of a pod with these annotations is refused with; empty when it is let through."""
        pod = {"metadata": {"name": "w", "annotations": new}} if new else {"metadata": {"name": "w"}}
        before = {"metadata": {"name": "w", "annotations": old}} if old else {"metadata": {"name": "w"}}
        operation = "CREATE" if old is None else "UPDATE"
        self.binds = binds
        context: Obj = {
            "request": {"userInfo": {"username": user, **info}, "namespace": "lab", "operation": operation},
            "object": pod,
            "oldObject": before,
            "authorizer": authorizer(user, ()),
        }
        verdicts = self.policy.judge(context) if self.policy.applies(context) else []
        return verdicts[0].message if verdicts else ""


@pytest.mark.feature("BEY-SEC-03")
def test_the_manifest_is_current() -> None:
    assert policies.FILE.read_text(encoding="utf-8") == policies.render(), "run `make policies`"


@pytest.mark.feature("BEY-SEC-03")
def test_allocations_are_the_schedulers() -> None:
    policy = Policy(policies.ALLOCATIONS)
    assert policy.spec["failurePolicy"] == "Fail"
    for key in (*trust.RESERVED, *trust.FORBIDDEN):
        assert policy.denied({key: "x"}), key
        assert policy.denied({key: ""}), f"{key}: an empty one is one too"
        assert policy.denied({key: "y"}, {key: "x"}), f"{key}: changed"
        assert policy.denied({}, {key: "x"}), f"{key}: taken off"
        assert not policy.denied({key: "x", "more": "z"}, {key: "x"}), f"{key}: left as it is"
        assert not policy.denied({key: "x"}, user=SCHEDULER), key
    status = {P + "resource-status": "{}"}
    assert not policy.denied(status, user="volcano", binds=True)
    assert not policy.denied(status, user="admin", groups=["system:masters"])
    assert policy.denied(status, user="admin", groups=["system:authenticated"])
    assert not policy.denied({"other": "x"})
    assert not policy.denied({})
    moved = Policy(policies.ALLOCATIONS, "colocation")
    assert not moved.denied(status, user="system:serviceaccount:colocation:koord-scheduler")
    assert moved.denied(status, user=SCHEDULER), "an account of another namespace is not ours"


@pytest.mark.feature("BEY-SEC-03")
def test_bounds_of_owners() -> None:
    policy = Policy(policies.BOUNDS)
    for rule in trust.TABLE:
        for member, bounds in (rule.bounds or {}).items():
            if rule.writer is not trust.Writer.OWNER:
                continue
            for value in {bounds.low, bounds.high, bounds.low - 1, min(bounds.high + 1, 2**63), -99999}:
                block: Obj = {"ioCfg": {member: value}} if rule.key == names.ANNOTATION_BLKIO_QOS else {member: value}
                text = json.dumps({"blocks": [block]} if "ioCfg" in block else block)
                refused = policy.denied({rule.key: text})
                if bounds.high < 2**62 or value < 0:
                    assert bool(refused) == (value not in bounds), (text, refused)
                assert not policy.denied({rule.key: text}, {rule.key: text}), "a pod from before may still be labelled"
    two = '{"blocks":[{"ioCfg":{"ioWeightPercent": 50}},{"ioCfg":{"ioWeightPercent" : 5000 }}]}'
    assert "ioWeightPercent" in policy.denied({names.ANNOTATION_BLKIO_QOS: two})


@pytest.mark.feature("BEY-SEC-03")
@given(low=st.integers(0, 3000), span=st.integers(0, 3000), number=st.integers(0, 7000))
def test_ranges_as_regular_expressions(low: int, span: int, number: int) -> None:
    pattern = policies.between(low, low + span)
    assert bool(re.fullmatch(pattern, str(number))) == (low <= number <= low + span)


@pytest.mark.feature("BEY-SEC-03")
@given(low=st.integers(-300, 300), span=st.integers(0, 3000), number=st.integers(-7000, 7000))
def test_what_is_beyond_bounds(low: int, span: int, number: int) -> None:
    bounds = trust.Bounds(low, low + span) if low + span >= 0 else trust.Bounds(low, 0)
    assert bool(re.fullmatch(policies.beyond(bounds), str(number))) == (number not in bounds)
