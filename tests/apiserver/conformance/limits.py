"""What is compared, continued: admission policies, CEL rules of custom resources and quotas."""

from __future__ import annotations

from typing import Any

from .customs import body, crd, remove, serve
from .scenarios import MAPS, PODS, config_map, pod
from .transcript import MERGE, Transcript, settle

_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICIES, BINDINGS = f"{_ADMISSION}/validatingadmissionpolicies", f"{_ADMISSION}/validatingadmissionpolicybindings"
QUOTAS = "/api/v1/namespaces/{ns}/resourcequotas"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}
INT, TEXT = {"type": "integer"}, {"type": "string", "maxLength": 20}


def _policy(t: Transcript, name: str, *validations: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{t.ns}-{name}"},
        "spec": {"matchConstraints": {"resourceRules": [RULE]}, "validations": [*validations], **spec},
    }


def _bind(t: Transcript, name: str, *actions: str, **more: Any) -> None:
    """Bind a policy to the namespace of this run, and wait until it is enforced (kube-apiserver takes it up with a delay)."""
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": t.ns}}}
    spec = {"policyName": f"{t.ns}-{name}", "validationActions": [*actions], "matchResources": here, **more}
    t.raw("POST", BINDINGS, {"metadata": {"name": f"{t.ns}-{name}"}, "spec": spec})


def _until(t: Transcript, wanted: str, name: str = "probe") -> None:
    for _ in range(400):
        _, out = t.raw("POST", MAPS + "?dryRun=All", config_map(name, a="b"))
        if wanted in str(out) or any(wanted in warning for warning in t.warnings):
            return
        settle()
    raise AssertionError(f"no answer with {wanted!r}")


def _drop(t: Transcript, *names: str) -> None:
    for name in names:
        t.raw("DELETE", f"{BINDINGS}/{t.ns}-{name}")
        t.raw("DELETE", f"{POLICIES}/{t.ns}-{name}")


def policies(t: Transcript) -> None:
    t.call("POST", POLICIES, _policy(t, "a", {"expression": "object.metadata.name != 'probe' && object.metadata.name != 'bad'"}))
    _bind(t, "a", "Deny")
    try:
        _until(t, "denied request")
        t.call("POST", MAPS, config_map("bad"))
        t.call("POST", MAPS, config_map("good"))
    finally:
        _drop(t, "a")


def policy_messages(t: Transcript) -> None:
    variables = [{"name": "data", "expression": "has(object.data) ? object.data : {}"}]
    told = {"expression": "!('secret' in variables.data)", "messageExpression": "'not in ' + object.metadata.name", "reason": "Forbidden"}
    changed = {"expression": "request.operation == 'CREATE' || object.data.n == oldObject.data.n", "message": "n is fixed"}
    broken = {"expression": "object.metadata.name != 'broken' || object.data.missing == 'x'"}
    probe = {"expression": "object.metadata.name != 'probe'"}
    conditions = [{"name": "not-me", "expression": "object.metadata.name != 'let-through'"}]
    made = _policy(t, "b", told, changed, broken, probe, variables=variables, matchConditions=conditions)
    t.raw("POST", POLICIES, made)
    _bind(t, "b", "Deny")
    try:
        _until(t, "denied request")
        t.call("POST", MAPS, config_map("m", secret="s"))
        t.call("POST", MAPS, config_map("let-through", secret="s"))
        t.call("POST", MAPS, config_map("m", n="1"))
        t.call("PATCH", MAPS + "/m", {"data": {"n": "2"}}, MERGE)
        t.call("POST", MAPS, config_map("broken", n="1"))
    finally:
        _drop(t, "b")


def policy_warnings(t: Transcript) -> None:
    t.raw("POST", POLICIES, _policy(t, "c", {"expression": "false", "message": "told only"}))
    _bind(t, "c", "Warn", "Audit")
    try:
        _until(t, "told only")
        t.call("POST", MAPS, config_map("m"))
    finally:
        _drop(t, "c")


