"""koord as its users have it: its image and its manifests on a whole cluster of one node, from `koord install` to `koord uninstall`.

`make rig` runs this; the tests are one story, in this order.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging import image as images
from tests.roles.runtime_proxy.support_containerd import IMAGE
from tests.support import patience
from tests.support import rig as rigs
from tests.support.machine_init import STAT, WRITTEN
from tests.support.real_kubelet import NODE
from tests.support.rig import Obj, Rig

pytestmark = [pytest.mark.root, pytest.mark.cri, pytest.mark.slow, pytest.mark.timeout(1800)]
NAMESPACE = "koordinator-system"
DEPLOYMENTS = ("koord-manager", "koord-scheduler", "koord-descheduler")
KOORD = "/opt/koord/koord"
GROUPS = "/sys/fs/cgroup"
BE_QUOTA = f"{GROUPS}/cpu/kubepods/besteffort/cpu.cfs_quota_us"


# -- what is not as shipped --------------------------------------------------------------------------------------------------


def with_own_cpu_time(document: Obj) -> None:
    """koordlet's /proc/stat is the node's, as with lxcfs: what this machine does beside the rig is not the node's use."""
    if document["kind"] == "DaemonSet":
        spec = document["spec"]["template"]["spec"]
        spec["volumes"].append({"name": "stat", "hostPath": {"path": str(STAT)}})
        spec["containers"][0]["volumeMounts"].append({"name": "stat", "mountPath": "/proc/stat", "readOnly": True})


def without_what_root_lacks(document: Obj) -> None:
    """A capability that this machine's root does not have cannot be given to koordlet (docs/host.md says what it is without it)."""
    if document["kind"] == "DaemonSet":
        added = document["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"]["add"]
        has = int(re.search(r"CapBnd:\s+(\w+)", Path("/proc/self/status").read_text())[1], 16)  # type: ignore[index]
        numbers = {"NET_ADMIN": 12, "SYS_PTRACE": 19, "SYS_RESOURCE": 24, "PERFMON": 38}
        added[:] = [name for name in added if has >> numbers[name] & 1]


CHANGES: tuple[Callable[[Obj], None], ...] = (with_own_cpu_time, without_what_root_lacks)


# -- the story ---------------------------------------------------------------------------------------------------------------


