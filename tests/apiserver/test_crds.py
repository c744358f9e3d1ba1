"""Custom resources: koord's own definitions install, serve and validate."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import orjson
import pytest

from koord.apiserver.config import ServerConfig
from koord.apiserver.controllers.crds import CustomResources
from koord.apiserver.errors import Cause
from koord.apiserver.schema.structural import structural
from tests.apiserver.conftest import MERGE
from tests.support import patience

PATH = "/apis/example.com/v1/namespaces/default/widgets"


def widget(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec}


@pytest.mark.feature("API-CRD-01")
def test_koords_own_crds_are_established_and_served(with_api: Any) -> None:
    async def body(api: Any) -> None:
        crds = (await api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions"))["items"]
        assert len(crds) == 13
        for crd in crds:
            conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
            reviewed = {"KubernetesAPIApprovalPolicyConformant": "True"} if crd["spec"]["group"].endswith(".k8s.io") else {}
            assert conditions == {"NamesAccepted": "True", "Established": "True", **reviewed}
        listed = await api.get("/apis/slo.koordinator.sh/v1alpha1")
        assert {"nodemetrics", "nodemetrics/status", "nodeslos"} <= {r["name"] for r in listed["resources"]}
        assert (await api.get("/apis/slo.koordinator.sh/v1alpha1/nodemetrics"))["kind"] == "NodeMetricList"

    with_api(body, crds=True)


def test_defaults_pruning_and_status_split(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        made = await api.post(PATH, {**widget(size=2, unknown=1, free={"any": [1]}), "status": {"ready": True}})
        assert made["spec"] == {"size": 2, "colour": "red", "free": {"any": [1]}}
        assert "status" not in made
        assert made["metadata"]["generation"] == 1
        assert 'unknown field \\"spec.unknown\\"' in api.warnings[0]
        after = await api.merge(PATH + "/w/status", {"status": {"ready": True}, "spec": {"size": 9}, "metadata": {"labels": {"a": "b"}}})
        assert after["spec"]["size"] == 2
        assert after["status"] == {"ready": True}
        assert after["metadata"]["generation"] == 1
        assert "labels" not in after["metadata"]
        changed = await api.merge(PATH + "/w", {"spec": {"size": 3}, "status": {"ready": False}})
        assert changed["metadata"]["generation"] == 2
        assert changed["status"] == {"ready": True}
        same = await api.merge(PATH + "/w", {"spec": {"size": 3}})
        assert same["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]

    with_api(body, crds=[widget_crd])


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"size": 0}, "spec.size", "FieldValueInvalid"),
        ({}, "spec.size", "FieldValueRequired"),
        ({"size": "x"}, "spec.size", "FieldValueTypeInvalid"),
        ({"size": 1, "colour": "green"}, "spec.colour", "FieldValueNotSupported"),
    ],
)
def test_bad_values_are_refused_with_their_field(with_api: Any, widget_crd: Any, spec: dict[str, Any], field: str, reason: str) -> None:
    async def body(api: Any) -> None:
        status, out = await api.call("POST", PATH, widget(**spec))
        assert status == 422
        assert out["reason"] == "Invalid"
        assert [(c["field"], c["reason"]) for c in out["details"]["causes"]] == [(field, reason)]

    with_api(body, crds=[widget_crd])


def test_true_is_not_one_and_false_is_not_zero(with_api: Any, widget_crd: Any) -> None:
    """Python takes them for equal, and what is as it was is neither checked nor written."""

    async def body(api: Any) -> None:
        made = await api.post(PATH, widget(size=1, free={"a": 1, "b": [{"c": False}]}))
        await api.merge(PATH + "/w/status", {"status": {"ready": True}})
        for path, wrong, field in (
            ("/w", {"spec": {"size": True}}, "spec.size"),
            ("/w", {"spec": {"size": True, "colour": "blue"}}, "spec.size"),
            ("/w/status", {"status": {"ready": 1}}, "status.ready"),
        ):
            status, out = await api.call("PATCH", PATH + path, wrong, kind=MERGE)
            assert status == 422
            assert [(c["field"], c["reason"]) for c in out["details"]["causes"]] == [(field, "FieldValueTypeInvalid")]
        for free in ({"a": True, "b": [{"c": False}]}, {"a": True, "b": [{"c": 0}]}):
            changed = await api.merge(PATH + "/w", {"spec": {"free": free}})
            assert orjson.dumps(changed["spec"]["free"]) == orjson.dumps(free)
            assert changed["metadata"]["generation"] == made["metadata"]["generation"] + 1
            made = changed
        same = await api.merge(PATH + "/w", {"spec": {"size": 1, "free": {"a": True, "b": [{"c": 0.0}]}}})
        assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]

    with_api(body, crds=[widget_crd])


def test_an_object_of_too_many_levels_is_refused_in_one_sentence(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        deep: dict[str, Any] = {}
        for _ in range(300):
            deep = {"a": deep}
        text = json.dumps(widget(size=1, free=deep))
        async with api.session.post(PATH, data=text, headers={"Content-Type": "application/json"}) as response:
            out = await response.json()
            assert (response.status, out["message"]) == (400, "the object is nested too deeply: this server stores at most 254 levels")
        assert (await api.get(PATH))["items"] == []
        await api.post(PATH, widget(size=1))

    with_api(body, crds=[widget_crd])


def test_deleting_the_definition_deletes_its_objects(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(PATH, widget(size=1))
        await api.ok("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com")
        assert (await api.call("GET", PATH))[0] == 404
        assert (await api.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com"))[0] == 404

    with_api(body, crds=[widget_crd])


def test_nulls_of_fields_that_may_not_be_null_are_absent(with_api: Any, widget_crd: Any) -> None:
    fields = widget_crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    fields["notes"] = {"type": "object", "additionalProperties": {"type": "string"}}
    fields["levels"] = {"type": "object", "additionalProperties": {"type": "integer", "default": 3}}
    fields["odd"] = {"type": "object", "additionalProperties": {"type": "string", "nullable": True}}
    fields["any"] = {"x-kubernetes-preserve-unknown-fields": True}

    async def body(api: Any) -> None:
        made = await api.post(
            PATH,
            widget(
                size=1,
                colour=None,
                free=None,
                any=None,
                notes={"a": None, "b": "c"},
                levels={"a": None},
                odd={"a": None},
                parts=[{"name": "p", "count": None}],
            ),
        )
        assert made["spec"] == {
            "size": 1, "colour": "red", "notes": {"b": "c"}, "levels": {"a": 3}, "odd": {"a": None}, "parts": [{"name": "p"}],
        }  # fmt: skip

    with_api(body, crds=[widget_crd])


def test_what_is_stored_has_the_shape_of_the_present_definition(with_api: Any, widget_crd: Any, tmp_path: Path) -> None:
    """A default that comes with a definition holds for what stands already, and is the doing of nobody who writes something else."""

    async def shown(api: Any, field: str, path: str = PATH) -> Any:
        for _ in patience.tries(50):
            found = (await api.get(path + "/w"))["spec"]
            if field in found:
                break
            await asyncio.sleep(0.01)
        return found

    whole = {"type": "integer"}
    versions = widget_crd["spec"]["versions"]
    fields = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]

    async def before(api: Any) -> None:
        made = await api.post(PATH + "?fieldManager=me", widget(size=1, parts=[{"name": "p", "count": 2}]))
        fields["height"] = {**whole, "default": 7}
        del fields["parts"]["items"]["properties"]["count"]
        await api.merge(CRD_PATH, {"spec": {"versions": versions}})
        assert await shown(api, "height") == {"size": 1, "colour": "red", "height": 7, "parts": [{"name": "p"}]}
        assert [item["spec"]["height"] for item in (await api.get(PATH))["items"]] == [7]
        assert (await api.get(PATH + "/w"))["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]

    async def after(api: Any) -> None:
        assert (await shown(api, "height"))["height"] == 7
        labelled = await api.merge(PATH + "/w?fieldManager=you", {"metadata": {"labels": {"a": "b"}}})
        assert labelled["metadata"]["generation"] == 1
        assert [m["fieldsV1"] for m in labelled["metadata"]["managedFields"] if m["manager"] == "you"] == [
            {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}
        ]
        # it is stored in v1 still: another version to store in takes nothing off it
        fields["depth"] = {**whole, "default": 1}
        spec = {"type": "object", "properties": {"size": whole}}
        newer = {
            "name": "v2",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
        }
        await api.merge(CRD_PATH, {"spec": {"versions": [{**versions[0], "storage": False}, newer]}})
        assert await shown(api, "depth", PATH.replace("/v1/", "/v2/")) == {
            "size": 1, "colour": "red", "height": 7, "depth": 1, "parts": [{"name": "p"}],
        }  # fmt: skip

    with_api(before, crds=[widget_crd], config=ServerConfig(data_dir=tmp_path))
    with_api(after, config=ServerConfig(data_dir=tmp_path))


@pytest.mark.feature("BEY-SEC-01")
@pytest.mark.timeout(60)
def test_a_pattern_takes_linear_time_and_one_that_cannot_is_refused() -> None:
    from koord.apiserver.schema.structural import Structural
    from koord.apiserver.validation.crds import check_schema

    def told(pattern: str, value: str) -> list[str]:
        causes: list[Cause] = []
        Structural({"type": "string", "pattern": pattern}).validate(value, None, causes)
        return [cause.message for cause in causes]

    for pattern in ("^(a+)+$", "^(a|a)*$", "^(.*a){12}$", r"^([a-z]+\.?)+@$"):
        assert told(pattern, "a" * 20_000 + "!") != [], pattern
    assert told("^(a+)+$", "aaa") == []
    assert told("^.$", "ü") == [], "characters, not bytes"
    assert told("(?<x", "anything") != [], "what nobody understands matches nothing"
    for pattern in (r"(a)\1", "(?=a)", "(", "a{2000}"):
        causes: list[Cause] = []
        check_schema({"type": "string", "pattern": pattern}, "schema", causes)
        assert [cause.field for cause in causes] == ["schema.pattern"], pattern
        assert "must be a valid regular expression" in causes[0].message


def test_what_is_not_enforced_is_said(with_api: Any) -> None:
    """A limit that is stored and not applied comes back with a Warning; what is enforced does not."""

    async def body(api: Any) -> None:
        space = "/api/v1/namespaces/default"
        await api.post(f"{space}/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Pod"}]}})
        assert api.warnings == ['299 - "this API server does not apply LimitRanges"']
        await api.post(
            "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", {"metadata": {"name": "n"}, "spec": {"podSelector": {}}}
        )
        assert api.warnings == ['299 - "this API server has no network that could enforce NetworkPolicies"']
        await api.post(f"{space}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}})
        assert api.warnings == []

    with_api(body)


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def with_field(crd: Any, **schema: Any) -> Any:
    """The definition, with a field `spec.x`."""
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["x"] = schema
    return crd


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string", "minLength": "5"}, "cannot unmarshal string into field {x}.minLength of type int64"),
        ({"type": "string", "maxLength": 5.5}, "cannot unmarshal number into field {x}.maxLength of type int64"),
        ({"type": "integer", "maximum": "10"}, "cannot unmarshal string into field {x}.maximum of type float64"),
        ({"type": "number", "multipleOf": "2"}, "cannot unmarshal string into field {x}.multipleOf of type float64"),
        ({"type": "integer", "exclusiveMinimum": 3}, "cannot unmarshal number into field {x}.exclusiveMinimum of type bool"),
        ({"type": "string", "pattern": 5}, "cannot unmarshal number into field {x}.pattern of type string"),
        ({"type": "string", "allOf": ["x"]}, "cannot unmarshal string into field {x}.allOf[0] of type object"),
        ({"type": "string", "not": True}, "cannot unmarshal bool into field {x}.not of type object"),
        ({"type": "string", "enum": "a"}, "cannot unmarshal string into field {x}.enum of type list"),
        ({"type": "object", "required": "spec"}, "cannot unmarshal string into field {x}.required of type list"),
        ({"type": "object", "required": [1]}, "cannot unmarshal number into field {x}.required[0] of type string"),
        ({"type": "object", "properties": {"a": "x"}}, "cannot unmarshal string into field {x}.properties.a of type object"),
        ({"type": "object", "properties": ["a"]}, "cannot unmarshal array into field {x}.properties of type map"),
        ({"type": "object", "additionalProperties": "a"}, "cannot unmarshal string into field {x}.additionalProperties of type bool"),
        ({"type": "array", "items": {"type": ["string"]}}, "cannot unmarshal array into field {x}.items.type of type string"),
        ({"type": "array", "items": 5}, "cannot unmarshal number into field {x}.items of type list"),
        (
            {"type": "string", "x-kubernetes-validations": [{"rule": 5}]},
            "cannot unmarshal number into field {x}.x-kubernetes-validations[0].rule",
        ),
        ({"type": "string", "nullable": "yes"}, "cannot unmarshal string into field {x}.nullable of type bool"),
    ],
)
def test_keywords_of_a_schema_have_types(with_api: Any, widget_crd: Any, schema: Any, said: str) -> None:
    async def body(api: Any) -> None:
        status, out = await api.call("POST", CRDS, with_field(widget_crd, **schema))
        place = "spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.x"
        assert (status, out["reason"]) == (400, "BadRequest")
        assert said.format(x=place) in out["message"]
        assert (await api.get(CRDS))["items"] == []

    with_api(body)


FORMATS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bsonobjectid": (("507f1f77bcf86cd799439011",), ("507f", "507f1f77bcf86cd79943901g")),
    "byte": (("aGk=", "AAAA"), ("aGk", "!", "aGk=\n")),
    "cidr": (("10.0.0.0/8", "10.1.2.3/8", "fd00::/64"), ("10.0.0.0", "10.0.0.0/33", "10.0.0.0/255.0.0.0", "10.0/8", "fd00::1%eth0/64")),
    "creditcard": (("4111 1111 1111 1111", "378282246310005"), ("4111111111111112", "1234", "")),
    "date": (("2024-02-29",), ("2023-02-29", "20240229", "2024-W01-1", "2024-2-9", "")),
    "date-time": (("2024-01-02T03:04:05Z", "2024-01-02t03:04:05.123+02:00"), ("2024-01-02", "2024-01-02T25:00:00Z")),
    "datetime": (("2024-01-02T03:04:05Z",), ("yesterday",)),
    "duration": (("1h30m", "1.5s", "3 days", "-2m"), ("1 fortnight", "5", "")),
    "email": (
        ("a@b.example", "Ann B <a.b+c@b.example>", '"a b"@c', "a@localhost"),
        ("a", "a@", "@b", "a b@c", "a..b@c", "a@b c", "<a@b", ""),
    ),
    "hexcolor": (("#fff", "00FF00"), ("#ff", "ggg", "#ffff")),
    "hostname": (("a.example.com", "a"), ("-a", "a..b", "a_b", "")),
    "ipv4": (("1.2.3.4",), ("1.2.3", "1.2.3.256", "01.2.3.4", "::1", "")),
    "ipv6": (("::1", "fd00::1", "::ffff:1.2.3.4"), ("1.2.3.4", "fe80::1%eth0", ":::", "")),
    "isbn": (("0-306-40615-2", "978-0-306-40615-7"), ("0-306-40615-3", "x")),
    "isbn10": (("0306406152", "080442957X"), ("9780306406157",)),
    "isbn13": (("9780306406157",), ("9780306406158", "0306406152")),
    "mac": (("00:1b:44:11:3A:B7", "00-1b-44-11-3a-b7", "001b.4411.3ab7"), ("00:1b:44:11:3a", "00:1b-44:11:3a:b7", "001b44113ab7")),
    "password": (("anything", ""), ()),
    "rgbcolor": (("rgb(0, 128,255)",), ("rgb(0,0,256)", "rgb(0,0)", "red")),
    "ssn": (("123-45-6789", "123456789"), ("12-345-6789", "x")),
    "uri": (
        ("https://a.example:8080/b?c=d%zz#e", "/path", "mailto:a@b", "http://[::1]:80/", "urn:x:y", "http://u:p@h/%41", "*", "http://"),
        ("a", "a/b", "", "http://a b", "http://a:b/", "http://a/%zz", "//a\n", "1http://a", "http://[::1", "?x", ":a"),
    ),
    "uuid": (("123e4567-e89b-12d3-a456-426614174000", "123E4567E89B12D3A456426614174000"), ("123e4567", "x" * 36)),
    "uuid3": (("123e4567-e89b-32d3-0456-426614174000",), ("123e4567-e89b-42d3-a456-426614174000",)),
    "uuid4": (("123e4567-e89b-42d3-a456-426614174000",), ("123e4567-e89b-42d3-0456-426614174000",)),
    "uuid5": (("123e4567-e89b-52d3-b456-426614174000",), ("123e4567-e89b-42d3-a456-426614174000",)),
    "int-or-nothing": (("anything", ""), ()),  # not known
    "regex": (("(",), ()),  # not known either
}


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_strings_have_the_formats_that_kubernetes_knows(form: str) -> None:
    good, bad = FORMATS[form]
    node = structural({"type": "string", "format": form})
    for text in good:
        causes: list[Cause] = []
        node.validate(text, None, causes)
        assert not causes, text
    for text in bad:
        causes = []
        node.validate(text, (None, "x"), causes)
        assert [(cause.kind, cause.field) for cause in causes] == [("FieldValueInvalid", "x")], text
        assert f"x in body must be of type {form}: " in causes[0].message


def test_a_format_is_about_strings_and_applies_to_objects_that_are_written(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        status, out = await api.call("POST", PATH, widget(size=1, x="not a date"))
        assert (status, out["details"]["causes"][0]["field"]) == (422, "spec.x")
        await api.post(PATH, widget(size=1, x="2024-01-02"))

    with_api(body, crds=[with_field(widget_crd, type="string", format="date")])
    causes: list[Cause] = []
    for value, form in ((2**31, "int32"), (2**63, "int64"), (-(2**31) - 1, "int32")):
        structural({"type": "integer", "format": form}).validate(value, None, causes)
    assert len(causes) == 3
    structural({"x-kubernetes-int-or-string": True, "format": "ipv4"}).validate(5, None, causes)
    assert len(causes) == 3


def test_unknown_keywords_are_told_and_dropped(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        crd = with_field(widget_crd, type="array", maxItem=3, items={"type": "string", "minLenght": 5})
        place = "spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.x"
        status, out = await api.call("POST", CRDS + "?fieldValidation=Strict", crd)
        assert status == 400
        assert f'unknown field "{place}.maxItem", unknown field "{place}.items.minLenght"' in out["message"]
        made = await api.post(CRDS + "?fieldValidation=Warn", crd)
        assert [warning.split('"', 1)[1][:-1].replace("\\", "") for warning in api.warnings] == [
            f'unknown field "{place}.maxItem"',
            f'unknown field "{place}.items.minLenght"',
        ]
        schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["x"]
        assert schema == {"type": "array", "items": {"type": "string"}}

    with_api(body)


def test_a_schema_is_stored_as_kubernetes_stores_it(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        kept = {
            "type": "object",
            "minProperties": 0,
            "additionalProperties": {"nullable": True, "type": "string", "enum": ["a", None, 5], "default": "a"},
            "example": None,
            "not": {"required": ["z"]},
            "dependencies": {"a": ["b"], "c": {"type": "object"}},
            "definitions": {"d": {"items": [{"type": "string"}], "additionalItems": False}},
        }
        gone = {"nullable": False, "exclusiveMinimum": False, "required": [], "description": "", "properties": {}, "title": None}
        made = await api.post(CRDS, with_field(widget_crd, **kept, **gone))
        schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["x"]
        del kept["example"]
        assert schema == kept
        assert not api.warnings
        obj = widget(size=1, x={"k": None, "l": "a"})
        assert (await api.post(PATH, obj))["spec"]["x"] == {"k": None, "l": "a"}

    with_api(body)


def test_a_step_that_is_too_small_to_count_is_no_error_of_the_server(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(CRDS, with_field(widget_crd, type="number", multipleOf=1e-320))
        status, out = await api.call("POST", PATH, widget(size=1, x=1e300))
        assert (status, [cause["field"] for cause in out["details"]["causes"]]) == (422, ["spec.x"])

    with_api(body)


def test_a_conversion_webhook_is_not_called_and_that_is_said(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        said = '299 - "this API server does not call conversion webhooks: it shows an object of one version unchanged in the others, '
        spec = widget_crd["spec"]
        client = {"url": "https://nowhere.example/convert"}
        spec["conversion"] = {"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}}
        await api.post(CRDS + "?dryRun=All", widget_crd)
        assert api.warnings == []  # of one version there is nothing to convert
        spec["versions"].append({**spec["versions"][0], "name": "v2", "storage": False})
        await api.post(CRDS, widget_crd)
        assert [warning.startswith(said) for warning in api.warnings] == [True]
        made = await api.get(CRDS + "/widgets.example.com")
        made["spec"]["versions"][1]["served"] = False
        await api.ok("PUT", CRDS + "/widgets.example.com", made)
        assert [warning.startswith(said) for warning in api.warnings] == [True]
        await api.merge(CRDS + "/widgets.example.com", {"spec": {"conversion": {"strategy": "None", "webhook": None}}})
        assert api.warnings == []

    with_api(body)


def test_a_value_that_a_field_selector_cannot_reach_into_is_an_empty_one(with_api: Any, widget_crd: Any) -> None:
    """What a stricter definition would refuse stays stored: watches and lists that select by it are told, and so is everybody else."""

    async def body(api: Any) -> None:
        made = await api.post(PATH, widget(size=1, colour="red"))
        version = widget_crd["spec"]["versions"][0]
        inner = {"type": "object", "properties": {"name": {"type": "string"}}}
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["colour"] = inner
        version["selectableFields"] = [{"jsonPath": ".spec.colour.name"}]
        crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com"
        await api.merge(crd, {"spec": {"versions": widget_crd["spec"]["versions"]}})
        begin = made["metadata"]["resourceVersion"]
        selecting = asyncio.create_task(api.watch(f"{PATH}?resourceVersion={begin}&fieldSelector=spec.colour.name%3Dx"))
        while not api.server.core.store.backlog.holders:
            await asyncio.sleep(0)
        await api.merge(PATH + "/w", {"metadata": {"labels": {"a": "b"}}})
        assert await selecting == []
        assert (await api.get(PATH + "?fieldSelector=spec.colour.name%3Dx"))["items"] == []
        assert [i["metadata"]["name"] for i in (await api.get(PATH + "?fieldSelector=spec.colour.name!%3Dx"))["items"]] == ["w"]

    with_api(body, crds=[widget_crd])


def test_a_definition_whose_status_could_not_be_written_is_established_later(with_api: Any, widget_crd: Any) -> None:
    class FullDisk:
        refuses = 2

        def put(self, bucket: str, key: str, version: int, body: bytes) -> None:
            if b'"Established"' in body and self.refuses:
                self.refuses -= 1
                raise sqlite3.OperationalError("database or disk is full")

        def remove(self, bucket: str, key: str, version: int) -> None:
            pass

    async def body(api: Any) -> None:
        api.server.core.store.disk = FullDisk()
        await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_crd)
        for _ in patience.tries(50):
            if (await api.call("GET", PATH))[0] == 200:
                break
            await asyncio.sleep(0.01)
        await api.post(PATH, widget(size=1))

    with_api(body)


CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com"


def test_the_deletion_of_a_definition_goes_on_after_a_restart(with_api: Any, widget_crd: Any, tmp_path: Path) -> None:
    async def before(api: Any) -> None:
        held = widget(size=1)
        held["metadata"]["finalizers"] = ["x.io/hold"]
        await api.post(PATH, held)
        await api.ok("DELETE", CRD_PATH)
        for _ in patience.tries(50):
            if "deletionTimestamp" in (await api.get(PATH + "/w"))["metadata"]:
                break
            await asyncio.sleep(0.01)

    async def after(api: Any) -> None:
        assert (await api.get(PATH + "/w"))["metadata"]["deletionTimestamp"]
        await api.merge(PATH + "/w", {"metadata": {"finalizers": None}})
        assert await gone(api, CRD_PATH)

    with_api(before, crds=[widget_crd], config=ServerConfig(data_dir=tmp_path))
    with_api(after, config=ServerConfig(data_dir=tmp_path))


def test_finalizers_of_custom_resources_need_no_path(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        said = "prefer a domain-qualified finalizer name %sto avoid accidental conflicts with other finalizer writers"
        warnings = []
        for method, path, finalizers in (
            ("POST", PATH, ["resources-finalizer.example.com", "foregroundDeletion"]),
            ("PATCH", f"{PATH}/w", ["resources-finalizer.example.com", "a.io/b", "plain"]),
            ("PATCH", f"{PATH}/w", ["plain"]),
        ):
            sent = {**widget(size=1), "metadata": {"name": "w", "finalizers": finalizers}}
            made = await api.ok(method, path, sent, kind="application/json" if method == "POST" else MERGE)
            assert made["metadata"]["finalizers"] == finalizers
            warnings += [warning.replace("\\", "") for warning in api.warnings]
        names = (("resources-finalizer.example.com", "including a path (/) "), ("plain", ""))
        assert warnings == [f'299 - "metadata.finalizers: "{name}": {said % more}"' for name, more in names]
        status, out = await api.call("PATCH", f"{PATH}/w", {"metadata": {"finalizers": ["no name"]}}, kind=MERGE)
        assert (status, out["details"]["causes"][0]["field"]) == (422, "metadata.finalizers")

    with_api(body, crds=[widget_crd])


def test_a_definition_that_goes_can_be_changed(with_api: Any, widget_crd: Any) -> None:
    """Its own finalizer is none with a path."""

    async def body(api: Any) -> None:
        await api.post(PATH, {**widget(size=1), "metadata": {"name": "w", "finalizers": ["example.com/held"]}})
        await api.ok("DELETE", CRD_PATH)
        changed = await api.merge(CRD_PATH, {"metadata": {"labels": {"a": "b"}}})
        assert (changed["metadata"]["labels"], len(changed["metadata"]["finalizers"])) == ({"a": "b"}, 1)

    with_api(body, crds=[widget_crd])


def test_deleting_a_definition_that_is_not_served_deletes_its_objects(with_api: Any, widget_crd: Any) -> None:
    """Those that have finalizers are waited for: who serves them again can take these off."""

    async def body(api: Any) -> None:
        for name, finalizers in (("w", []), ("held", ["example.com/held"])):
            await api.post(PATH, {**widget(size=1), "metadata": {"name": name, "finalizers": finalizers}})
        version = widget_crd["spec"]["versions"][0]
        await api.merge(CRD_PATH, {"spec": {"versions": [{**version, "served": False}]}})
        await api.ok("DELETE", CRD_PATH)
        for _ in patience.tries(50):
            if api.server.core.store.bucket("example.com/widgets").get("default", "w") is None:
                break
            await asyncio.sleep(0.01)
        await api.merge(CRD_PATH, {"spec": {"versions": [version]}})
        left = (await api.get(PATH))["items"]
        assert [(one["metadata"]["name"], "deletionTimestamp" in one["metadata"]) for one in left] == [("held", True)]
        await api.merge(f"{PATH}/held", {"metadata": {"finalizers": None}})
        assert await gone(api, CRD_PATH)
        await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_crd)
        assert (await api.get(PATH))["items"] == []

    with_api(body, crds=[widget_crd])


def test_a_definition_without_its_status_is_served_after_a_restart(
    with_api: Any, widget_crd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def before(api: Any) -> None:
        monkeypatch.setattr(CustomResources, "_establish", lambda controller, entry: None)  # the life ends before
        await api.post(CRD_PATH.rpartition("/")[0], widget_crd)
        monkeypatch.undo()

    async def after(api: Any) -> None:
        await api.post(PATH, widget(size=1))

    with_api(before, config=ServerConfig(data_dir=tmp_path))
    with_api(after, config=ServerConfig(data_dir=tmp_path))


APPROVED = {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1111"}


def renamed(crd: dict[str, Any], group: str, plural: str, kind: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """The definition of another resource."""
    names = {"plural": plural, "kind": kind, "shortNames": [f"{plural}x"]}
    meta = {"name": f"{plural}.{group}", "annotations": annotations or {}}
    return {**crd, "metadata": meta, "spec": {**crd["spec"], "group": group, "names": names}}


def conditions(crd: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in crd["status"]["conditions"]}


@pytest.mark.parametrize(
    ("plural", "kind", "reason"),
    [("ingresses", "Other", "PluralConflict"), ("others", "Ingress", "ListKindConflict"), ("ingress", "Other", "PluralConflict")],
)
def test_a_definition_takes_the_place_of_nothing_built_in(with_api: Any, widget_crd: Any, plural: str, kind: str, reason: str) -> None:
    """Not for the approved groups of Kubernetes either, and what is built in stays when the definition goes."""

    async def body(api: Any) -> None:
        ingresses = "/apis/networking.k8s.io/v1/namespaces/default/ingresses"
        backend = {"service": {"name": "s", "port": {"number": 80}}}
        await api.post(ingresses, {"metadata": {"name": "i"}, "spec": {"defaultBackend": backend}})
        await api.post(CRDS, renamed(widget_crd, "networking.k8s.io", plural, kind, APPROVED))
        path = f"{CRDS}/{plural}.networking.k8s.io"
        found = conditions(await api.get(path))
        assert found["NamesAccepted"] == ("False", reason)
        assert found["Established"] == ("False", "NotAccepted")
        await api.ok("DELETE", path)
        assert await gone(api, path)
        for _ in range(2):
            listed = (await api.get(ingresses))["items"]
            assert [item["spec"]["defaultBackend"] for item in listed] == [backend]
            assert (await api.get("/apis/networking.k8s.io/v1"))["groupVersion"] == "networking.k8s.io/v1"
        assert (await api.call("POST", CRDS, renamed(widget_crd, "apps", "deployments", "Deployment")))[0] == 422

    with_api(body)


def test_a_definition_that_stands_from_before_is_not_served_in_a_built_in_place(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        crd = renamed(widget_crd, "networking.k8s.io", "ingresses", "Ingress", APPROVED)
        for name in ("v1", "v1beta1"):
            crd["spec"]["versions"] = [{**widget_crd["spec"]["versions"][0], "name": name}]
            names = crd["spec"]["names"]
            crd["status"] = {"conditions": [{"type": "Established", "status": "True"}], "acceptedNames": names, "storedVersions": [name]}
            api.server.core.store.bucket("apiextensions.k8s.io/customresourcedefinitions").put("", crd["metadata"]["name"], dict(crd))
            resource = api.server.core.resources.by_path("networking.k8s.io", "v1", "ingresses")
            assert not resource.custom
            assert api.server.core.resources.by_api_version("networking.k8s.io/v1", "Ingress") is resource
            assert api.server.core.resources.by_path("networking.k8s.io", "v1beta1", "ingresses") is None

    with_api(body)


def test_the_newest_version_of_a_group_is_preferred(with_api: Any, widget_crd: Any) -> None:
    """Whatever versions its other kinds have."""

    def versioned(plural: str, kind: str, *names: str) -> dict[str, Any]:
        made = renamed(widget_crd, "example.com", plural, kind)
        version = made["spec"]["versions"][0]
        return {**made, "spec": {**made["spec"], "versions": [{**version, "name": name, "storage": name == names[0]} for name in names]}}

    async def body(api: Any) -> None:
        await api.post(CRDS, versioned("olds", "Old", "v1beta1", "v1alpha1"))
        await api.post(CRDS, versioned("news", "New", "v1beta2", "v1beta1"))
        group = await api.get("/apis/example.com")
        assert [version["version"] for version in group["versions"]] == ["v1beta2", "v1beta1", "v1alpha1"]
        assert group["preferredVersion"] == group["versions"][0]

    with_api(body)


def test_a_definition_whose_names_were_not_accepted_can_be_changed(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(CRDS, renamed(widget_crd, "example.com", "gadgets", "Widget"))
        found = await api.get(f"{CRDS}/gadgets.example.com")
        assert (conditions(found)["NamesAccepted"][0], found["status"]["acceptedNames"]["kind"]) == ("False", "")
        await api.merge(f"{CRDS}/gadgets.example.com", {"spec": {"names": {"shortNames": ["g"]}}})
        assert (await api.get(f"{CRDS}/gadgets.example.com"))["status"]["acceptedNames"]["shortNames"] == ["g"]

    with_api(body, crds=[widget_crd])


def test_names_that_were_not_accepted_are_not_served(with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(CRDS, renamed(widget_crd, "example.com", "gadgets", "Gadget"))
        await api.merge(f"{CRDS}/gadgets.example.com", {"spec": {"names": {"shortNames": ["wg"]}}})  # those of widgets
        found = await api.get(f"{CRDS}/gadgets.example.com")
        assert conditions(found)["NamesAccepted"] == ("False", "ShortNamesConflict")
        assert conditions(found)["Established"][0] == "True"
        listed = {r["name"]: r.get("shortNames") for r in (await api.get("/apis/example.com/v1"))["resources"]}
        assert listed["gadgets"] == ["gadgetsx"]
        assert listed["widgets"] == ["wg"]

    with_api(body, crds=[widget_crd])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "FieldValueRequired"),
        ("because", "FieldValueInvalid"),
        ("http://[", "FieldValueInvalid"),
        ("unapproved, an experiment", ("False", "UnapprovedAnnotation")),
        ("https://github.com/kubernetes/enhancements/pull/1111", ("True", "ApprovedAnnotation")),
    ],
)
@pytest.mark.parametrize("group", ["sigs.k8s.io", "k8s.io", "kubernetes.io"])
def test_groups_of_kubernetes_are_approved(with_api: Any, widget_crd: Any, group: str, value: str | None, said: Any) -> None:
    async def body(api: Any) -> None:
        annotations = {} if value is None else {"api-approved.kubernetes.io": value}
        status, out = await api.call("POST", CRDS, renamed(widget_crd, group, "things", "Thing", annotations))
        if isinstance(said, str):
            cause = (out["details"]["causes"][0]["reason"], out["details"]["causes"][0]["field"])
            assert (status, cause) == (422, (said, "metadata.annotations[api-approved.kubernetes.io]"))
        else:
            found = conditions(await api.get(f"{CRDS}/things.{group}"))
            assert found["KubernetesAPIApprovalPolicyConformant"] == said
            assert found["Established"][0] == "True"

    with_api(body)


@pytest.mark.parametrize("value", [None, "because"])
def test_an_update_need_not_mend_an_approval_that_was_wrong_before(with_api: Any, widget_crd: Any, value: str | None) -> None:
    """It was taken by an earlier version, and its owner, or who deletes it, need not know."""

    async def body(api: Any) -> None:
        crd = renamed(widget_crd, "sigs.k8s.io", "things", "Thing", {} if value is None else {"api-approved.kubernetes.io": value})
        names = crd["spec"]["names"]
        crd["status"] = {"conditions": [{"type": "Established", "status": "True"}], "acceptedNames": names, "storedVersions": ["v1"]}
        crd["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x.io/hold"]}
        api.server.core.store.bucket("apiextensions.k8s.io/customresourcedefinitions").put("", crd["metadata"]["name"], crd)
        path = f"{CRDS}/things.sigs.k8s.io"
        await api.merge(path, {"spec": {"names": {"categories": ["all"]}}})
        await api.merge(f"{path}/status", {"status": {"storedVersions": ["v1"]}})
        other = None if value else "because"
        status, out = await api.call("PATCH", path, {"metadata": {"annotations": {"api-approved.kubernetes.io": other}}}, kind=MERGE)
        assert (status, out["details"]["causes"][0]["field"]) == (422, "metadata.annotations[api-approved.kubernetes.io]")
        await api.merge(path, {"metadata": {"annotations": APPROVED}})
        status, _ = await api.call("PATCH", path, {"metadata": {"annotations": {"api-approved.kubernetes.io": None}}}, kind=MERGE)
        assert status == 422
        await api.merge(path, {"metadata": {"finalizers": None}})
        await api.ok("DELETE", path)
        assert await gone(api, path)

    with_api(body)


async def gone(api: Any, path: str) -> bool:
    for _ in patience.tries(50):
        if (await api.call("GET", path))[0] == 404:
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("said", "told"), [({}, "example.com/v1 Widget is deprecated; use example.com/v2 Widget"), ({"deprecationWarning": "go on"}, "go on")]
)
def test_users_of_a_deprecated_version_are_told(said: dict[str, str], told: str, with_api: Any, widget_crd: Any) -> None:
    async def body(api: Any) -> None:
        old = {**widget_crd["spec"]["versions"][0], "storage": False, "deprecated": True, **said}
        newer = [{**widget_crd["spec"]["versions"][0], "name": name, "storage": name == "v2"} for name in ("v2", "v3alpha1")]
        widget_crd["spec"]["versions"] = [old, *newer]
        await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_crd)
        path = "/apis/example.com/v1/namespaces/default/widgets"
        made = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}}
        for method, at, sent, status in (
            ("POST", path, made, 201),
            ("GET", path, None, 200),
            ("GET", path + "?watch=1&timeoutSeconds=1", None, 200),
            ("GET", path + "/w", None, 200),
            ("GET", path + "/none", None, 404),
            ("DELETE", path + "/w", None, 200),
        ):
            got, _ = await api.call(method, at, sent)
            assert (got, api.warnings) == (status, [f'299 - "{told}"']), (method, at)
        await api.get(path.replace("v1/", "v2/"))
        assert api.warnings == []

    with_api(body)
