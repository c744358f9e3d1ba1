"""What is installed is accepted strictly: by the fields of Kubernetes' own models, by Pod Security, by a real kube-apiserver."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.kube.config import ClientConfig
from roles.tools import manifests
from tests.kube.test_realapi import config  # noqa: F401  (a running kube-apiserver)
from tests.packaging.test_chart import helm
from tests.support import strict

FOREIGN = ("ServiceMonitor", "PrometheusRule")
"""Kinds of the Prometheus operator; test_monitoring.py looks at them."""
TOO_NEW = ("PodDisruptionBudget", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
"""In these versions not served by Kubernetes 1.20; the models know them."""
VARIANTS: list[tuple[str, ...]] = [(), *((name,) for name in manifests.OVERLAYS)]
Obj = dict[str, Any]


def own(objects: list[Obj]) -> list[Obj]:
    return [d for d in objects if d["kind"] not in FOREIGN]


@pytest.mark.parametrize("overlays", VARIANTS, ids=lambda names: "+".join(names) or "default")
def test_every_field_is_known_and_of_its_type(overlays: tuple[str, ...]) -> None:
    found = [p for d in own(manifests.rendered(overlays=overlays)) for p in strict.problems(d)]
    assert found == []


@pytest.mark.helm
def test_every_field_of_the_chart_is_known() -> None:
    done = helm(
        values={"variants": ["monitoring"], "manager": {"nodeAffinity": {}, "hostNetwork": True}, "imagePullSecrets": [{"name": "x"}]}
    )
    objects = [d for d in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if d]
    assert [d["kind"] for d in objects].count("Job") == 1
    assert [p for d in own(objects) for p in strict.problems(d)] == []


def test_the_check_finds_what_is_wrong() -> None:
    deployment = next(d for d in manifests.documents("install") if d["kind"] == "Deployment")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["livenesProbe"] = container.pop("livenessProbe")
    deployment["spec"]["replicas"] = "2"
    deployment["spec"]["template"]["spec"]["volumes"] = {}
    assert sorted(strict.problems(deployment)) == [
        "Deployment.spec.replicas: int is wanted, not '2'",
        "Deployment.spec.template.spec.containers[0].livenesProbe: unknown field",
        "Deployment.spec.template.spec.volumes: a list is wanted",
    ]


def restricted(pod: Obj) -> list[str]:
    """What Pod Security level "restricted" says against a pod."""
    context = pod.get("securityContext", {})
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    found += [f"volume {v['name']}" for v in pod.get("volumes", ()) if not {"configMap", "emptyDir", "secret", "projected"} & set(v)]
    if not context.get("runAsNonRoot") or context.get("runAsUser") == 0:
        found.append("runs as root")
    if context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        found.append("no seccomp profile")
    for container in pod["containers"]:
        own_context = container.get("securityContext", {})
        if own_context.get("privileged") or own_context.get("allowPrivilegeEscalation") is not False:
            found.append("privilege escalation")
        capabilities = own_context.get("capabilities", {})
        if capabilities.get("drop") != ["ALL"] or set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
            found.append("capabilities")
        if own_context.get("runAsUser") == 0:
            found.append("runs as root")
        found += [f"host port of {container['name']}" for port in container.get("ports", ()) if port.get("hostPort")]
    return found


@pytest.mark.feature("BEY-SEC-01")
@pytest.mark.parametrize("overlays", VARIANTS, ids=lambda names: "+".join(names) or "default")
def test_all_but_koordlet_are_restricted(overlays: tuple[str, ...]) -> None:
    for document in manifests.rendered(overlays=overlays):
        if document["kind"] == "Deployment":
            pod = document["spec"]["template"]["spec"]
            assert restricted(pod) == [], document["metadata"]["name"]
            assert all(c["securityContext"]["readOnlyRootFilesystem"] for c in pod["containers"])
        elif document["kind"] == "DaemonSet" and "koordlet-observe" in overlays:
            pod = document["spec"]["template"]["spec"]
            mounts = ["volume proc", "volume sys", "volume kubelet-pki"]
            assert restricted(pod) == mounts, "the host mounts are all that it has beyond restricted"
            [container] = pod["containers"]
            assert all(m["readOnly"] for m in container["volumeMounts"] if f"volume {m['name']}" in mounts)
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
        elif document["kind"] == "DaemonSet":
            against = restricted(document["spec"]["template"]["spec"])
            assert "capabilities" in against, "the check sees what koordlet has"
            assert "privilege escalation" not in against


def test_every_class_of_pods_has_its_priority() -> None:
    classes = {d["metadata"]["name"]: d["value"] for d in manifests.documents("install") if d["kind"] == "PriorityClass"}
    from koord.api.priority import BANDS, PriorityClass

    assert set(classes) == {str(name) for name in BANDS}
    for name, value in classes.items():
        low, high = BANDS[PriorityClass(name)]
        assert low <= value <= high


def kubectl(target: ClientConfig, token: str, documents: list[Obj], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["kubectl", f"--server={target.server}", f"--token={token}", "--insecure-skip-tls-verify", "create", "--validate=strict"]
    text = manifests.text(documents)
    environment = {**os.environ, "KUBECONFIG": "/dev/null"}
    return subprocess.run([*command, *arguments, "-f", "-"], input=text, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.realapi
@pytest.mark.kubectl
def test_a_real_api_server_takes_it_all(config: ClientConfig, tmp_path: Path) -> None:  # noqa: F811
    every = manifests.rendered(overlays=("monitoring",))
    served = [d for d in own(every) if d["kind"] not in TOO_NEW]
    first = [d for d in served if d["kind"] in ("CustomResourceDefinition", "Namespace")]
    done = kubectl(config, "secret", first)
    assert done.returncode == 0, done.stderr
    done = kubectl(config, "secret", [d for d in served if d not in first])
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(served) - len(first)
    wrong = next(d for d in served if d["kind"] == "Deployment")
    wrong["spec"]["replica"] = 1
    done = kubectl(config, "secret", [wrong], "--dry-run=server")
    assert done.returncode != 0
    assert "replica" in done.stderr


@pytest.mark.realapi
@pytest.mark.kubectl
@pytest.mark.helm
def test_a_real_api_server_takes_the_chart(config: ClientConfig) -> None:  # noqa: F811
    done = helm("--kube-version=1.31.0", "--set=installation.namespace=charted", values={"variants": ["ha"]})
    names = ("Namespace", "ServiceAccount", "ConfigMap", "Service", "Deployment", "DaemonSet", "Job", "Role", "ClusterRole")
    objects = [d for d in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if d and d["kind"] in names]
    place = kubectl(config, "secret", [d for d in objects if d["kind"] == "Namespace"])
    assert place.returncode == 0, place.stderr
    rest = [d for d in objects if d["kind"] != "Namespace"]
    made = kubectl(config, "secret", rest, "--dry-run=server")
    conflicts = [line for line in made.stderr.splitlines() if "AlreadyExists" not in line and not line.startswith("Warning: ")]
    assert conflicts == []
