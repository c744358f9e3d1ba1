"""`koord install --print` and `koord uninstall`: manifests that an API server takes, and the safe way out."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import orjson
import pytest
import yaml
from click.testing import CliRunner

from koord.api.kinds import CONFIGMAPS, DAEMONSETS, DEPLOYMENTS
from koord.api.selectors import from_label_selector
from koord.apiserver.testing import running_server
from koord.cli import main
from koord.config import slo
from roles.manager.webhooks.registry import WEBHOOKS
from roles.tools import manifests
from roles.tools.install import install, plan, uninstall


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


def test_an_image_may_be_named_like_the_namespace() -> None:
    found = printed("--image=example.com/koordinator-system/koord:1", "--namespace=colocation", "--crds=false")
    images = {c["image"] for d in found if d["kind"] == "Deployment" for c in d["spec"]["template"]["spec"]["containers"]}
    assert images == {"example.com/koordinator-system/koord:1"}


@pytest.mark.parametrize("flag", ["--namespace=", "--namespace=Bad_NS", "--image=", "--image=a b", "--image=a:b:c", "--image=x@sha256:"])
def test_names_that_no_cluster_takes_are_refused(flag: str) -> None:
    result = CliRunner().invoke(main, ["install", "--print", flag], prog_name="koord")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{flag.partition('=')[0]}" in result.stderr


@pytest.mark.parametrize(
    "image", ["koord", "a.b:5000/x/y:v1.2", "[fd00::1]:5000/x@sha256:" + "a" * 64, "ghcr.io/x/koord:v1@sha256:" + "0" * 64]
)
def test_images_of_any_registry_are_taken(image: str) -> None:
    assert f"image: {image}" in manifests.text(printed(f"--image={image}", "--crds=false")).replace("'", "")


def test_parts_can_be_left_out_with_their_rights() -> None:
    names = {d["metadata"]["name"] for d in printed("--crds=false", "--without=koordlet,descheduler")}
    assert not [name for name in names if "koordlet" in name or "descheduler" in name]
    assert {"koord-manager", "koord-scheduler", "koordinator-webhook-service"} <= names
    result = CliRunner().invoke(install, ["--print", "--without=all"])
    assert result.exit_code == 2
    assert "accepted: manager, scheduler, descheduler, koordlet" in result.output


def names_of(*arguments: str) -> set[tuple[str, str]]:
    return {(d["kind"], d["metadata"]["name"]) for d in printed(*arguments)}


def test_parts_can_be_printed_alone() -> None:
    everything = names_of("--overlay=monitoring")
    shared = everything - {one for part in manifests.PARTS for one in names_of(f"--only={part}", "--overlay=monitoring")}
    assert {("Namespace", "koordinator-system"), ("ConfigMap", "slo-controller-config"), ("PriorityClass", "koord-batch")} < shared
    assert not {kind for kind, _ in shared} & {"Deployment", "DaemonSet", "NetworkPolicy", "Service"}
    alone = names_of("--only=koordlet")
    assert {("DaemonSet", "koordlet"), ("ServiceAccount", "koordlet"), ("ValidatingAdmissionPolicy", "koordlet-own-node")} <= alone
    assert all(name.startswith("koordlet") for _, name in alone), "what others need as it is stays as it is"
    assert names_of("--only=koordlet, scheduler") == alone | names_of("--only=scheduler")
    assert ("Service", "koordinator-webhook-service") in names_of("--only=manager")
    assert len(names_of("--only=koordlet", "--crds")) == len(alone) + 13
    assert names_of("--only=koordlet", "--crds=false") == alone
    [agent] = [d for d in printed("--only=koordlet", "--overlay=observe,monitoring") if d["kind"] == "DaemonSet"]
    assert "--mode=observe" in agent["spec"]["template"]["spec"]["containers"][0]["args"]


def test_what_is_applied_without_some_parts_and_then_with_these_alone_is_everything() -> None:
    parts = {"koordlet", "descheduler"}
    rest, later = names_of(f"--without={','.join(parts)}"), names_of(f"--only={','.join(parts)}")
    assert rest | later == names_of()
    assert not rest & later


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--only=all"], "--only: all is not known; accepted: manager, scheduler, descheduler, koordlet"),
        (["--only="], "--only names no part; accepted: manager, scheduler, descheduler, koordlet"),
        (["--only=manager", "--without=koordlet"], "--only and --without exclude each other"),
    ],
)
def test_parts_that_mean_nothing_are_refused(flags: list[str], told: str) -> None:
    result = CliRunner().invoke(main, ["install", "--print", *flags], prog_name="koord")
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


def test_without_koordlet_the_namespace_is_restricted() -> None:
    level = "pod-security.kubernetes.io/enforce"
    for arguments, wanted in ((["--without=koordlet"], "restricted"), ([], "privileged")):
        labels = next(d["metadata"]["labels"] for d in printed("--crds=false", *arguments) if d["kind"] == "Namespace")
        assert labels[level] == wanted


def test_overlays_are_applied_and_checked() -> None:
    found = printed("--crds=false", "--overlay=observe,single", "--without=manager")
    arguments = {
        d["metadata"]["name"]: d["spec"]["template"]["spec"]["containers"][0]["args"] for d in found if "template" in d.get("spec", {})
    }
    assert "--mode=observe" in arguments["koordlet"]
    assert "--dry-run" in arguments["koord-descheduler"]
    assert "koord-manager" not in arguments
    assert {d["spec"]["replicas"] for d in found if d["kind"] == "Deployment"} == {1}
    for arguments, told in (
        ("--overlay=big", "accepted: single, ha, observe, koordlet-observe, monitoring"),
        ("--overlay=ha,single", "exclude"),
    ):
        result = CliRunner().invoke(install, ["--print", arguments])
        assert result.exit_code == 2
        assert told in result.output


def test_component_configs_in_the_manifests_are_valid(tmp_path: Path) -> None:
    from roles.descheduler.cli import command as descheduler
    from roles.scheduler.cli import command as scheduler

    maps = {d["metadata"]["name"]: d["data"] for d in manifests.documents("install") if d["kind"] == "ConfigMap"}
    for name, command in (("koord-scheduler-config", scheduler), ("koord-descheduler-config", descheduler)):
        file = tmp_path / name
        file.write_text(maps[name][name])
        result = CliRunner().invoke(command, [f"--config={file}", "--validate-config"])
        assert result.exit_code == 0, result.output


def test_the_dry_run_of_the_observe_overlay_beats_the_configuration(tmp_path: Path) -> None:
    from roles.descheduler.cli import command

    file, done = tmp_path / "config", tmp_path / "completed"
    maps = {d["metadata"]["name"]: d["data"] for d in manifests.documents("install") if d["kind"] == "ConfigMap"}
    file.write_text(maps["koord-descheduler-config"]["koord-descheduler-config"])
    for flags, wanted in ((["--dry-run"], True), ([], False)):
        result = CliRunner().invoke(command, [f"--config={file}", f"--write-config-to={done}", *flags])
        assert result.exit_code == 0, result.output
        assert yaml.safe_load(done.read_text()).get("dryRun", False) is wanted


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


def test_an_api_server_takes_all_of_it_and_uninstall_leaves_what_others_use(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_server() as server, server.client() as client:
            for document in manifests.rendered():
                status, raw = await client.raw("POST", await path_of(client, document) + "?fieldValidation=Strict", document)
                assert status == 201 or (status == 409 and document["kind"] == "Namespace"), (document["metadata"]["name"], raw)
            arguments = [f"--kubeconfig={server.kubeconfig_path}"]
            koordlet = await client.get(DAEMONSETS, "koordlet", manifests.NAMESPACE)
            status = {"desiredNumberScheduled": 2}
            await client.replace(DAEMONSETS, {**koordlet, "status": status}, manifests.NAMESPACE, subresource="status")
            dry = await asyncio.to_thread(CliRunner().invoke, uninstall, arguments)
            assert dry.exit_code == 0
            listed = dry.output.splitlines()
            assert listed[:2] == [
                "would put back what koordlet changed on 2 nodes, before its DaemonSet goes",
                "would delete ClusterRoleBinding koord-manager",
            ]
            assert "would delete Deployment koordinator-system/koord-manager" in listed
            assert not any("koordlet-guard" in line or "dashboard" in line for line in listed), "only what is there"
            done = await asyncio.to_thread(CliRunner().invoke, uninstall, [*arguments, "--restore=false", "--yes"])
            assert done.exit_code == 0, done.output
            left = []
            for document in manifests.rendered():
                status, _ = await client.raw("GET", f"{await path_of(client, document)}/{document['metadata']['name']}")
                if status == 200:
                    left.append(document["kind"])
            assert set(left) == {"Namespace", "PriorityClass", "CustomResourceDefinition"}
            again = await asyncio.to_thread(CliRunner().invoke, uninstall, [*arguments, "--restore=false", "--yes"])
            assert again.exit_code == 0, "what is gone already is no mistake"
            empty = await asyncio.to_thread(CliRunner().invoke, uninstall, arguments)
            assert (empty.exit_code, empty.output) == (0, "nothing of koord was found (namespace koordinator-system)\n")

    async def path_of(client, document):
        version = document["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        _, raw = await client.raw("GET", root)
        served = next(r for r in orjson.loads(raw)["resources"] if r["kind"] == document["kind"] and "/" not in r["name"])
        namespace = document["metadata"].get("namespace")
        return f"{root}/namespaces/{namespace}/{served['name']}" if namespace else f"{root}/{served['name']}"

    asyncio.run(main())


@pytest.mark.kubectl
def test_kubectl_applies_the_folder_and_finds_nothing_to_change_afterwards() -> None:
    async def main() -> list[list[str]]:
        async with running_server() as server, server.client() as client:
            command = [
                "kubectl",
                f"--kubeconfig={server.kubeconfig_path}",
                "apply",
                "--server-side",
                "--validate=strict",
                "-k",
                str(manifests.CONFIGS),
            ]
            versions = []
            for _ in range(2):
                done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr
                assert len(done.stdout.splitlines()) == len(manifests.rendered())
                found = await client.list(DEPLOYMENTS, manifests.NAMESPACE)
                versions.append([item["metadata"]["resourceVersion"] for item in found.items])
            return versions

    first, second = asyncio.run(main())
    assert len(first) == 3
    assert first == second


@pytest.mark.kubectl
def test_an_upgrade_leaves_the_configuration_of_co_location_as_the_operator_edited_it() -> None:
    edited = {"colocation-config": '{"enable": true}'}

    async def main() -> None:
        async with running_server() as server, server.client() as client:
            kubectl = ["kubectl", f"--kubeconfig={server.kubeconfig_path}"]
            namespaced = [*kubectl, "--namespace=koordinator-system"]
            edit = ["patch", "configmap", "slo-controller-config", "--field-manager=kubectl-edit", "--patch", json.dumps({"data": edited})]
            for command in (
                [*kubectl, "apply", "--server-side", "-k", str(manifests.CONFIGS)],
                [*namespaced, *edit],
                [*kubectl, "apply", "--server-side", "-k", str(manifests.CONFIGS)],
            ):
                done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr
            found = await client.get(CONFIGMAPS, "slo-controller-config", manifests.NAMESPACE)
            assert found["data"] == edited

    asyncio.run(main())


def test_as_installed_co_location_is_off_and_its_configuration_bears_the_mark_that_the_webhook_looks_for() -> None:
    [installed] = [d for d in manifests.documents("install") if d["metadata"]["name"] == "slo-controller-config"]
    assert installed["data"] == {}, "an upgrade would take it back from whoever edited it"
    assert slo.parse({}, previous=None).config.cluster_enabled is False
    [webhook] = [row for row in WEBHOOKS if row.path == "/validate-configmap"]
    [registration] = webhook.registrations
    wanted = from_label_selector(registration.object_selector)
    assert wanted.matches(installed["metadata"]["labels"])


def test_the_managers_rights_and_webhooks_go_first_and_definitions_last() -> None:
    kinds = [kind for kind, _, _ in plan("x", crds=True)]
    assert kinds[:3] == ["ClusterRoleBinding", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]
    assert kinds[-2] == "CustomResourceDefinition"
    assert kinds.index("DaemonSet") < kinds.index("ClusterRole")


def test_an_api_server_that_does_not_answer_is_told_before_anything_is_listed(tmp_path: Path) -> None:
    entry, context = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}, {"name": "c", "context": {"cluster": "c"}}
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps({"clusters": [entry], "contexts": [context], "current-context": "c"}))
    result = CliRunner().invoke(uninstall, [f"--kubeconfig={file}"], prog_name="koord uninstall")
    said = "koord uninstall: error: cannot query the API server: http://127.0.0.1:1: connection refused\n"
    assert (result.exit_code, result.stderr, result.stdout) == (1, said, "")