def policy_errors(t: Transcript) -> None:
    good = {"expression": "true"}
    texts = [{"expression": text} for text in ("object.", "nobody == 1", "'text'", "variables.no")]
    for validation in (*texts, {}, {**good, "messageExpression": "1"}, {**good, "reason": "No"}, {**good, "message": "a\nb"}):
        t.verdict("POST", POLICIES, _policy(t, "e", validation))
    for spec in (
        {"failurePolicy": "No"},
        {"matchConditions": [{"name": "c", "expression": "1"}]},
        {"variables": [{"name": "a-b", "expression": "1"}]},
        {"matchConstraints": {}},
        {"matchConstraints": {"resourceRules": [{}]}},
        {"paramKind": {"kind": "ConfigMap"}},
    ):
        t.verdict("POST", POLICIES, _policy(t, "e", good, **spec))
    for binding in (
        {"policyName": "x"},
        {"policyName": "x", "validationActions": ["Deny", "Warn"]},
        {"policyName": "x", "validationActions": ["No"]},
        {"validationActions": ["Deny"]},
        {"policyName": "x", "validationActions": ["Deny"], "paramRef": {}},
    ):
        t.verdict("POST", BINDINGS, {"metadata": {"name": f"{t.ns}-e"}, "spec": binding})


def policy_parameters(t: Transcript) -> None:
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    others = [{"name": "others", "expression": "!object.metadata.name.startsWith('limits')"}]
    few = {"expression": "object.metadata.name != 'probe' && size(object.data) <= int(params.data.most)"}
    t.raw("POST", MAPS, config_map("limits", most="1"))
    t.raw("POST", POLICIES, _policy(t, "d", few, paramKind=kind, matchConditions=others))
    _bind(t, "d", "Deny", paramRef={"name": "limits", "namespace": t.ns, "parameterNotFoundAction": "Deny"})
    try:
        _until(t, "failed expression")
        t.call("POST", MAPS, config_map("m", a="1", b="2"))
        t.call("POST", MAPS, config_map("m", a="1"))
        t.raw("DELETE", MAPS + "/limits")
        _until(t, "no params found")
        t.call("POST", MAPS, config_map("n", a="1"))
    finally:
        _drop(t, "d")


def policy_conditions(t: Transcript) -> None:
    conditions = [
        {"name": "broken", "expression": "object.data.missing == 'x'"},
        {"name": "named", "expression": "object.metadata.name != 'free'"},
    ]
    authorized = "authorizer.group('').resource('pods').namespace('default').check('create').allowed()"
    authorized += " && authorizer.requestResource.check('get').allowed()"
    values = "quantity('1Gi').isGreaterThan(quantity('1G')) && url('https://a:1/b').getPort() == '1' && ip('::1').isLoopback() "
    values += "&& cidr('10.0.0.0/8').containsIP('10.1.2.3') && 'a1b22'.findAll('[0-9]+') == ['1', '22'] && [1, 2].sum() == 3 "
    values += "&& sets.contains([1, 2], [2]) && object.?data.?no.orValue('d') == 'd' && [1, 2].all(i, v, v > i)"
    t.raw("POST", POLICIES, _policy(t, "f", {"expression": "object.metadata.name != 'probe'"}, matchConditions=conditions))
    t.raw(
        "POST", POLICIES, _policy(t, "g", {"expression": f"{authorized} && {values}"}, {"expression": "object.metadata.name != 'probe2'"})
    )
    _bind(t, "f", "Deny")
    _bind(t, "g", "Deny")
    try:
        _until(t, "denied request")
        _until(t, "probe2", "probe2")
        t.call("POST", MAPS, config_map("m", a="b"))
        t.call("POST", MAPS, config_map("free", a="b"))
    finally:
        _drop(t, "f", "g")


