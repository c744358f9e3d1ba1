"""x-kubernetes-validations of custom resources."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from koord.apiserver.cel import growth

pytestmark = pytest.mark.feature("API-CRD-01")
Obj = dict[str, Any]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FOOS = "/apis/ex.io/v1/foos"


def definition(spec: Obj, *, root: Obj | None = None) -> Obj:
    schema = {"type": "object", "properties": {"spec": {"type": "object", **spec}}, **(root or {})}
    return {
        "metadata": {"name": "foos.ex.io"},
        "spec": {
            "group": "ex.io", "scope": "Cluster", "names": {"plural": "foos", "kind": "Foo"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }  # fmt: skip


def foo(**spec: Any) -> Obj:
    return {"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": {"name": "x"}, "spec": spec}


def rules(*listed: Obj | str, **schema: Any) -> Obj:
    return {**schema, "x-kubernetes-validations": [r if isinstance(r, dict) else {"rule": r} for r in listed]}


INT, TEXT = {"type": "integer"}, {"type": "string"}


def told(out: Obj) -> list[tuple[str, str, str]]:
    return [(c["field"], c["reason"], c["message"]) for c in out["details"]["causes"]]


def test_a_rule_refuses_with_its_message_reason_and_path(with_api: Any) -> None:
    async def body(api: Any) -> None:
        listed = rules(
            {"rule": "self.a > 3", "message": "too small"},
            {
                "rule": "self.a < 10",
                "messageExpression": "'too big: ' + string(self.a)",
                "reason": "FieldValueForbidden",
                "fieldPath": ".a",
            },
            "self.a != 7",
            properties={"a": INT},
        )
        await api.post(CRDS, definition(listed))
        status, out = await api.call("POST", FOOS, foo(a=1))
        assert status == 422
        assert out["message"] == 'Foo.ex.io "x" is invalid: spec: Invalid value: too small'
        _, out = await api.call("POST", FOOS, foo(a=12))
        assert told(out) == [("spec.a", "FieldValueForbidden", "Forbidden: too big: 12")]
        _, out = await api.call("POST", FOOS, foo(a=7))
        assert told(out) == [("spec", "FieldValueInvalid", "Invalid value: failed rule: self.a != 7")]
        _, out = await api.call("POST", FOOS, foo())
        assert told(out)[0] == ("spec", "FieldValueInvalid", 'Invalid value: "object": no such key: a evaluating rule: too small')
        await api.post(FOOS, foo(a=5))

    with_api(body)


def test_transition_rules_compare_with_what_was(with_api: Any) -> None:
    async def body(api: Any) -> None:
        item = {"type": "object", "required": ["name"], "properties": {"name": TEXT, "n": rules("self >= oldSelf", **INT)}}
        listed = {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        first = {"rule": "!oldSelf.hasValue() || oldSelf.value() == self", "optionalOldSelf": True, "message": "set once"}
        await api.post(
            CRDS, definition({"properties": {"fixed": rules("self == oldSelf", **TEXT), "parts": listed, "once": rules(first, **TEXT)}})
        )
        await api.post(FOOS, foo(fixed="a", once="o", parts=[{"name": "p", "n": 2}, {"name": "q", "n": 9}]))
        await api.merge(FOOS + "/x", {"spec": {"parts": [{"name": "q", "n": 9}, {"name": "p", "n": 3}]}})
        merge = "application/merge-patch+json"
        _, out = await api.call("PATCH", FOOS + "/x", {"spec": {"fixed": "b", "parts": [{"name": "p", "n": 1}], "once": "u"}}, kind=merge)
        assert sorted(field for field, _, _ in told(out)) == ["spec.fixed", "spec.once", "spec.parts[0].n"]
        await api.merge(FOOS + "/x", {"spec": {"fixed": None}})
        await api.merge(FOOS + "/x", {"spec": {"fixed": "c"}})  # it was not there: nothing to compare with

    with_api(body)


def test_values_have_the_types_of_the_schema(with_api: Any) -> None:
    async def body(api: Any) -> None:
        properties = {
            "share": {"type": "number"},
            "wait": {"type": "string", "format": "duration"},
            "at": {"type": "string", "format": "date-time"},
            "port": {"x-kubernetes-int-or-string": True},
            "some-name": TEXT,
            "namespace": TEXT,
            "map": {"type": "object", "additionalProperties": INT},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "list": {"type": "array", "items": TEXT},
            "gone": TEXT,
        }
        listed = rules(
            "self.share < 0.5",
            "self.wait > duration('1s') && self.at < timestamp('2030-01-01T00:00:00Z')",
            "self.port == 80 || self.port == 'http'",
            "self.some__dash__name == self.__namespace__",
            "self.map.all(k, self.map[k] > 0) && 'a' in self.map",
            "self.free.deep[0] == 'x'",
            "self.list.exists(e, e.matches('^b')) && self.list.join('-') == 'a-b'",
            "!has(self.gone)",
            properties=properties,
        )
        await api.post(CRDS, definition(listed, root=rules("self.metadata.name != 'y'")))
        good = {
            "share": 0, "wait": "5s", "at": "2026-01-01T00:00:00Z", "port": "http", "some-name": "n", "namespace": "n", "map": {"a": 1},
            "free": {"deep": ["x"]}, "list": ["a", "b"],
        }  # fmt: skip
        await api.post(FOOS, foo(**good))
        _, out = await api.call("POST", FOOS, {**foo(**good), "metadata": {"name": "y"}})
        assert told(out) == [("<nil>", "FieldValueInvalid", "Invalid value: failed rule: self.metadata.name != 'y'")]
        for change in (
            {"share": 1},
            {"wait": "500ms"},
            {"port": 81},
            {"map": {"a": 0}},
            {"free": {"deep": ["z"]}},
            {"list": ["b"]},
            {"gone": "g"},
        ):
            assert (await api.call("POST", FOOS, {**foo(**{**good, **change}), "metadata": {"name": "z"}}))[0] == 422, change

    with_api(body)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"rule": "self.missing > 1"}, "undefined field 'missing'"),
        ({"rule": "self.a == 'x'"}, "found no matching overload"),
        ({"rule": "self.a"}, "must evaluate to bool"),
        ({"rule": "self.a >"}, "compilation failed"),
        ({"rule": "other.a > 1"}, "undeclared reference to 'other"),
        ({"rule": "self.a > 1", "reason": "Nope"}, "Unsupported value"),
        ({"rule": "self.a > 1", "messageExpression": "self.a"}, "must evaluate to string"),
        ({"rule": "self.a > 1", "fieldPath": ".nope"}, "must be a valid path"),
        ({"rule": " "}, "Required value"),
        ({"rule": "self.list.all(e, e == 'a') && self.list[0].b == 1"}, "select operation"),
    ],
)
def test_a_rule_that_cannot_be_enforced_is_refused(with_api: Any, rule: Obj, text: str) -> None:
    async def body(api: Any) -> None:
        made = definition(rules(rule, properties={"a": INT, "list": {"type": "array", "items": TEXT}}))
        status, out = await api.call("POST", CRDS, made)
        assert status == 422, out
        field, _, message = told(out)[0]
        assert field.startswith("spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0]")
        assert text in message

    with_api(body)


def test_old_values_of_items_without_identity_are_refused(with_api: Any) -> None:
    async def body(api: Any) -> None:
        listed = {"type": "array", "items": rules("self == oldSelf", **TEXT)}
        status, out = await api.call("POST", CRDS, definition({"properties": {"list": listed}}))
        assert (status, "uncorrelatable portion" in out["message"]) == (422, True)

    with_api(body)


def test_what_stood_before_a_rule_may_stay(with_api: Any) -> None:
    async def body(api: Any) -> None:
        made = definition({"properties": {"a": INT, "b": INT}})
        await api.post(CRDS, made)
        await api.post(FOOS, foo(a=1, b=1))
        stored = await api.get(f"{CRDS}/foos.ex.io")
        stricter = copy.deepcopy(stored)
        properties = stricter["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        properties["a"]["x-kubernetes-validations"] = [{"rule": "self > 3"}]
        await api.ok("PUT", f"{CRDS}/foos.ex.io", stricter)
        await api.merge(FOOS + "/x", {"spec": {"b": 2}})
        status, _ = await api.call("PATCH", FOOS + "/x", {"spec": {"a": 2}}, kind="application/merge-patch+json")
        assert status == 422

    with_api(body)


def test_rules_wait_for_a_valid_object(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(CRDS, definition(rules("self.a > 3", properties={"a": INT, "b": TEXT}, required=["b"])))
        _, out = await api.call("POST", FOOS, foo(a=1))
        assert [field for field, _, _ in told(out)] == ["spec.b", "<nil>"]

    with_api(body)


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        ("[self.t].map(x, x + x).size() > 0", 201),
        ("[self.t]" + ".map(x, x + x)" * 21 + ".size() > 0", 422),
        ("self.t" + ".replace('a', 'aaaaaaaaaa')" * 8 + ".size() > 0", 422),
        ("self.t" + ".replace('-', '_')" * 8 + ".size() > 0", 201),
        ("self.t.replace('a', self.t).size() > 0", 201),
        ("self.t" + ".replace('a', self.t)" * 4 + ".size() > 0", 422),
        ("[[self.t]]" + ".map(x, x + x)" * 20 + ".size() > 0", 422),
        ("['a', 'b']" + ".map(x, [x, x].join(x + x))" * 10 + ".size() > 0", 422),
        ("lists.range(999).map(x, lists.range(999).map(y, self.t + self.t.replace('a', self.t))).size() > 0", 422),
        ("self.l.map(x, self.l.map(y, self.l.map(z, x + y + z))).size() > 0", 201),
        ("self.t.split(',').map(x, x.split(':').map(y, y.split('=').map(z, z.trim()))).size() > 0", 201),
        ("self.t.replace('{t}', self.t).replace('{u}', self.t).replace('{name}', self.t).size() > 0", 201),
        ("self.l.map(x, self.l.filter(y, y != x).map(y, x + y).join(',')).exists(x, x.contains(self.t))", 201),
        ("self.m.transformList(k, v, k + v).size() + self.l.map(x, x).filter(x, x != '').map(x, {'a': x}).size() > 0", 201),
    ],
)
def test_no_value_of_a_rule_grows_without_end(rule: str, status: int, with_api: Any) -> None:
    """Nothing counts what an expression makes: forty characters more, and one object took all memory."""

    async def body(api: Any) -> None:
        parts = {"t": TEXT, "l": {"type": "array", "items": TEXT}, "m": {"type": "object", "additionalProperties": TEXT}}
        got, out = await api.call("POST", CRDS, definition(rules(rule, properties=parts)))
        assert got == status, out
        if status == 422:
            assert "could grow beyond" in out["message"]
        else:
            await api.post(FOOS, foo(t="a-b", l=["x", "a-b", "aa-b"], m={"k": "v"}))

    with_api(body)


def test_a_schema_that_would_be_refused_now_does_not_lock_its_definition(with_api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(api: Any) -> None:
        grown = rules("[self.t]" + ".map(x, x + x)" * 22 + ".size() > 0", properties={"t": TEXT})
        with monkeypatch.context() as before:
            before.setattr(growth, "MOST", 1e300)
            await api.post(CRDS, definition(grown))
        path = f"{CRDS}/foos.ex.io"
        monkeypatch.setattr("koord.apiserver.validation.crds._RIGHT", set())
        await api.merge(path, {"metadata": {"labels": {"a": "b"}}})
        await api.merge(path, {"spec": {"names": {"shortNames": ["f"]}}})
        await api.merge(path + "/status", {"status": {"storedVersions": ["v1"]}})
        changed = (await api.get(path))["spec"]["versions"]
        changed[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["u"] = TEXT
        status, out = await api.call("PATCH", path, {"spec": {"versions": changed}}, kind="application/merge-patch+json")
        assert (status, "could grow beyond" in out["message"]) == (422, True)

    with_api(body)
