"""ValidatingAdmissionPolicies and match conditions are evaluated as kube-apiserver does."""

from __future__ import annotations

from typing import Any

import pytest

from koord.apiserver.config import ServerConfig

pytestmark = pytest.mark.feature("BEY-SEC-01")
Obj = dict[str, Any]
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICIES, BINDINGS = f"{ADMISSION}/validatingadmissionpolicies", f"{ADMISSION}/validatingadmissionpolicybindings"
MAPS = "/api/v1/namespaces/default/configmaps"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}


def policy(*validations: str | Obj, name: str = "p", rule: Obj = RULE, **spec: Any) -> Obj:
    listed = [v if isinstance(v, dict) else {"expression": v} for v in validations]
    return {"metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": listed, **spec}}


async def enforce(api: Any, made: Obj, *actions: str, **binding: Any) -> Obj:
    """Store a policy and bind it."""
    name = made["metadata"]["name"]
    stored: Obj = await api.post(POLICIES, made)
    spec = {"policyName": name, "validationActions": list(actions) or ["Deny"], **binding}
    await api.post(BINDINGS, {"metadata": {"name": name + "-b"}, "spec": spec})
    return stored


def config_map(name: str, **data: str) -> Obj:
    return {"metadata": {"name": name}, "data": data}


def test_a_policy_denies_and_says_which(with_api: Any) -> None:
    async def body(api: Any) -> None:
        stored = await enforce(api, policy("object.metadata.name != 'bad'"))
        assert stored["spec"]["failurePolicy"] == "Fail"
        assert stored["spec"]["matchConstraints"]["matchPolicy"] == "Equivalent"
        status, out = await api.call("POST", MAPS, config_map("bad"))
        text = "ValidatingAdmissionPolicy 'p' with binding 'p-b' denied request: failed expression: object.metadata.name != 'bad'"
        assert (status, out["reason"], out["message"]) == (422, "Invalid", f'configmaps "bad" is forbidden: {text}')
        assert out["details"]["causes"] == [{"message": text}]
        await api.post(MAPS, config_map("good"))
        assert (await api.call("GET", MAPS + "/bad"))[0] == 404
        await api.ok("DELETE", f"{BINDINGS}/p-b")
        await api.post(MAPS, config_map("bad"))

    with_api(body)


def test_message_reason_variables_and_old_object(with_api: Any) -> None:
    async def body(api: Any) -> None:
        grows = {
            "expression": "request.operation == 'CREATE' || variables.after >= variables.before",
            "messageExpression": "'from ' + string(variables.before) + ' to ' + string(variables.after)",
            "reason": "Forbidden",
        }
        variables = [
            {"name": "after", "expression": "int(object.data.n)"},
            {"name": "before", "expression": "request.operation == 'CREATE' ? 0 : int(oldObject.data.n)"},
        ]
        await enforce(api, policy(grows, variables=variables))
        await api.post(MAPS, config_map("m", n="3"))
        await api.merge(MAPS + "/m", {"data": {"n": "4"}})
        status, out = await api.call("PATCH", MAPS + "/m", {"data": {"n": "2"}}, kind="application/merge-patch+json")
        assert (status, out["reason"]) == (403, "Forbidden")
        assert out["message"].endswith("denied request: from 4 to 2")

    with_api(body)


@pytest.mark.parametrize(("failure", "status"), [("Fail", 422), ("Ignore", 201)])
def test_an_expression_that_fails_follows_the_failure_policy(with_api: Any, failure: str, status: int) -> None:
    async def body(api: Any) -> None:
        await enforce(api, policy("object.data.missing == 'x'", failurePolicy=failure))
        got, out = await api.call("POST", MAPS, config_map("m", a="b"))
        assert got == status
        if status != 201:
            assert "expression 'object.data.missing == 'x'' resulted in error: no such key: missing" in out["message"]

    with_api(body)