def policy_reach(t: Transcript) -> None:
    """The namespace, deletions, subresources and reasons."""
    t.raw("PATCH", "/api/v1/namespaces/{ns}", {"metadata": {"labels": {"team": "a"}}}, MERGE)
    t.raw("POST", PODS, pod("p"))
    t.raw("POST", MAPS, config_map("l1"))
    for reason in ("Unauthorized", "Forbidden", "RequestEntityTooLarge"):
        t.verdict("POST", POLICIES + "?dryRun=All", _policy(t, "h", {"expression": "true", "reason": reason}))
    team = "namespaceObject.metadata.labels[?'team'].orValue('') == object.data['team']"
    here = {
        "expression": f"object.metadata.name != 'probe' && (!has(object.data) || !('team' in object.data) || {team})",
        "messageExpression": "'ns ' + namespaceObject.metadata.labels['team']",
        "reason": "RequestEntityTooLarge",
    }
    rules = [
        {**RULE, "operations": ["DELETE"]},
        {**RULE, "resources": ["pods/status", "pods/binding"]},
    ]
    parts = (
        {"expression": "request.operation != 'DELETE' || oldObject.metadata.name != 'l1'"},
        {"expression": "request.operation == 'DELETE' || request.subResource != 'status' || object.status.phase != 'Failed'"},
        {"expression": "request.operation == 'DELETE' || request.subResource != 'binding' || object.target.name != 'bad'"},
    )
    t.raw("POST", POLICIES, _policy(t, "h", here))
    t.raw("POST", POLICIES, _policy(t, "i", *parts, matchConstraints={"resourceRules": rules}))
    _bind(t, "h", "Deny")
    _bind(t, "i", "Deny")
    try:
        _until(t, "ns a")
        for _ in range(400):
            if t.raw("DELETE", MAPS + "/l1?dryRun=All")[0] == 422:
                break
            settle()
        for team in "ab":
            t.call("POST", MAPS + "?dryRun=All", config_map("x", team=team))
        t.call("DELETE", MAPS + "/l1")
        for phase in ("Failed", "Running"):
            t.verdict("PATCH", PODS + "/p/status?dryRun=All", {"status": {"phase": phase}}, MERGE)
        t.call("POST", PODS + "/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "bad"}})
    finally:
        _drop(t, "h", "i")


def _rules(*listed: dict[str, Any], **schema: Any) -> dict[str, Any]:
    return {**schema, "x-kubernetes-validations": [*listed]}


def crd_rules(t: Transcript) -> None:
    parts = {
        "type": "array", "maxItems": 10, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {"name": TEXT, "n": _rules({"rule": "self >= oldSelf"}, **INT)}},
    }  # fmt: skip
    far = "'too big: ' + (self.a > 11 ? 'far' : 'a bit')"
    spec = _rules(
        {"rule": "self.a > 3", "message": "too small"},
        {
            "rule": "self.a < 10",
            "messageExpression": far,
            "reason": "FieldValueForbidden",
            "fieldPath": ".a",
        },
        {"rule": "!has(self.b) || self.b.startsWith('x')", "reason": "FieldValueRequired", "message": "needs an x"},
        type="object",
        properties={"a": INT, "b": TEXT, "fixed": _rules({"rule": "self == oldSelf", "message": "fixed"}, **TEXT), "parts": parts},
    )
    path = serve(t, crd(t, "rules", {"spec": spec}))
    t.call("POST", path, body(t, "Rule", spec={"a": 1}))
    t.call("POST", path, body(t, "Rule", spec={"a": 12}))
    t.call("POST", path, body(t, "Rule", spec={"a": 5, "b": "y"}))
    t.call("POST", path, body(t, "Rule", spec={}))
    t.call("POST", path, body(t, "Rule", spec={"a": 5, "fixed": "f", "parts": [{"name": "p", "n": 2}, {"name": "q", "n": 7}]}))
    t.call("PATCH", path + "/w", {"spec": {"fixed": "g"}}, MERGE)
    t.call("PATCH", path + "/w", {"spec": {"parts": [{"name": "q", "n": 7}, {"name": "p", "n": 1}]}}, MERGE)
    t.call("PATCH", path + "/w", {"spec": {"parts": [{"name": "q", "n": 8}, {"name": "p", "n": 3}]}}, MERGE)
    remove(t, "rules")


