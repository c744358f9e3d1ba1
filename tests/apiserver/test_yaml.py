"""Bodies of YAML: what they say is what they say to kube-apiserver, and none is small to send and big to hold."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from koord.apiserver import manifests
from koord.config import plainyaml
from tests.apiserver.conftest import APPLY
from tests.support import patience

YAML = "application/yaml"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
MAPS = "/api/v1/namespaces/default/configmaps"
HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n"


def bomb(levels: int) -> str:
    """Some lines that stand for ten to the power of `levels` words."""
    lines = ["a0: &a0 [" + ", ".join(["wordswords"] * 10) + "]"]
    lines += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 10) + "]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (bomb(6), "document contains excessive aliasing"),
        ("a: &a " + "x" * 100_000 + "\nb: [" + "*a," * 200 + "]\n", "document contains excessive aliasing"),
        (
            "a: &a {" + ",".join(f"k{i}: v" for i in range(1000)) + "}\nb: {" + "<<: *a," * 2000 + "}\n",
            "document contains excessive aliasing",
        ),
        ("a: " + "[" * 20_000 + "\n", "nested more deeply than 254 levels"),
        ("a:\n  " + "- " * 20_000 + "x\n", "nested more deeply than 254 levels"),
        ("? " * 20_000 + "x\n", "nested more deeply than 254 levels"),
        ("a: &a " + "[" * 200 + "]" * 200 + "\nb: " + "[" * 100 + "*a" + "]" * 100 + "\n", "nested more deeply than 254 levels"),
        ("a: &a [*a]\n", "has no anchor before it"),
        ("a: !!python/object:os.system {}\n", "is not known here"),
        ("a: .nan\n", "JSON has no number .nan"),
        ("? [a]\n: b\n", "must be a string"),
        ("".join(f"%TAG !a{i}! tag:{i}\n" for i in range(101)) + "---\na: b\n", "%TAG directives"),
        ("a: b\n---\nc: d\n", "more than one document"),
        ("a: [\n", "error decoding YAML"),
        (b"a: \xff\n", "is no Unicode text"),
    ],
)
def test_what_is_no_plain_document_is_a_400(with_api: Any, text: str | bytes, said: str) -> None:
    async def body(api: Any) -> None:
        data = text if isinstance(text, bytes) else text.encode()
        for method, path, kind in (("POST", REVIEWS, YAML), ("PATCH", MAPS + "/m?fieldManager=f", APPLY)):
            status, out = await api.call(method, path, data, kind=kind)
            assert (status, out["reason"]) == (400, "BadRequest"), out
            assert said in out["message"]

    with_api(body)


@pytest.mark.parametrize(
    ("plain", "value"),
    [
        ("2024-02-30", "2024-02-30"),
        ("2001-12-14 21:59:43", "2001-12-14 21:59:43"),
        ("2024-02-28", "2024-02-28"),
        ("12:30", "12:30"),
        ("190:20:30.15", "190:20:30.15"),
        ("1e3", 1000),
        ("1.5e-3", 0.0015),
        ("3.0", 3),
        ("123456789012345678901", 1.2345678901234568e20),
        ("18446744073709551615", 18446744073709551615),
        ("1e999", "1e999"),
        ("017", 15),
        ("0o17", 15),
        ("08", 8),
        ("0x1F", 31),
        ("-0b11", -3),
        ("1_000", 1000),
        ("y", "y"),
        ("off", False),
        ("~", None),
        ("<<", "<<"),
        ("!!str 12", "12"),
        ("!!int '12'", 12),
        ("!!binary aGFsbG8=", "hallo"),
        ("'12'", "12"),
    ],
)
def test_plain_scalars_mean_what_they_mean_to_kubernetes(with_api: Any, widget_crd: Any, plain: str, value: Any) -> None:
    async def body(api: Any) -> None:
        await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_crd)
        text = f"apiVersion: example.com/v1\nkind: Widget\nmetadata: {{name: w}}\nspec:\n  size: 1\n  free: {{v: [{plain}]}}\n"
        made = await api.ok("POST", "/apis/example.com/v1/namespaces/default/widgets", text.encode(), kind=YAML)
        (found,) = made["spec"]["free"]["v"]
        assert (found, type(found)) == (value, type(value))

    with_api(body)


def test_aliases_and_merge_keys_are_written_out(with_api: Any) -> None:
    async def body(api: Any) -> None:
        text = HEAD + "data: {<<: &d {a: x, b: x}, b: v, 1: z, true: t}\n"
        assert (await api.ok("POST", MAPS, text.encode(), kind=YAML))["data"] == {"a": "x", "b": "v", "1": "z", "true": "t"}
        labels = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: o, labels: &l {a: x}, annotations: *l}\ndata: *l\n"
        made = await api.ok("POST", MAPS, labels.encode(), kind=YAML)
        assert made["data"] == made["metadata"]["labels"] == made["metadata"]["annotations"] == {"a": "x"}

    with_api(body)


def test_yaml_that_is_answered_says_the_same_when_it_is_sent(with_api: Any) -> None:
    async def body(api: Any) -> None:
        texts = ["y", "N", "yes", "", "~", "1e3", "0o17", "08", "1_000", "12:30", "2024-02-28", "<<", ".inf", "é", "a\nb ", "- x", "#"]
        made = await api.post(MAPS, {"metadata": {"name": "m"}, "data": {f"k{i}": text for i, text in enumerate(texts)}})
        shown = await api.ok("GET", MAPS + "/m", accept=YAML)
        assert (await api.ok("PUT", MAPS + "/m", shown, kind=YAML))["data"] == made["data"]

    with_api(body)


def test_every_answer_about_a_resource_may_be_yaml(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await api.post(MAPS, {"metadata": {"name": "m"}})
        for method, path, sent, said in (
            ("GET", MAPS, None, b"kind: ConfigMapList"),
            ("GET", MAPS + "/m", None, b"kind: ConfigMap"),
            ("POST", REVIEWS, {"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}}, b"kind: SelfSubjectAccessReview"),
            ("DELETE", MAPS + "/m", None, b"status: Success"),
        ):
            assert said in await api.ok(method, path, sent, accept=YAML)
            assert api.headers["Content-Type"] == YAML

    with_api(body)


def test_a_long_document_is_written_beside_the_loop(with_api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    others, dump = threading.Event(), plainyaml.dump

    def slow(value: Any) -> str:
        assert others.wait(patience.seconds(5)), "nobody else was answered meanwhile"
        return dump(value)

    async def body(api: Any) -> None:
        await api.post(MAPS, {"metadata": {"name": "m"}, "data": {f"key-{i}": f"value {i}" for i in range(5000)}})
        monkeypatch.setattr(plainyaml, "dump", slow)
        listed = asyncio.create_task(api.ok("GET", MAPS, accept=YAML))
        await asyncio.sleep(0.05)
        async with api.session.get("/healthz") as response:
            assert response.status == 200
        others.set()
        assert b"key-4999: value 4999" in await listed

    with_api(body)


def test_a_long_document_is_read_beside_the_loop(with_api: Any) -> None:
    async def body(api: Any) -> None:
        text = HEAD + "data:\n" + "".join(f"  key-{i}: value {i}\n" for i in range(5000))
        made = await api.ok("POST", MAPS, text.encode(), kind=YAML)
        assert made["data"]["key-4999"] == "value 4999"

    with_api(body)


def test_a_manifest_that_is_no_plain_document_is_one_error(tmp_path: Path) -> None:
    file = tmp_path / "crd.yaml"
    file.write_text("a: " + "[" * 1000)
    with pytest.raises(manifests.ManifestError, match=r"crd.yaml: nested more deeply"):
        manifests.read(file)
    file.write_text("since: 2024-02-30")
    with pytest.raises(manifests.ManifestError, match="no CustomResourceDefinition found"):
        manifests.read(file)