def test_match_conditions_selectors_and_exclusions(with_api: Any) -> None:
    async def body(api: Any) -> None:
        conditions = [{"name": "only-x", "expression": "object.metadata.name.startsWith('x')"}]
        await enforce(api, policy("false", matchConditions=conditions))
        match = {"namespaceSelector": {"matchLabels": {"team": "a"}}, "resourceRules": [RULE]}
        await enforce(
            api,
            policy("object.metadata.name != 'y'", name="ns")
            | {"spec": {**policy("object.metadata.name != 'y'")["spec"], "matchConstraints": match}},
        )
        excluded = {
            "resourceRules": [RULE],
            "excludeResourceRules": [{**RULE, "resourceNames": ["z"]}],
            "objectSelector": {"matchLabels": {"check": "me"}},
        }
        await enforce(api, {"metadata": {"name": "ex"}, "spec": {"matchConstraints": excluded, "validations": [{"expression": "false"}]}})
        await api.post("/api/v1/namespaces", {"metadata": {"name": "a", "labels": {"team": "a"}}})
        assert (await api.call("POST", MAPS, config_map("x1")))[0] == 422
        assert (await api.call("POST", MAPS, config_map("y")))[0] == 201
        assert (await api.call("POST", "/api/v1/namespaces/a/configmaps", config_map("y")))[0] == 422
        labelled = {"metadata": {"name": "w", "labels": {"check": "me"}}}
        assert (await api.call("POST", MAPS, labelled))[0] == 422
        assert (await api.call("POST", MAPS, {"metadata": {**labelled["metadata"], "name": "z"}}))[0] == 201

    with_api(body)


def test_warn_says_it_and_lets_it_pass(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await enforce(api, policy({"expression": "false", "message": "not so"}), "Warn", "Audit")
        status, _ = await api.call("POST", MAPS, config_map("m"))
        assert status == 201
        assert api.warnings == ["299 - \"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p-b': not so\""]

    with_api(body)


def test_a_policy_with_parameters(with_api: Any) -> None:
    async def body(api: Any) -> None:
        made = policy("object.data.size() <= int(params.data.most)", paramKind={"apiVersion": "v1", "kind": "ConfigMap"})
        made["spec"]["matchConditions"] = [{"name": "not-the-parameter", "expression": "object.metadata.name != 'limits'"}]
        await enforce(api, made, paramRef={"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"})
        status, out = await api.call("POST", MAPS, config_map("m", a="1", b="2"))
        assert (status, "no params found" in out["message"]) == (422, True)
        await api.ok("DELETE", f"{BINDINGS}/p-b")
        await api.post(MAPS, config_map("limits", most="1"))
        spec = {
            "policyName": "p",
            "validationActions": ["Deny"],
            "paramRef": {"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"},
        }
        await api.post(BINDINGS, {"metadata": {"name": "p-b"}, "spec": spec})
        assert (await api.call("POST", MAPS, config_map("m", a="1", b="2")))[0] == 422
        assert (await api.call("POST", MAPS, config_map("m", a="1")))[0] == 201

    with_api(body)


def test_deletions_bindings_and_evictions_are_asked(with_api: Any) -> None:
    async def body(api: Any) -> None:
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods", "pods/binding", "pods/eviction"]}
        expression = "request.operation == 'DELETE' ? oldObject.metadata.name != 'kept' : "
        expression += "!has(request.subResource) || object.metadata.name != 'kept'"
        await enforce(api, policy({"expression": expression, "message": "kept"}, rule=rule))
        pods = "/api/v1/namespaces/default/pods"
        await api.post("/api/v1/nodes", {"metadata": {"name": "n"}})
        for name in ("kept", "other"):
            await api.post(pods, {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
        for name, expected in (("kept", 422), ("other", 201)):
            binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}}
            assert (await api.call("POST", f"{pods}/{name}/binding", binding))[0] == expected
            assert (await api.call("POST", f"{pods}/{name}/eviction", {"metadata": {"name": name}}))[0] == expected
        assert (await api.call("DELETE", f"{pods}/kept"))[0] == 422

    with_api(body)


def test_the_authorizer_answers_by_rbac(with_api: Any) -> None:
    async def body(api: Any) -> None:
        check = "authorizer.group('').resource('pods').namespace('default').check('create').allowed()"
        await enforce(api, policy({"expression": check, "message": "may make no pods"}))
        rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]
        await api.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", {"metadata": {"name": "maps"}, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "maps"}
        subject = {"kind": "ServiceAccount", "name": "sa", "namespace": "default"}
        bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        await api.post(bindings, {"metadata": {"name": "maps"}, "roleRef": role, "subjects": [subject]})
        await api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "sa"}})
        api.session.headers["Impersonate-User"] = "system:serviceaccount:default:sa"
        status, out = await api.call("POST", MAPS, config_map("m"))
        assert (status, out["message"].endswith("may make no pods")) == (422, True)
        del api.session.headers["Impersonate-User"]
        assert (await api.call("POST", MAPS, config_map("m")))[0] == 201

    with_api(body, config=ServerConfig(authorization_mode="RBAC"))


