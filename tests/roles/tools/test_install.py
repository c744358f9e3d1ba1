"""`koord install --print` and `koord uninstall`: manifests that an API server takes, and the safe way out."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import orjson
import pytest
import yaml
from click.testing import CliRunner

from koord.apiserver.testing import running_server
from roles.tools import manifests
from roles.tools.install import install, plan, uninstall

ROOT = Path(__file__).resolve().parents[3]


def printed(*arguments: str) -> list[dict]:
    result = CliRunner().invoke(install, ["--print", *arguments])
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.output))


def test_every_object_is_printed_and_names_follow_the_flags() -> None:
    found = printed("--image=example.com/koord:1", "--namespace=colocation")
    kinds = [d["kind"] for d in found]
    assert kinds.count("CustomResourceDefinition") == 13
    assert {"Namespace", "DaemonSet", "Deployment", "ClusterRole", "PriorityClass", "ValidatingAdmissionPolicy"} <= set(kinds)
    text = manifests.text(found)
    assert "koordinator-system" not in text
    assert "system:serviceaccount:colocation:koordlet" in text
    images = {c["image"] for d in found if d["kind"] in ("Deployment", "DaemonSet") for c in d["spec"]["template"]["spec"]["containers"]}
    assert images == {"example.com/koord:1"}


def test_parts_can_be_left_out_with_their_rights() -> None:
    names = {d["metadata"]["name"] for d in printed("--crds=false", "--without=koordlet,descheduler")}
    assert not [name for name in names if "koordlet" in name or "descheduler" in name]
    assert {"koord-manager", "koord-scheduler", "koordinator-webhook-service"} <= names
    result = CliRunner().invoke(install, ["--print", "--without=all"])
    assert result.exit_code == 1
    assert "accepted: manager, scheduler, descheduler, koordlet" in result.output


def test_component_configs_in_the_manifests_are_valid(tmp_path: Path) -> None:
    from roles.descheduler.cli import command as descheduler
    from roles.scheduler.cli import command as scheduler

    maps = {d["metadata"]["name"]: d["data"] for d in manifests.documents("install") if d["kind"] == "ConfigMap"}
    for name, command in (("koord-scheduler-config", scheduler), ("koord-descheduler-config", descheduler)):
        file = tmp_path / name
        file.write_text(maps[name][name])
        result = CliRunner().invoke(command, [f"--config={file}", "--validate-config"])
        assert result.exit_code == 0, result.output


def test_workloads_are_hardened() -> None:
    for document in manifests.documents("install"):
        if document["kind"] == "Deployment":
            spec = document["spec"]["template"]["spec"]
            assert spec["securityContext"]["runAsNonRoot"] is True
            for container in spec["containers"]:
                context = container["securityContext"]
                assert context["readOnlyRootFilesystem"] is True
                assert context["capabilities"] == {"drop": ["ALL"]}
                assert context["allowPrivilegeEscalation"] is False
            assert document["spec"]["replicas"] == 2


def test_kustomize_takes_the_folder() -> None:
    listed = yaml.safe_load((ROOT / "configs/kustomization.yaml").read_text())["resources"]
    files = {str(f.relative_to(ROOT / "configs")) for d in ("crds", "install") for f in (ROOT / "configs" / d).glob("*.yaml")}
    assert set(listed) == files


@pytest.mark.kubectl
def test_kubectl_renders_the_kustomization() -> None:
    done = subprocess.run(["kubectl", "kustomize", str(ROOT / "configs")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(yaml.safe_load_all(done.stdout))) == len(manifests.rendered())


def test_an_api_server_takes_all_of_it_and_uninstall_leaves_what_others_use(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_server() as server, server.client() as client:
            for document in manifests.rendered():
                status, raw = await client.raw("POST", await path_of(client, document) + "?fieldValidation=Strict", document)
                assert status == 201 or (status == 409 and document["kind"] == "Namespace"), (document["metadata"]["name"], raw)
            arguments = [f"--kubeconfig={server.kubeconfig_path}"]
            dry = await asyncio.to_thread(CliRunner().invoke, uninstall, arguments)
            assert dry.exit_code == 0
            assert dry.output.splitlines()[0] == "would delete MutatingWebhookConfiguration koordinator-mutating-webhook-configuration"
            done = await asyncio.to_thread(CliRunner().invoke, uninstall, [*arguments, "--yes"])
            assert done.exit_code == 0, done.output
            left = []
            for document in manifests.rendered():
                status, _ = await client.raw("GET", f"{await path_of(client, document)}/{document['metadata']['name']}")
                if status == 200:
                    left.append(document["kind"])
            assert set(left) == {"Namespace", "PriorityClass", "CustomResourceDefinition"}
            again = await asyncio.to_thread(CliRunner().invoke, uninstall, [*arguments, "--yes"])
            assert again.exit_code == 0, "what is gone already is no mistake"

    async def path_of(client, document):
        version = document["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        _, raw = await client.raw("GET", root)
        served = next(r for r in orjson.loads(raw)["resources"] if r["kind"] == document["kind"] and "/" not in r["name"])
        namespace = document["metadata"].get("namespace")
        return f"{root}/namespaces/{namespace}/{served['name']}" if namespace else f"{root}/{served['name']}"

    asyncio.run(main())


def test_webhooks_go_first_and_definitions_last() -> None:
    kinds = [kind for kind, _, _ in plan("x", crds=True)]
    assert kinds[:2] == ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]
    assert kinds[-2] == "CustomResourceDefinition"
    assert kinds.index("DaemonSet") < kinds.index("ClusterRole")