def container(command: str, **resources: Any) -> Obj:
    return {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", command], "resources": resources}


def pod(name: str, command: str, namespace: str = "default", **resources: Any) -> Obj:
    """A pod of busybox that ends when it is asked to."""
    spec = {"containers": [container(f"trap 'exit 0' TERM; {command} & wait", **resources)], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


@dataclass
class Cluster:
    """The cluster with what was there before koord."""

    rig: Rig
    before: dict[str, str]

    def koord(self, *arguments: str, limit: float = 60) -> subprocess.CompletedProcess[str]:
        """The executable on the node, with the administrator's kubeconfig."""
        return self.rig.machine.run("env", f"KUBECONFIG={rigs.ADMIN}", KOORD, *arguments, limit=limit)

    def runs(self, name: str, namespace: str = "default", seconds: float = 60) -> Obj:
        """Wait for a pod to run, and return it."""

        def running() -> Obj | None:
            found = self.rig.get("pod", name, "-n", namespace)
            return found if rigs.condition(found, "Ready") == "True" else None

        found: Obj = self.rig.until(running, f"{name} runs", seconds, told=self.rig.pods)
        return found

    def group(self, found: Obj) -> str:
        """The group of a pod's container below a hierarchy."""
        status = found["status"]
        tier = {"Guaranteed": "", "Burstable": "burstable/", "BestEffort": "besteffort/"}[status["qosClass"]]
        return f"kubepods/{tier}pod{found['metadata']['uid']}/{status['containerStatuses'][0]['containerID'].rpartition('/')[2]}"

    def value(self, controller: str, group: str, name: str) -> str:
        return self.rig.machine.path(f"{GROUPS}/{controller}/{group}/{name}").read_text().strip()

    def strategies(self, **configs: Obj) -> None:
        """Set parts of slo-controller-config."""
        data = {name.replace("_", "-"): json.dumps(config) for name, config in configs.items()}
        self.rig.kubectl("patch", "configmap", "slo-controller-config", "-n", NAMESPACE, "--type=merge", "-p", json.dumps({"data": data}))

    def quota(self) -> int:
        """What koordlet leaves to the best-effort tier, µs of a tenth of a second; -1: everything."""
        return int(self.rig.machine.path(BE_QUOTA).read_text())


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    rigs.programs()
    images.require()
    built: images.Built = request.getfixturevalue("built")
    with rigs.rig() as rig:
        built.builder.give(rig.ctr("images", "import", "-"))
        subprocess.run(["cp", "-a", str(built.tree / "opt/koord"), str(rig.machine.path("/opt/"))], check=True)
        yield installed(rig)


def installed(rig: Rig) -> Cluster:
    """Some pods, then koord as `koord install --print` has it, but for CHANGES."""
    rig.apply(
        pod("bystander", "sleep 86400"), pod("service", "sleep 86400", requests={"cpu": "100m"}, limits={"cpu": "1", "memory": "64Mi"})
    )
    cluster = Cluster(rig, {})
    for name in ("bystander", "service"):
        cluster.runs(name, seconds=90)
    cluster.before = state(rig)
    printed = cluster.koord("install", "--print", f"--image={images.NAME}")
    assert printed.returncode == 0, printed.stderr
    documents = list(yaml.safe_load_all(printed.stdout))
    for document in documents:
        for change in CHANGES:
            change(document)
    print("not as shipped:", *(f"{change.__name__}: {change.__doc__}" for change in CHANGES), sep="\n")
    rig.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(documents), limit=180)
    return cluster


@pytest.mark.feature("BEY-SEC-01")
def test_all_roles_are_ready_from_the_image(cluster: Cluster) -> None:
    rig = cluster.rig

    def ready() -> bool:
        found = [*(rig.get("deployment", name, "-n", NAMESPACE) for name in DEPLOYMENTS), rig.get("daemonset", "koordlet", "-n", NAMESPACE)]
        wanted = [(one["spec"].get("replicas"), one["status"].get("readyReplicas", 0)) for one in found[:-1]]
        return all(a == b for a, b in wanted) and found[-1]["status"].get("numberReady") == 1

    rig.until(ready, "all replicas are ready", 180, told=lambda: told(cluster))
    for one in rig.items("pods", "-n", NAMESPACE):
        for status in one["status"]["containerStatuses"]:
            assert status["restartCount"] == 0, told(cluster)
            assert status["image"] == images.NAME


def told(cluster: Cluster) -> str:
    """What there is and what koord's roles said last."""
    logs = [cluster.rig.kubectl("logs", "-n", NAMESPACE, "--all-containers", "--tail=15", one["metadata"]["name"], check=False)
            for one in cluster.rig.items("pods", "-n", NAMESPACE)]  # fmt: skip
    return "\n".join([cluster.rig.pods(), *logs])


@pytest.mark.feature("MGR-POD-M-01")
@pytest.mark.feature("MGR-POD-V-01")
def test_webhooks_admit(cluster: Cluster) -> None:
    rig = cluster.rig
    profile = {
        "namespaceSelector": {"matchLabels": {"colocation": "batch"}}, "qosClass": "BE", "priorityClassName": "koord-batch",
        "schedulerName": "koord-scheduler",
    }  # fmt: skip
    rig.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "jobs", "labels": {"colocation": "batch"}}},
        {"apiVersion": "config.koordinator.sh/v1alpha1", "kind": "ClusterColocationProfile", "metadata": {"name": "jobs"}, "spec": profile},
    )
    batch = pod("trial", "sleep 1", "jobs", requests={"cpu": "50m", "memory": "32Mi"}, limits={"cpu": "50m", "memory": "32Mi"})

    def admitted() -> Obj:
        text = rig.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(batch), check=False)
        found: Obj = json.loads(text or "{}")
        return found if found and found["spec"].get("schedulerName") == "koord-scheduler" else {}

    found = rig.until(admitted, "the profile is applied", 60, told=lambda: told(cluster))
    assert found["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE"
    amounts = {"kubernetes.io/batch-cpu": "50", "kubernetes.io/batch-memory": "32Mi"}
    assert found["spec"]["containers"][0]["resources"] == {"requests": amounts, "limits": amounts}
    wrong = pod("wrong", "sleep 1")
    wrong["metadata"]["labels"] = {"koordinator.sh/qosClass": "LSR"}
    refused = rig.machine.run("kubectl", f"--kubeconfig={rigs.ADMIN}", "create", "-f", "-", input=json.dumps(wrong))
    assert refused.returncode != 0
    assert "koordinator" in refused.stderr
    assert "LSR" in refused.stderr


@pytest.mark.feature("MGR-NR-BATCH-01")
@pytest.mark.feature("KA-HK-03")
def test_a_batch_pod_is_bound_and_runs_with_what_it_was_offered(cluster: Cluster) -> None:
    rig = cluster.rig
    cluster.strategies(
        colocation_config={"enable": True, "metricReportIntervalSeconds": 30, "cpuReclaimThresholdPercent": 95},
        resource_threshold_config={"clusterStrategy": {"enable": True, "cpuSuppressPolicy": "cpuset"}},
        cpu_burst_config={"clusterStrategy": {"policy": "cpuBurstOnly"}},
    )
    offered = partial(rig.get, "node", NODE)
    rig.until(lambda: int(offered()["status"]["allocatable"].get("kubernetes.io/batch-cpu", "0")) >= 200, "batch-cpu is offered", 150,
              told=lambda: cluster.koord("why", "node", NODE).stdout + told(cluster))  # fmt: skip
    rig.apply(pod("job", "sleep 86400", "jobs", requests={"cpu": "200m", "memory": "64Mi"}, limits={"cpu": "200m", "memory": "64Mi"}))
    job = cluster.runs("job", "jobs", 90)
    bound = [one for one in rig.items("events", "-n", "jobs", "--field-selector=reason=Scheduled") if "jobs/job" in one["message"]]
    assert [one.get("reportingComponent") or one["source"]["component"] for one in bound] == ["koord-scheduler"]
    group = cluster.group(job)
    wanted = {"cpu.shares": "204", "cpu.cfs_quota_us": "20000"}
    for name, value in wanted.items():
        rig.until(lambda name=name, value=value: cluster.value("cpu", group, name) == value, f"{name} is {value}", 60)
    assert cluster.value("memory", group, "memory.limit_in_bytes") == str(64 << 20)
    service = cluster.runs("service")
    rig.until(lambda: cluster.value("cpu", cluster.group(service), "cpu.cfs_burst_us") != "0", "the service may burst", 60)


@pytest.mark.feature("KA-SUP-02")
def test_load_of_services_takes_cpu_from_best_effort_pods(cluster: Cluster) -> None:
    rig = cluster.rig
    cluster.strategies(resource_threshold_config={"clusterStrategy": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}})
    rig.until(lambda: cluster.quota() > 0, "the tier has a quota", 60)
    rig.apply(pod("load", "while :; do :; done", requests={"cpu": "500m", "memory": "16Mi"}))
    loaded = cluster.group(cluster.runs("load", seconds=90))

    def squeezed() -> bool:
        """The quota is at most what the load leaves of 65 % of two CPUs."""
        before, began = int(cluster.value("cpuacct", loaded, "cpuacct.usage")), time.monotonic()
        time.sleep(2)
        used = (int(cluster.value("cpuacct", loaded, "cpuacct.usage")) - before) / 1e9 / (time.monotonic() - began)
        cpus = len(os.sched_getaffinity(0))
        return used > 0.2 and cluster.quota() <= max(0.65 * cpus - 0.8 * used, 0.02) * 100_000

    rig.until(squeezed, "load suppresses the tier", 60, told=lambda: cluster.koord("why", "node", NODE).stdout)
    said = cluster.koord("why", "node", NODE)
    assert "Suppressed by BECPUSuppress" in said.stdout, said.stdout + said.stderr


