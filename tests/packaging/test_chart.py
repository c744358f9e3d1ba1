"""The Helm chart: with default values it is what kustomize makes, variant by variant; a value changes what it names and nothing else."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.version import VERSION
from roles.tools import manifests
from tests.e2e.test_uninstall import RULES

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "configs/chart/koord"
KEEP = "helm.sh/resource-policy"
Obj = dict[str, Any]
Key = tuple[str, str, str]


def helm(*arguments: str, values: Obj | None = None) -> subprocess.CompletedProcess[str]:
    command = ["helm", "template", "koord", str(CHART), "--kube-version=1.31.0", *arguments]
    if values is not None:
        command += ["--values=-"]
    return subprocess.run(command, input=yaml.safe_dump(values or {}), capture_output=True, text=True, check=False)


def rendered(*arguments: str, values: Obj | None = None) -> dict[Key, Obj]:
    done = helm("--no-hooks", *arguments, values=values)
    assert done.returncode == 0, done.stderr
    return keyed([d for d in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if d])


def keyed(objects: list[Obj]) -> dict[Key, Obj]:
    found = {(d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]): d for d in objects}
    assert len(found) == len(objects), "an object is there twice"
    return found


def unmarked(objects: dict[Key, Obj]) -> dict[Key, Obj]:
    """Without the annotation that only helm reads, which just what koord uninstall leaves must have."""
    for (kind, _, _), document in objects.items():
        annotations = document["metadata"].get("annotations", {})
        assert (annotations.pop(KEEP, None) == "keep") is (kind in ("Namespace", "PriorityClass", "CustomResourceDefinition")), document
        if not annotations:
            document["metadata"].pop("annotations", None)
    return objects


def workload(objects: dict[Key, Obj], name: str, namespace: str = "koordinator-system") -> tuple[Obj, Obj]:
    """(pod spec, container)"""
    kind = "DaemonSet" if name == "koordlet" else "Deployment"
    pod = objects[kind, namespace, name]["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


@pytest.mark.helm
@pytest.mark.parametrize("variants", [(), *((name,) for name in manifests.OVERLAYS), ("ha", "observe", "koordlet-observe", "monitoring")])
def test_defaults_are_what_kustomize_makes(variants: tuple[str, ...]) -> None:
    assert unmarked(rendered(values={"variants": list(variants)})) == keyed(manifests.rendered(overlays=variants))


@pytest.mark.helm
def test_the_namespace_goes_wherever_it_stands() -> None:
    found = unmarked(rendered("--set=installation.namespace=colocation", values={"variants": ["monitoring"]}))
    assert found == keyed(manifests.rendered(namespace="colocation", overlays=("monitoring",)))


@pytest.mark.helm
@pytest.mark.parametrize("role", manifests.PARTS)
def test_a_role_can_be_left_out_with_its_rights(role: str) -> None:
    found = unmarked(rendered(f"--set={role}.enabled=false,crds.managed=false", values={"variants": ["monitoring"]}))
    assert found == keyed(manifests.rendered(crds=False, without=frozenset({role}), overlays=("monitoring",)))


@pytest.mark.helm
def test_chart_is_clean() -> None:
    done = subprocess.run(["helm", "lint", "--strict", "--kube-version=1.31.0", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.helm
def test_a_package_is_whole(tmp_path: Path) -> None:
    subprocess.run(["helm", "package", str(CHART), "--destination", str(tmp_path)], capture_output=True, text=True, check=True)
    [package] = tmp_path.iterdir()
    assert package.name == f"koord-{VERSION}.tgz"
    command = ["helm", "template", "koord", str(package), "--no-hooks", "--kube-version=1.31.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(keyed([d for d in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if d])) == set(keyed(manifests.rendered()))


VALUES: Obj = {
    "imageRepositoryHost": "registry.example.com",
    "image": {"repository": "team/koord", "tag": "v9", "pullPolicy": "IfNotPresent"},
    "imagePullSecrets": [{"name": "pull"}],
    "featureGates": "AbnormalNodes=true",
    "serviceAccount": {"annotations": {"a": "b"}},
    "installation": {"roleListGroups": ["apps", "kruise.io"]},
    "sloControllerConfig": {"colocation-config": {"enable": True}, "extend-config": "{}"},
    "webhookConfiguration": {"failurePolicy": {"pods": "Fail", "elasticquotas": "Ignore"}, "timeoutSeconds": 20},
    "manager": {
        "replicas": 3,
        "webhook": {"port": 9443},
        "metrics": {"port": 8081},
        "healthProbe": {"port": 8001},
        "log": {"level": "4"},
        "resyncPeriod": "10m",
        "hostNetwork": True,
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"pool": "system"},
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": []}]}},
    },
    "scheduler": {
        "port": 10300,
        "featureGates": "MultiQuotaTree=true",
        "enableJobPreemption": False,
        "resources": {"requests": {"cpu": "2"}},
        "image": {"tag": "v10"},
        "monitorEnabled": True,
    },
    "descheduler": {"port": 10400, "extraArgs": ["--dry-run"], "replicas": 0},
    "koordlet": {
        "features": "CPUEvict=true,PSICollector=true",
        "metrics": {"port": 9400},
        "enableServiceMonitor": True,
        "runtimeClassName": "host",
        "hostDirs": {"koordletTSDBDir": "/data/series/", "koordletSockDir": "/run/k", "kubeletLibDir": "/data/kubelet"},
    },
}


@pytest.mark.helm
def test_values_reach_what_they_name() -> None:
    found = rendered(values=VALUES)
    pod, manager = workload(found, "koord-manager")
    assert manager["image"] == "registry.example.com/team/koord:v9"
    assert manager["imagePullPolicy"] == "IfNotPresent"
    assert found["Deployment", "koordinator-system", "koord-manager"]["spec"]["replicas"] == 3
    ports = ("--metrics-addr=[::]:8081", "--health-probe-addr=[::]:8001")
    for flag in ("--feature-gates=AbnormalNodes=true", *ports, "--v=4", "--sync-period=10m"):
        assert manager["args"].count(flag) == 1
    assert "--metrics-addr=[::]:8080" not in manager["args"]
    environment = {entry["name"]: entry.get("value") for entry in manager["env"]}
    assert environment["WEBHOOK_PORT"] == "9443"
    assert environment["WEBHOOK_FAILURE_POLICY"] == "elasticquotas=Ignore,pods=Fail"
    assert environment["WEBHOOK_TIMEOUT_SECONDS"] == "20"
    assert {port["name"]: port["containerPort"] for port in manager["ports"]} == {"webhook": 9443, "metrics": 8081, "health": 8001}
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"pool": "system"}, [{"operator": "Exists"}])
    assert set(pod["affinity"]) == {"nodeAffinity", "podAntiAffinity"}
    assert pod["imagePullSecrets"] == [{"name": "pull"}]

    _, scheduler = workload(found, "koord-scheduler")
    assert scheduler["image"] == "registry.example.com/team/koord:v10"
    assert scheduler["resources"] == {"requests": {"cpu": "2"}}
    assert {"--secure-port=10300", "--feature-gates=MultiQuotaTree=true"} <= set(scheduler["args"])
    config = yaml.safe_load(found["ConfigMap", "koordinator-system", "koord-scheduler-config"]["data"]["koord-scheduler-config"])
    [gangs] = [p["args"] for p in config["profiles"][0]["pluginConfig"] if p["name"] == "Coscheduling"]
    assert gangs["enablePreemption"] is False

    _, descheduler = workload(found, "koord-descheduler")
    assert "--dry-run" in descheduler["args"]
    assert found["Deployment", "koordinator-system", "koord-descheduler"]["spec"]["replicas"] == 0
    assert "--secure-port=10400" in descheduler["args"]
    [scale] = [rule for rule in found["ClusterRole", "", "koord-descheduler"]["rules"] if "*/scale" in rule["resources"]]
    assert scale["apiGroups"] == ["apps", "kruise.io"]

    pod, agent = workload(found, "koordlet")
    assert pod["runtimeClassName"] == "host"
    for flag in (
        "--feature-gates=CPUEvict=true,PSICollector=true", "--addr=[$(POD_IP)]:9400", "--tsdb-path=/host/data/series",
        "--var-lib-kubelet-dir=/host/data/kubelet",
        "--runtime-hooks-addr=/host/run/k/koordlet.sock", "--runtime-hooks-host-endpoint=/run/k/koordlet.sock",
    ):  # fmt: skip
        assert agent["args"].count(flag) == 1
    monitors = {name for kind, _, name in found if kind == "ServiceMonitor"}
    assert monitors == {"koordlet", "koord-scheduler"}
    data = found["ConfigMap", "koordinator-system", "slo-controller-config"]["data"]
    assert json.loads(data["colocation-config"]) == {"enable": True}
    assert set(data) == {"colocation-config", "extend-config"}, "the others are left to whoever edits them"
    assert found["ServiceAccount", "koordinator-system", "koordlet"]["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.helm
@pytest.mark.parametrize("role", ["manager", "scheduler", "descheduler", "koordlet"])
def test_every_role_can_be_placed(role: str) -> None:
    name = role if role == "koordlet" else f"koord-{role}"
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}, "nodeAffinity": {"preferredDuringScheduling": []}}
    only: Obj = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": []}]}}
    told: Obj = {
        "priorityClassName": "ours",
        "tolerations": [{"key": "pool", "operator": "Exists"}],
        "nodeSelector": {"pool": "system"},
        "resources": {"requests": {"cpu": "2"}},
    }
    plain, _ = workload(rendered(), name)
    pod, container = workload(rendered(values={role: {**told, "affinity": near}}), name)
    assert {key: pod[key] for key in told if key != "resources"} == {key: told[key] for key in told if key != "resources"}
    assert container["resources"] == told["resources"]
    assert pod["affinity"] == near, "the whole of it"
    assert set(pod) == set(plain) | {"affinity", "nodeSelector", "tolerations"}, "nothing else comes or goes"
    both, _ = workload(rendered(values={role: {"affinity": near, "nodeAffinity": only}}), name)
    assert both["affinity"] == {**near, "nodeAffinity": only}


HOST_DIRS = {
    "kubeletLibDir": "/data/kubelet/",
    "koordProxyRegisterDir": "/data/hooks",
    "koordletSockDir": "/run/k",
    "predictionCheckpointDir": "/data/prediction",
    "koordletTSDBDir": "/data/series/",
    "podResourcesProxyPath": "/data/pod-resources",
}
USUAL = {  # those of Koordinator's chart: most are mounted anyhow
    "kubeletLibDir": "/var/lib/kubelet/",
    "koordProxyRegisterDir": "/etc/runtime/hookserver.d/",
    "koordletSockDir": "/var/run/koordlet",
    "predictionCheckpointDir": "/var/run/koordlet/prediction-checkpoints",
    "koordletTSDBDir": "/metric-data/",
    "podResourcesProxyPath": "/var/run/koordlet/pod-resources/",
}


@pytest.mark.helm
@pytest.mark.parametrize("directories", [HOST_DIRS, USUAL], ids=["others", "usual"])
def test_directories_of_the_node_are_mounted_where_the_flags_look(directories: Obj) -> None:
    variants = ["koordlet-claims"]
    pod, agent = workload(rendered(values={"variants": variants, "koordlet": {"hostDirs": directories}}), "koordlet")
    mounted = {mount["mountPath"]: mount for mount in agent["volumeMounts"]}
    sources = {volume["name"]: (volume.get("hostPath") or {}).get("path") for volume in pod["volumes"]}
    assert (len(mounted), len(sources)) == (len(agent["volumeMounts"]), len(pod["volumes"])), "the API server refuses a pod otherwise"
    assert {mount["name"] for mount in mounted.values()} == set(sources)
    for path, mount in mounted.items():
        if sources[mount["name"]] is not None:
            assert path == f"/host{sources[mount['name']]}", "one path in the container and, below /host, on the node"
    for key, directory in directories.items():
        path = f"/host{directory.rstrip('/')}"
        assert any(argument.partition("=")[2] in (path, f"{path}/koordlet.sock") for argument in agent["args"]), key
        above = max((one for one in mounted if f"{path}/".startswith(f"{one}/")), key=len, default=None)
        assert above is not None, f"{key}: {path} is no directory of the node"
        assert mounted[above].get("readOnly", False) is (key == "kubeletLibDir"), key
    assert f"/host{directories['kubeletLibDir'].rstrip('/')}/plugins_registry" in mounted


@pytest.mark.helm
def test_a_koordlet_that_only_observes_gets_the_kubelets_directory_and_none_to_write_to() -> None:
    values = {"variants": ["koordlet-observe"], "koordlet": {"hostDirs": HOST_DIRS}}
    pod, agent = workload(rendered(values=values), "koordlet")
    assert "--var-lib-kubelet-dir=/host/data/kubelet" in agent["args"]
    assert {"name": "kubelet-pki", "mountPath": "/host/data/kubelet/pki", "readOnly": True} in agent["volumeMounts"]
    assert {"name": "kubelet-pki", "hostPath": {"path": "/data/kubelet/pki"}} in pod["volumes"]
    assert all(mount.get("readOnly") for mount in agent["volumeMounts"] if mount["mountPath"].startswith("/host"))
    assert "--tsdb-path=/state/series" in agent["args"]


@pytest.mark.helm
@pytest.mark.parametrize(
    ("role", "values"),
    [
        ("scheduler", {"scheduler": {"enableJobPreemption": False}}),
        ("scheduler", {"scheduler": {"config": {"kind": "KubeSchedulerConfiguration"}}}),
        ("descheduler", {"descheduler": {"config": "kind: DeschedulerConfiguration"}}),
    ],
)
def test_another_configuration_brings_other_pods_since_a_role_reads_it_once(role: str, values: Obj) -> None:
    def templates(values: Obj) -> dict[str, Obj]:
        found = rendered("--set=crds.managed=false", values=values)
        return {name: document["spec"]["template"] for (kind, _, name), document in found.items() if kind == "Deployment"}

    plain, changed = templates({}), templates(values)
    assert {name for name in plain if plain[name] != changed[name]} == {f"koord-{role}"}
    assert templates(values) == changed, "an upgrade without another value restarts nobody"


@pytest.mark.helm
def test_a_scheduler_in_the_nodes_network_opens_no_port_there_that_the_descheduler_needs_and_everybody_may_read() -> None:
    _, scheduler = workload(rendered(values={"scheduler": {"hostNetwork": True}}), "koord-scheduler")
    assert [flag for flag in scheduler["args"] if flag.startswith("--port=")] == ["--port=0"]
    _, scheduler = workload(rendered(values={"scheduler": {"hostNetwork": True, "extraArgs": ["--port=12251"]}}), "koord-scheduler")
    assert [flag for flag in scheduler["args"] if flag.startswith("--port=")][-1] == "--port=12251", "who says otherwise has it so"


@pytest.mark.helm
@pytest.mark.parametrize(
    ("version", "values", "gates"),
    [
        ("1.30", {}, []),
        ("1.30", {"scheduler": {"featureGates": "MultiQuotaTree=true"}}, ["MultiQuotaTree=true"]),
        ("1.30", {"scheduler": {"compatible122FeatureGates": "MultiQuotaTree=true"}}, []),
        ("1.22.5", {"scheduler": {"featureGates": "A=true", "compatible122FeatureGates": "MultiQuotaTree=true"}}, ["MultiQuotaTree=true"]),
        ("1.30", {"scheduler": {"featureGates": "A=true"}, "descheduler": {"extraArgs": ["--scheduler-feature-gates=B=true"]}}, ["B=true"]),
    ],
)
def test_the_descheduler_asks_a_scheduler_with_the_schedulers_gates(version: str, values: Obj, gates: list[str]) -> None:
    _, descheduler = workload(rendered(f"--kube-version={version}", "--set=crds.managed=false", values=values), "koord-descheduler")
    flag = "--scheduler-feature-gates="
    assert [given.removeprefix(flag) for given in descheduler["args"] if given.startswith(flag)] == gates


@pytest.mark.helm
def test_whole_configurations_definitions_and_old_clusters() -> None:
    text = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n"
    values = {
        "descheduler": {"config": text},
        "scheduler": {"compatible122FeatureGates": "CompatibleCSIStorageCapacity=true", "featureGates": "MultiQuotaTree=true"},
        "crds": {"noderesourcetopologies": False},
        "installation": {"createNamespace": False},
    }
    found = rendered("--kube-version=1.22.5", values=values)
    assert found["ConfigMap", "koordinator-system", "koord-descheduler-config"]["data"] == {"koord-descheduler-config": text}
    assert "--feature-gates=CompatibleCSIStorageCapacity=true" in workload(found, "koord-scheduler")[1]["args"]
    kinds = [kind for kind, _, _ in found]
    assert "ValidatingAdmissionPolicy" not in kinds, "served from 1.30 on"
    assert "Namespace" not in kinds
    assert kinds.count("CustomResourceDefinition") == 12
    assert not [kind for kind, _, _ in rendered(values={"crds": {"managed": False}}) if kind == "CustomResourceDefinition"]


@pytest.mark.helm
def test_the_job_before_uninstall_has_what_it_needs_and_no_more() -> None:
    done = helm("--show-only=templates/uninstall.yaml", values={"installation": {"namespace": "x"}})
    found = {d["kind"]: d for d in yaml.safe_load_all(done.stdout) if d}
    assert {d["metadata"]["annotations"]["helm.sh/hook"] for d in found.values()} == {"pre-delete"}
    assert found["ClusterRole"]["rules"] == RULES
    spec = found["Job"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["args"] == ["uninstall", "--webhooks-only", "--yes"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert found["Job"]["metadata"]["namespace"] == "x"
    assert "pre-delete" not in helm(values={"uninstall": {"enabled": False}}).stdout


@pytest.mark.helm
@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"koordlt": {}}, "koordlt"),
        ({"manager": {"replica": 1}}, "replica"),
        ({"webhookConfiguration": {"failurePolicy": {"pods": "ignore"}}}, "pods"),
        ({"webhookConfiguration": {"timeoutSeconds": 31}}, "timeoutSeconds"),
        ({"featureGates": "PodMutatingWebhook"}, "featureGates"),
        ({"variants": ["huge"]}, "variants"),
        ({"variants": ["ha", "single"]}, "exclude each other"),
        ({"koordlet": {"hostDirs": {"kubeletLibDir": "var"}}}, "kubeletLibDir"),
    ],
)
def test_mistakes_are_named(values: Obj, told: str) -> None:
    done = helm(values=values)
    assert done.returncode != 0
    assert told in done.stderr


def test_every_value_has_its_schema_and_every_schema_its_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    compare(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "values")


TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", type(None): "null"}


def compare(value: Any, schema: Obj, where: str) -> None:
    assert where == "values" or schema.get("description"), f"{where} is not described"
    accepted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert TYPES[type(value)] in accepted, f"{where}: {value!r} is not of {accepted}"
    if "enum" in schema:
        assert value in schema["enum"], where
    if schema["type"] == "object" and "properties" in schema:
        assert schema["additionalProperties"] is False, f"{where} would take a misspelt key"
        assert not value or set(value) == set(schema["properties"]), where
        for key in value:
            compare(value[key], schema["properties"][key], f"{where}.{key}")


def test_versions_and_definitions_follow_the_product() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
    oldest = chart["kubeVersion"].removeprefix(">=").removesuffix(".0-0")
    assert f"| {oldest} to " in (ROOT / "docs/install.md").read_text(encoding="utf-8"), "the page tells which versions will do"
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    plurals = {d["spec"]["names"]["plural"] for d in manifests.documents("crds")}
    assert set(values["crds"]) == plurals | {"managed"}
    for link, target in (("definitions", "crds"), ("install", "install"), ("components", "components")):
        assert (CHART / link).is_symlink(), "a copy would have to be kept by hand"
        assert (CHART / link).resolve() == ROOT / "configs" / target