def list_functions(t: Transcript) -> None:
    lists = {"n": {"type": "array", "maxItems": 5, "items": INT}, "t": {"type": "array", "maxItems": 5, "items": TEXT}}
    listed = (
        "self.n.sort() == [1, 2, 3]", "self.n.slice(0, 2) == [3, 1]", "[self.n, [9]].flatten().size() == 4", "lists.range(3) == [0, 1, 2]",
        "self.n.distinct() == self.n", "self.n.reverse() == [2, 1, 3]", "self.t.sortBy(e, e.size()) == ['c', 'bb', 'aaa']",
    )  # fmt: skip
    path = serve(t, crd(t, "lists", {"spec": _rules(*({"rule": rule} for rule in listed), type="object", properties=lists)}))
    for numbers, texts in (([3, 1, 2], ["bb", "aaa", "c"]), ([3, 1, 2, 3], ["bb", "aaa", "c"]), ([3, 1, 2], ["b", "a", "c"])):
        t.call("POST", path + "?dryRun=All", body(t, "List", spec={"n": numbers, "t": texts}))
    remove(t, "lists")


def crd_rule_types(t: Transcript) -> None:
    first = {"rule": "!oldSelf.hasValue() || oldSelf.value() == self", "optionalOldSelf": True, "message": "set once"}
    properties = {
        "share": {"type": "number"}, "wait": {"type": "string", "format": "duration"}, "at": {"type": "string", "format": "date-time"},
        "port": {"x-kubernetes-int-or-string": True}, "some-name": TEXT, "namespace": TEXT, "once": _rules(first, **TEXT),
        "map": {"type": "object", "additionalProperties": INT, "maxProperties": 5}, "list": {"type": "array", "maxItems": 5, "items": TEXT},
    }  # fmt: skip
    listed = (
        "self.share < 0.5", "self.wait > duration('1s')", "self.at < timestamp('2030-01-01T00:00:00Z')",
        "self.port == 80 || self.port == 'http'",
        "self.some__dash__name == self.__namespace__", "self.map.all(k, self.map[k] > 0) && 'a' in self.map",
        "self.list.exists(e, e.startsWith('b')) && self.list.isSorted()",
    )  # fmt: skip
    spec = _rules(*({"rule": rule} for rule in listed), type="object", properties=properties)
    path = serve(t, crd(t, "types", {"spec": spec}))
    good = {
        "share": 0,
        "wait": "5s",
        "at": "2026-01-01T00:00:00Z",
        "port": "http",
        "some-name": "n",
        "namespace": "n",
        "map": {"a": 1},
        "list": ["a", "b"],
    }
    t.call("POST", path, body(t, "Type", spec={**good, "once": "o"}))
    t.call("PATCH", path + "/w", {"spec": {"once": "u"}}, MERGE)
    for change in (
        {"share": 1},
        {"wait": "500ms"},
        {"port": 81},
        {"map": {"a": 0}},
        {"list": ["b", "a"]},
        {"some-name": "m"},
        {"at": "2031-01-01T00:00:00Z"},
    ):
        t.call("POST", path, body(t, "Type", "x", spec={**good, **change}))
    remove(t, "types")