DOUBLED = [{"name": f"v{i}", "expression": f"variables.v{i - 1} + 'x' + variables.v{i - 1}"} for i in range(1, 21)]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"validations": [{"expression": "object.x ="}]}, "spec.validations[0].expression"),
        ({"validations": [{"expression": "nobody.knows"}]}, "spec.validations[0].expression"),
        ({"validations": [{"expression": "'text'"}]}, "spec.validations[0].expression"),
        ({"validations": [{"expression": "variables.nope == 1"}]}, "spec.validations[0].expression"),
        ({"validations": [{"expression": "object.data.transformMap(k, v, v) == {}"}]}, "spec.validations[0].expression"),
        ({"validations": [{"expression": "object.data.transformMapEntry(k, v, {v: k}) == {}"}]}, "spec.validations[0].expression"),
        ({"validations": [{"expression": "true", "messageExpression": "1"}]}, "spec.validations[0].messageExpression"),
        ({"validations": [{"expression": "true", "reason": "Nope"}]}, "spec.validations[0].reason"),
        ({"validations": []}, "spec.validations"),
        ({"matchConditions": [{"name": "c", "expression": "1"}]}, "spec.matchConditions[0].expression"),
        ({"variables": [{"name": "a-b", "expression": "1"}]}, "spec.variables[0].name"),
        ({"variables": [{"name": "v0", "expression": "object.data.k"}, *DOUBLED]}, "spec.variables[20].expression"),
        ({"matchConstraints": {"resourceRules": []}}, "spec.matchConstraints.resourceRules"),
        (
            {"matchConstraints": {"resourceRules": [RULE], "objectSelector": {"matchLabels": {"a b": "c"}}}},
            "spec.matchConstraints.objectSelector.matchLabels",
        ),
        ({"failurePolicy": "Maybe"}, "spec.failurePolicy"),
        ({"auditAnnotations": [{"key": "k", "valueExpression": "1"}]}, "spec.auditAnnotations[0].valueExpression"),
    ],
)
def test_what_cannot_be_enforced_is_refused(with_api: Any, change: Obj, field: str) -> None:
    async def body(api: Any) -> None:
        made = policy("true")
        made["spec"].update(change)
        status, out = await api.call("POST", POLICIES, made)
        assert status == 422, out
        assert field in [c["field"] for c in out["details"]["causes"]]

    with_api(body)