@pytest.mark.feature("KA-SUP-02")
def test_a_best_effort_pod_starts_at_the_least_quota(cluster: Cluster) -> None:
    """From its sandbox to its container in seconds, where 2 ms of CPU in a tenth of a second would take it minutes."""
    rig = cluster.rig
    least = {"enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": 1}
    cluster.strategies(resource_threshold_config={"clusterStrategy": least})
    rig.until(lambda: cluster.quota() == 2000, "the tier is at its least quota", 60, told=lambda: cluster.koord("why", "node", NODE).stdout)
    rig.apply(pod("plain", "sleep 86400"))
    found = cluster.runs("plain", seconds=60)
    sandbox = next(one["lastTransitionTime"] for one in found["status"]["conditions"] if one["type"] == "PodReadyToStartContainers")
    container = found["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    created = found["metadata"]["creationTimestamp"]
    took = seconds(container) - seconds(sandbox)
    print(f"at the least quota: {seconds(container) - seconds(created):g} s from creation to container, {took:g} s from the sandbox on")
    assert took <= patience.seconds(5)
    events = rig.items("events", "--field-selector=reason=BECPUExhausted")
    assert [one["involvedObject"]["name"] for one in events[:1]] == [NODE]


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.feature("BEY-WHY-01")
@pytest.mark.feature("BEY-TOP-01")
@pytest.mark.feature("BEY-DOC-01")
def test_why_top_and_doctor_answer_with_the_kubeconfig(cluster: Cluster) -> None:
    said = cluster.koord("why", "pod", "job", "-n", "jobs", "-o", "json")
    assert said.returncode == 0, said.stderr
    roles = {one["role"] for one in json.loads(said.stdout)["records"]}
    assert roles >= {"koordlet", "scheduler", "manager"}, said.stdout
    table = cluster.koord("top", "-o", "json")
    assert table.returncode == 0, table.stderr
    row = next(one for one in json.loads(table.stdout)["nodes"] if one["name"] == NODE)
    assert "stale" not in row["marks"]
    looked = cluster.koord("doctor", "-o", "json", limit=120)
    wrong = [one for one in json.loads(looked.stdout)["findings"] if one["level"] == "fail"]
    assert (looked.returncode, wrong) == (0, [])


@pytest.mark.feature("BEY-DOC-01")
@pytest.mark.feature("BEY-JRN-01")
def test_uninstall_leaves_the_node_as_it_was(cluster: Cluster) -> None:
    rig = cluster.rig
    batch = [cluster.runs(name, namespace) for name, namespace in (("job", "jobs"), ("plain", "default"))]
    during = state(rig)
    done = cluster.koord("uninstall", "--yes", limit=300)
    assert done.returncode == 0, done.stdout + done.stderr + told(cluster)
    rig.until(lambda: not rig.items("pods", "-n", NAMESPACE), "koord's pods are gone", 90, told=rig.pods)
    # what a kubelet gives pods without requests
    for one in batch:
        group = cluster.group(one)
        for path in (group, os.path.dirname(group)):
            found = {name: cluster.value(controller, path, name) for controller, name in GIVEN_BY_KOORD}
            assert found == {"cpu.shares": "2", "cpu.cfs_quota_us": "-1", "memory.limit_in_bytes": str(UNLIMITED)}, path
    rig.kubectl("delete", "pod", "load", "plain", "-n", "default", limit=120)
    rig.kubectl("delete", "namespace", "jobs", limit=120)
    assert any(name.startswith(GROUPS) and during.get(name) != value for name, value in cluster.before.items()), "koordlet changed nothing"
    different: dict[str, tuple[str | None, str | None]] = {}

    def as_before() -> bool:
        after = state(rig)
        names = sorted(cluster.before.keys() | after.keys())
        different.clear()
        different.update(
            {name: (cluster.before.get(name), after.get(name)) for name in names if cluster.before.get(name) != after.get(name)}
        )
        return different.keys() <= KEPT

    rig.until(as_before, "the node is as it was", 60, told=lambda: str({k: v for k, v in different.items() if k not in KEPT}))


#: docs/install.md says why: directories that were mounts of the DaemonSet, and the audit log.
KEPT = {
    "/etc/runtime", "/etc/runtime/hookserver.d", "/run/koordlet", "/run/crio", "/var/lib/koordlet", "/var/log/koordlet",
}  # fmt: skip
GIVEN_BY_KOORD = (("cpu", "cpu.shares"), ("cpu", "cpu.cfs_quota_us"), ("memory", "memory.limit_in_bytes"))
UNLIMITED = 9223372036854771712
#: The runtime's, the kubelet's and the control plane's own.
_NOT_KOORDS = re.compile(
    "/opt|/mnt|/root/.kube|/etc/kubernetes|/var/lib/(containerd|kubelet|etcd|cni)|/run/(containerd|netns|kernel-)|/var/log/(pods|containers|kube|etcd)"
)
_COUNTERS = re.compile("procs|tasks|usage|failcnt|event|stat|empty|pressure|reset|time|serviced|oom_control|notify|release|peak|bytes_")


def state(rig: Rig) -> dict[str, str]:
    """Files of the node by path, the values of the groups of pods that stay, and what the Node says."""
    listed = rig.machine.run("find", f"/{WRITTEN}", "/run", "-xdev", "-printf", "%p\t%y\n").stdout
    found = dict(line.removeprefix(f"/{WRITTEN}").rsplit("\t", 1) for line in listed.splitlines())
    found = {path: kind for path, kind in found.items() if not _NOT_KOORDS.match(path)}
    staying = [one["metadata"]["uid"] for one in rig.items("pods") if one["metadata"]["name"] in ("bystander", "service")]
    for controller in sorted(rig.machine.path(GROUPS).iterdir()):
        tiers = [controller / "kubepods", controller / "kubepods/burstable", controller / "kubepods/besteffort"]
        pods = [top for uid in staying for top in controller.glob(f"kubepods/*/pod{uid}")]
        for directory in [*tiers, *pods, *(child for top in pods for child in top.iterdir() if child.is_dir())]:
            for file in sorted(directory.glob("*.*")) if directory.is_dir() else ():
                if not file.is_dir() and file.stat().st_mode & 0o222 and not _COUNTERS.search(file.name):
                    with contextlib.suppress(OSError):
                        found[f"{GROUPS}/{file.relative_to(rig.machine.path(GROUPS))}"] = file.read_text().strip()
    node = rig.get("node", NODE)
    for part in ("labels", "annotations"):
        found |= {f"{part} {key}": value for key, value in node["metadata"][part].items()}
    found |= {f"{part} {key}": value for part in ("capacity", "allocatable") for key, value in node["status"][part].items()}
    found["taints"] = json.dumps(node["spec"].get("taints"))
    for kinds in ("validatingwebhookconfigurations,mutatingwebhookconfigurations", "clusterroles,clusterrolebindings", "leases -A"):
        names = rig.kubectl("get", *kinds.split(), "-o", "name").split()
        found |= {name: "" for name in names if "koord" in name}
    return found