def crd_rule_errors(t: Transcript) -> None:
    from .scenarios import CRDS

    listed = {"type": "array", "maxItems": 10, "items": _rules({"rule": "self == oldSelf"}, **TEXT)}
    for rule in ({"rule": "self.missing > 1"}, {"rule": "self.a == 'x'"}, {"rule": "self.a"}, {"rule": "self.a >"}, {"rule": " "},
                 {"rule": "self.a > 1", "reason": "No"}, {"rule": "self.a > 1", "messageExpression": "self.a"},
                 {"rule": "self.a > 1", "fieldPath": ".no"}, {"rule": "self.a > 1", "message": "a\nb"},
                 {"rule": "self.a > 1", "optionalOldSelf": True}):  # fmt: skip
        spec = _rules(rule, type="object", properties={"a": INT})
        t.verdict("POST", CRDS, crd(t, "wrongs", {"spec": spec}))
    t.verdict("POST", CRDS, crd(t, "wrongs", {"spec": {"type": "object", "properties": {"list": listed}}}))


def _quota(t: Transcript, name: str, hard: dict[str, str], **spec: Any) -> None:
    """A quota with its status: kube-apiserver alone has no controller that would count."""
    t.raw("POST", QUOTAS, {"metadata": {"name": name}, "spec": {"hard": hard, **spec}})
    t.raw("PATCH", f"{QUOTAS}/{name}/status", {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}, MERGE)


def _until_counted(t: Transcript) -> None:
    """Until a quota that allows no Secret is enforced."""
    for _ in range(400):
        if t.raw("POST", "/api/v1/namespaces/{ns}/secrets?dryRun=All", {"metadata": {"name": "probe"}})[0] == 403:
            return
        settle()
    raise AssertionError("the quota is not enforced")


def quotas(t: Transcript) -> None:
    _quota(t, "q", {"secrets": "0", "pods": "2", "requests.cpu": "1", "count/configmaps": "3"})
    _until_counted(t)
    resources = {"requests": {"cpu": "600m"}}
    for name in ("a", "b"):
        t.call("POST", PODS, pod(name, containers=[{"name": "c", "image": "i", "resources": resources}]))
    t.call("POST", PODS, pod("open"))
    t.call("POST", "/api/v1/namespaces/{ns}/secrets", {"metadata": {"name": "s"}})
    for _ in range(100):
        if t.raw("GET", QUOTAS + "/q")[1]["status"]["used"].get("pods") == "1":
            break
        settle()
    t.note(used=t.raw("GET", QUOTAS + "/q")[1]["status"]["used"]["requests.cpu"])


def quota_errors(t: Transcript) -> None:
    unclear = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}
    for spec in (
        {"hard": {"nonsense": "1"}},
        {"hard": {"pods": "-1"}},
        {"hard": {"pods": "500m"}},
        {"hard": {"pods": "1"}, "scopes": ["No"]},
        {"hard": {"configmaps": "1"}, "scopes": ["BestEffort"]},
        {"hard": {"pods": "1"}, "scopes": ["BestEffort", "NotBestEffort"]},
        {"hard": {"pods": "1"}, "scopeSelector": unclear},
    ):
        t.verdict("POST", QUOTAS, {"metadata": {"name": "q"}, "spec": spec})


def quota_scopes(t: Transcript) -> None:
    _quota(t, "g", {"secrets": "0"})
    _quota(t, "b", {"pods": "0"}, scopes=["BestEffort"])
    _quota(t, "t", {"pods": "0"}, scopes=["Terminating"])
    _until_counted(t)
    requests = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]
    for _ in range(100):
        if t.raw("POST", PODS + "?dryRun=All", pod("probe"))[0] == 403:
            break
        settle()
    t.call("POST", PODS, pod("best-effort"))
    t.call("POST", PODS, pod("ends", containers=requests, activeDeadlineSeconds=5))
    t.verdict("POST", PODS, pod("burstable", containers=requests))


SCENARIOS = (
    policies, policy_messages, policy_warnings, policy_errors, policy_parameters, policy_conditions, policy_reach, crd_rules,
    list_functions, crd_rule_types, crd_rule_errors, quotas, quota_errors, quota_scopes,
)  # fmt: skip