@pytest.mark.parametrize(
    ("expression", "status"),
    [
        ("lists.range(999).size() == 999", 201),
        ("lists.range(object.data.size()).exists(i, i == 0)", 201),
        ("lists.range( size(object.data) ).exists(i, i == 0)", 201),
        ("lists.range(1000000000).size() > 0", 422),
        ("lists . range(1000000000).size() > 0", 422),
        ("lists.range(int(object.data.n)).size() > 0", 422),
        ("lists.range(lists.range(9).size()) == [0]", 422),
    ],
)
def test_a_range_is_no_longer_than_can_be_told(with_api: Any, expression: str, status: int) -> None:
    async def body(api: Any) -> None:
        assert (await api.call("POST", POLICIES, policy(expression)))[0] == status

    with_api(body)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"policyName": "p"}, "spec.validationActions"),
        ({"policyName": "p", "validationActions": ["Deny", "Warn"]}, "spec.validationActions"),
        ({"policyName": "p", "validationActions": ["Shout"]}, "spec.validationActions[0]"),
        ({"validationActions": ["Deny"]}, "spec.policyName"),
        ({"policyName": "p", "validationActions": ["Deny"], "paramRef": {"parameterNotFoundAction": "Deny"}}, "spec.paramRef"),
    ],
)
def test_a_binding_says_what_it_means(with_api: Any, spec: Obj, field: str) -> None:
    async def body(api: Any) -> None:
        status, out = await api.call("POST", BINDINGS, {"metadata": {"name": "b"}, "spec": spec})
        assert (status, [c["field"] for c in out["details"]["causes"]]) == (422, [field])

    with_api(body)


def test_an_expression_sees_the_whole_of_a_text(with_api: Any) -> None:
    """A NUL ends no comparison early."""

    async def body(api: Any) -> None:
        await enforce(api, policy("object.data.a == 'safe'"))
        assert (await api.call("POST", MAPS, config_map("m", a="safe\0not")))[0] == 422
        assert (await api.call("POST", MAPS, config_map("m", a="safe")))[0] == 201

    with_api(body)


def test_nulls_wear_nothing_out(with_api: Any) -> None:
    """Thousands of nulls in variables and results."""

    async def body(api: Any) -> None:
        made = policy("variables.none == null && size(variables.many) == 3")
        made["spec"]["variables"] = [{"name": "none", "expression": "oldObject"}, {"name": "many", "expression": "[null, null, null]"}]
        await enforce(api, made)
        for at in range(300):
            await api.post(MAPS, config_map(f"m{at}"))

    with_api(body)


def test_match_conditions_of_webhooks(with_api: Any) -> None:
    """A webhook that leads nowhere fails only what its conditions let through."""

    async def body(api: Any) -> None:
        hook = {
            "name": "a.b.c", "clientConfig": {"url": "https://127.0.0.1:1/"}, "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "rules": [RULE], "matchConditions": [{"name": "x", "expression": "object.metadata.name == 'x'"}],
        }  # fmt: skip
        hooks = f"{ADMISSION}/validatingwebhookconfigurations"
        await api.post(hooks, {"metadata": {"name": "h"}, "webhooks": [hook]})
        assert (await api.call("POST", MAPS, config_map("y")))[0] == 201
        assert (await api.call("POST", MAPS, config_map("x")))[0] == 500
        wrong = {**hook, "matchConditions": [{"name": "x", "expression": "object."}]}
        status, out = await api.call("POST", hooks, {"metadata": {"name": "i"}, "webhooks": [wrong]})
        assert (status, out["details"]["causes"][0]["field"]) == (422, "webhooks[0].matchConditions[0].expression")

    with_api(body)


def test_a_binding_selects_its_parameters_by_a_selector_that_can_be_read(with_api: Any) -> None:
    async def body(api: Any) -> None:
        wrong = {"matchExpressions": [{"key": "a", "operator": "Foo"}]}
        spec = {"policyName": "p", "validationActions": ["Deny"], "paramRef": {"selector": wrong, "parameterNotFoundAction": "Deny"}}
        path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
        status, out = await api.call("POST", path, {"metadata": {"name": "b"}, "spec": spec})
        assert status == 422
        assert out["details"]["causes"][0]["field"].startswith("spec.paramRef.selector")

    with_api(body)
