"""A real kubelet under the real roles: claims that koord allocates are prepared and reach containers, resizes are counted and left alone.

KOORD_REAL_APISERVER and KOORD_REAL_KUBELET name the binaries, KOORD_REAL_CONTROLLER_MANAGER kube-controller-manager, which makes the claims
of templates and frees claims that nobody uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.benchmarks.install_crds import main as install_crds
from tests.e2e.test_tokens import CORE, Caller, Row, made, until
from tests.support import patience, real_apiserver, real_kubelet
from tests.support.claims import alternative, claim, device_class, of_claim, of_template, request, results, template
from tests.support.processes import KOORD, free_port
from tests.support.real_kubelet import NODE, RealKubelet

pytestmark = [pytest.mark.realapi, pytest.mark.root, pytest.mark.cri, pytest.mark.slow, pytest.mark.timeout(600)]
Obj = dict[str, Any]
PODS = f"{CORE}/namespaces/default/pods"
DRA = "/apis/resource.k8s.io/v1"
CLAIMS, TEMPLATES = f"{DRA}/namespaces/default/resourceclaims", f"{DRA}/namespaces/default/resourceclaimtemplates"
OURS = 'device.driver == "koordinator.sh"'
ATTRIBUTE = 'device.attributes["koordinator.sh"]'
CARDS = 4
QUOTA, BURST = "cpu.cfs_quota_us", "cpu.cfs_burst_us"
STRATEGIC = "application/strategic-merge-patch+json"


@dataclass
class Rig:
    """A cluster of one real node."""

    directory: Path
    server: real_apiserver.RealApiServer
    kubelet: RealKubelet
    admin: Caller
    children: dict[str, tuple[list[str], subprocess.Popen[bytes]]] = field(default_factory=dict)

    def start(self, name: str, *command: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.children[name] = [*command], subprocess.Popen([*command], stdout=log, stderr=log)

    def stop(self, name: str) -> list[str]:
        command, child = self.children.pop(name)
        child.terminate()
        try:
            child.wait(patience.seconds(20))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        return command

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def get(self, path: str) -> Obj:
        answer = self.admin(Row("GET", path))
        found: Obj = answer.json() if answer.status_code == 200 else {}
        return found

    def pod(self, name: str) -> Obj:
        return self.get(f"{PODS}/{name}")

    def phase(self, name: str) -> str:
        return str((self.pod(name).get("status") or {}).get("phase") or "")

    def said(self, name: str) -> str:
        """What the container left behind when it ended."""
        statuses = (self.pod(name).get("status") or {}).get("containerStatuses") or [{}]
        return str(((statuses[0].get("state") or {}).get("terminated") or {}).get("message") or "").strip()

    def events(self, name: str) -> list[str]:
        items = self.get(f"{CORE}/namespaces/default/events?fieldSelector=involvedObject.name={name}").get("items") or []
        return [f"{item['reason']}: {item['message']}" for item in items]

    def result(self, name: str) -> str:
        """Wait for a pod to end well; what it left behind."""
        until(lambda: self.phase(name) == "Succeeded", f"{name} ends; {self.pod(name).get('status')} {self.events(name)}", 90)
        return self.said(name)

    def runs(self, name: str) -> None:
        until(lambda: self.phase(name) == "Running", f"{name} runs; {self.events(name)}", 90)

    def delete(self, *paths: str) -> None:
        for path in paths:
            self.admin(Row("DELETE", path))
        until(lambda: not any(self.get(path) for path in paths), f"{paths} are gone", 60)


def cards(directory: Path) -> None:
    """What a device daemon tells of accelerators."""
    topology = {"nodeID": "0", "pcieID": "pci0000:3a"}
    described = [
        {"vendor": "acme", "model": "large" if minor < 2 else "small", "uuid": f"ACME-{minor}", "minor": str(minor),
         "resources": {"gpu-memory": "16Gi"}, "topology": {**topology, "busID": f"0000:3b:0{minor}.0"}, "status": {"healthy": True}}
        for minor in range(CARDS)
    ]  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "acme").write_text(json.dumps(described))


def vendor(path: Path, count: int) -> None:
    """The CDI file that the vendor's tool writes: a card is a device file (of /dev/null, here) and a variable."""
    nodes = {"type": "c", "major": 1, "minor": 3}
    devices = [
        {"name": f"ACME-{minor}", "containerEdits": {"deviceNodes": [{"path": f"/dev/acme{minor}", **nodes}], "env": [f"ACME_{minor}=yes"]}}
        for minor in range(count)
    ]
    path.write_text(yaml.safe_dump({"cdiVersion": "0.5.0", "kind": "acme.example.com/gpu", "devices": devices}))


def koordlet(rig: Rig, *more: str) -> list[str]:
    own, machine = rig.directory / "koordlet", rig.kubelet.machine
    return [
        KOORD, "koordlet", f"--kubeconfig={rig.server.kubeconfig}", f"--node-name={NODE}", f"--host-root={machine}",
        "--proc-root-dir=/proc",
        "--sys-root-dir=/sys", f"--addr=127.0.0.1:{free_port()}", f"--audit-log-dir={own}/audit", f"--tsdb-path={own}/series",
        f"--prediction-checkpoint-filepath={own}/prediction", f"--lock-file={own}.lock", "--node-topology-sync-interval=1s",
        "--resource-force-update-seconds=5",
        "--enable-nri-runtime-hook=false", f"--runtime-hooks-addr={own}.sock",
        "--feature-gates=DRAPlugin=true,Accelerators=true", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    program = real_apiserver.binary()
    if program is None or shutil.which("etcd") is None:
        pytest.skip("needs kube-apiserver (KOORD_REAL_APISERVER or PATH) and etcd on PATH")
    real_kubelet.binary()
    directory = tmp_path_factory.mktemp("kubelet")
    with real_apiserver.real_api_server(directory, program) as server, real_kubelet.real_kubelet(server) as kubelet:
        asyncio.run(install_crds(str(server.kubeconfig)))
        rig = Rig(directory, server, kubelet, Caller(server.url, server.token))
        try:
            _start(rig)
            yield rig
        finally:
            for name in list(rig.children):
                rig.stop(name)
            rig.admin.close()
            with contextlib.suppress(OSError):
                shutil.copy(kubelet.directory / "kubelet.log", directory)


def _start(rig: Rig) -> None:
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(rig.server.kubeconfig)}, "profiles": [{"schedulerName": "koord-scheduler"}],
    }  # fmt: skip
    (rig.directory / "scheduler.yaml").write_text(yaml.safe_dump(config))
    rig.start("scheduler", KOORD, "scheduler", f"--config={rig.directory}/scheduler.yaml", "--address=127.0.0.1", f"--port={free_port()}",
              "--secure-port=0")  # fmt: skip
    rig.start(
        "manager", KOORD, "manager", f"--kubeconfig={rig.server.kubeconfig}", f"--metrics-addr=127.0.0.1:{free_port()}",
        f"--health-probe-addr=127.0.0.1:{free_port()}", "--enable-leader-election=false", "--enable-pprof=false",
        "--feature-gates=DeviceResourceSlices=true,WebhookFramework=false",
    )  # fmt: skip
    cards(rig.kubelet.machine / "var/run/koordlet/xpu-device-infos")
    vendor(rig.kubelet.machine / "etc/cdi/acme.yaml", CARDS - 1)
    rig.start("koordlet", *koordlet(rig))
    if os.environ.get("KOORD_REAL_CONTROLLER_MANAGER"):
        files = [f"--{name}kubeconfig={rig.server.kubeconfig}" for name in ("", "authentication-", "authorization-")]
        names = "resourceclaim-controller,device-taint-eviction-controller,pod-garbage-collector-controller,garbage-collector-controller"
        rig.start("controllers", os.environ["KOORD_REAL_CONTROLLER_MANAGER"], *files, "--leader-elect=false",
                  f"--secure-port={free_port()}", f"--controllers={names}")  # fmt: skip
    until(lambda: bool(rig.get(f"{CORE}/nodes/{NODE}").get("status", {}).get("allocatable")), "the node", 60)
    for name, expression in (("any", OURS), ("large", f'{OURS} && {ATTRIBUTE}.uuid in ["ACME-0", "ACME-1"]')):
        made(rig.admin, f"{DRA}/deviceclasses", device_class(name, expression))
    ready(rig)


def ready(rig: Rig) -> None:
    def published() -> bool:
        return any(one["spec"]["driver"] == "koordinator.sh" for one in rig.get(f"{DRA}/resourceslices").get("items") or ())

    until(published, "the node's devices are published", 90)
    until((rig.kubelet.root / "plugins_registry/koordinator.sh-reg.sock").is_socket, "the plugin's socket", 60)


def need_controllers(rig: Rig) -> None:
    if "controllers" not in rig.children:
        pytest.skip("needs kube-controller-manager (KOORD_REAL_CONTROLLER_MANAGER)")


def once(name: str, **more: Any) -> Obj:
    """A pod that shows which cards it has, and ends."""
    pod = real_kubelet.pod(name, restartPolicy="Never", **more)
    pod["spec"]["containers"][0]["command"] = [
        "/bin/sh",
        "-c",
        "for f in /dev/acme*; do echo $f; done > /dev/termination-log; env >> /dev/termination-log",
    ]
    return pod


def got(text: str) -> list[str]:
    """The cards of a container: files and variables have to tell the same."""
    lines = text.splitlines()
    files = sorted(line.removeprefix("/dev/acme") for line in lines if line.startswith("/dev/acme") and "*" not in line)
    variables = sorted(line.removeprefix("ACME_").removesuffix("=yes") for line in lines if line.startswith("ACME_"))
    assert files == variables, text
    return files


def unprepared(rig: Rig, name: str) -> Callable[[], bool]:
    """Whether the kubelet has forgotten a claim: its plugin has said that nothing is left to do."""
    return lambda: name not in (rig.kubelet.root / "dra_manager_state").read_text()


@pytest.mark.feature("KA-DRA-01")
@pytest.mark.feature("SCH-DRA-08")
def test_a_claimed_device_is_in_the_container(rig: Rig) -> None:
    made(rig.admin, CLAIMS, claim("one", request("card", cls="large")))
    made(rig.admin, PODS, once("one", claims=of_claim("one")))
    assert got(rig.result("one")) == ["0"]
    until(unprepared(rig, "one"), "the kubelet has given the claim of the ended pod back")
    if "controllers" in rig.children:
        until(lambda: not results(rig.get(f"{CLAIMS}/one")), "the claim of the ended pod is free")
    rig.delete(f"{PODS}/one", f"{CLAIMS}/one")


@pytest.mark.feature("KA-DRA-01")
@pytest.mark.feature("SCH-DRA-03")
def test_alternatives_and_requests_go_to_their_containers(rig: Rig) -> None:
    many = alternative("many", cls="large", count=3)
    first = {"name": "some", "firstAvailable": [many, alternative("two", cls="large", count=2)]}
    third = request("other", f'{ATTRIBUTE}.uuid == "ACME-2"', cls="any")
    made(rig.admin, CLAIMS, claim("alternatives", first, third))
    pod = once("alternatives", claims=of_claim("alternatives"))
    main = pod["spec"]["containers"][0]
    side = json.loads(json.dumps(main))
    main["resources"]["claims"] = [{"name": "device", "request": "some"}]
    side["name"], side["resources"]["claims"] = "side", [{"name": "device", "request": "other"}]
    pod["spec"]["containers"].append(side)
    made(rig.admin, PODS, pod)
    rig.result("alternatives")
    said = {one["name"]: one["state"]["terminated"]["message"] for one in rig.pod("alternatives")["status"]["containerStatuses"]}
    assert {name: got(text) for name, text in said.items()} == {"main": ["0", "1"], "side": ["2"]}
    rig.delete(f"{PODS}/alternatives", f"{CLAIMS}/alternatives")


@pytest.mark.feature("KA-DRA-01")
@pytest.mark.feature("SCH-DRA-13")
def test_an_extended_resource_is_a_device(rig: Rig) -> None:
    made(rig.admin, f"{DRA}/deviceclasses", device_class("card", OURS, extendedResourceName="example.com/card"))
    resources = {"requests": {"example.com/card": "2"}, "limits": {"example.com/card": "2"}}
    made(rig.admin, PODS, once("extended", resources=resources))
    assert got(rig.result("extended")) == ["0", "1"]
    rig.delete(f"{PODS}/extended")


@pytest.mark.feature("KA-DRA-01")
def test_a_shared_claim_is_kept_while_somebody_uses_it(rig: Rig) -> None:
    made(rig.admin, CLAIMS, claim("shared", request("card", cls="large")))
    for name in ("sharing-0", "sharing-1"):
        made(rig.admin, PODS, real_kubelet.pod(name, claims=of_claim("shared")))
    for name in ("sharing-0", "sharing-1"):
        rig.runs(name)
    users = rig.get(f"{CLAIMS}/shared")["status"]["reservedFor"]
    assert sorted(one["name"] for one in users) == ["sharing-0", "sharing-1"]
    rig.delete(f"{PODS}/sharing-0")
    assert not unprepared(rig, "shared")()
    rig.delete(f"{PODS}/sharing-1")
    until(unprepared(rig, "shared"), "the kubelet has given the claim back")
    rig.delete(f"{CLAIMS}/shared")


@pytest.mark.feature("KA-DRA-01")
def test_what_lacks_is_told_and_waited_for(rig: Rig) -> None:
    made(rig.admin, CLAIMS, claim("undescribed", request("card", f'{ATTRIBUTE}.uuid == "ACME-3"', cls="any")))
    made(rig.admin, PODS, real_kubelet.pod("undescribed", claims=of_claim("undescribed")))
    until(lambda: any("has a device 'ACME-3'" in text for text in rig.events("undescribed")), "the pod is told what lacks", 60)
    vendor(rig.kubelet.machine / "etc/cdi/acme.yaml", CARDS)
    rig.runs("undescribed")
    rig.delete(f"{PODS}/undescribed", f"{CLAIMS}/undescribed")


@pytest.mark.feature("KA-DRA-01")
def test_restarts_of_koordlet_and_kubelet_keep_pods(rig: Rig) -> None:
    made(rig.admin, CLAIMS, claim("kept", request("card", cls="large")))
    made(rig.admin, PODS, real_kubelet.pod("kept", claims=of_claim("kept")))
    rig.runs("kept")
    before = rig.pod("kept")["status"]["containerStatuses"][0]["containerID"]
    command = rig.stop("koordlet")
    assert not (rig.kubelet.root / "plugins_registry/koordinator.sh-reg.sock").exists()
    made(rig.admin, CLAIMS, claim("waits", request("card", cls="large")))
    made(rig.admin, PODS, real_kubelet.pod("waits", claims=of_claim("waits")))
    until(lambda: any("koordinator.sh is not registered" in text for text in rig.events("waits")), "no plugin: the pod waits", 60)
    rig.start("koordlet", *command)
    rig.runs("waits")
    rig.kubelet.restart()
    ready(rig)
    made(rig.admin, CLAIMS, claim("after", request("card", cls="any")))
    made(rig.admin, PODS, once("after", claims=of_claim("after")))
    assert got(rig.result("after")) == ["2"]
    assert rig.pod("kept")["status"]["containerStatuses"][0]["containerID"] == before
    rig.delete(*(f"{PODS}/{name}" for name in ("kept", "waits", "after")))
    rig.delete(*(f"{CLAIMS}/{name}" for name in ("kept", "waits", "after")))


@pytest.mark.feature("SCH-DRA-10")
def test_a_claim_of_a_template_is_free_when_its_pod_has_ended(rig: Rig) -> None:
    need_controllers(rig)
    made(rig.admin, TEMPLATES, template("both", request("card", cls="large", count=2)))
    made(rig.admin, PODS, real_kubelet.pod("holds", claims=of_template("both")))
    rig.runs("holds")
    made(rig.admin, PODS, once("next", claims=of_template("both")))
    until(lambda: any("cannot allocate all claims" in text for text in rig.events("next")), "there is none left for the next", 60)
    rig.admin(Row("DELETE", f"{PODS}/holds"))
    assert got(rig.result("next")) == ["0", "1"]
    rig.delete(f"{PODS}/next")


@pytest.mark.feature("SCH-DRA-10")
def test_claims_and_classes_that_change_under_a_waiting_pod(rig: Rig) -> None:
    made(rig.admin, f"{DRA}/deviceclasses", device_class("edited", f'{OURS} && {ATTRIBUTE}.uuid == "nobody"'))
    made(rig.admin, CLAIMS, claim("changing", request("card", cls="edited")))
    made(rig.admin, PODS, once("changing", claims=of_claim("changing")))
    until(lambda: any("cannot allocate all claims" in text for text in rig.events("changing")), "no device is of the class", 60)
    rig.delete(f"{CLAIMS}/changing")
    made(rig.admin, CLAIMS, claim("changing", request("card", cls="edited", count=2)))
    edited = device_class("edited", f'{OURS} && {ATTRIBUTE}.uuid in ["ACME-1", "ACME-2"]')
    assert rig.admin(Row("PATCH", f"{DRA}/deviceclasses/edited", {"spec": edited["spec"]})).status_code == 200
    assert got(rig.result("changing")) == ["1", "2"]
    rig.delete(f"{PODS}/changing", f"{CLAIMS}/changing", f"{DRA}/deviceclasses/edited")


@pytest.mark.feature("SCH-DRA-05")
@pytest.mark.feature("SCH-DRA-10")
def test_a_claim_that_is_being_deleted_serves_nobody_else(rig: Rig) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    assert rig.admin(Row("PATCH", f"{CORE}/namespaces/default", label)).status_code == 200
    made(rig.admin, CLAIMS, claim("ending", request("card", cls="large")))
    made(rig.admin, PODS, real_kubelet.pod("holder", claims=of_claim("ending")))
    rig.runs("holder")
    rig.admin(Row("DELETE", f"{CLAIMS}/ending"))
    made(rig.admin, PODS, real_kubelet.pod("late", claims=of_claim("ending")))
    until(lambda: any("ending" in text for text in rig.events("late")), "the late pod is told", 60)
    assert not rig.pod("late")["spec"].get("nodeName")
    # an administrator sees the card although it is in use
    made(rig.admin, CLAIMS, claim("admin", request("card", cls="large", adminAccess=True, allocationMode="All")))
    made(rig.admin, PODS, once("admin", claims=of_claim("admin")))
    assert got(rig.result("admin")) == ["0", "1"]
    assert rig.phase("holder") == "Running"
    rig.delete(f"{PODS}/late", f"{PODS}/admin", f"{CLAIMS}/admin", f"{PODS}/holder")
    if "controllers" in rig.children:
        until(lambda: not rig.get(f"{CLAIMS}/ending"), "the claim goes with its last pod", 60)


# -- resizes in place --------------------------------------------------------------------------------------------------------


def resize(rig: Rig, name: str, request: str, limit: str) -> None:
    container = {"name": "main", "resources": {"requests": {"cpu": request}, "limits": {"cpu": limit}}}
    row = Row("PATCH", f"{PODS}/{name}/resize", {"spec": {"containers": [container]}}, (("Content-Type", STRATEGIC),))
    answer = rig.admin(row)
    assert answer.status_code == 200, answer.text


def pending(rig: Rig, name: str) -> str:
    """Why a resize waits."""
    conditions = (rig.pod(name).get("status") or {}).get("conditions") or ()
    return next((one.get("reason", "") for one in conditions if one["type"] == "PodResizePending"), "")


def in_force(rig: Rig, name: str) -> str:
    statuses = (rig.pod(name).get("status") or {}).get("containerStatuses") or [{}]
    return str(((statuses[0].get("resources") or {}).get("limits") or {}).get("cpu") or "")


def running(name: str, request: str, limit: str = "", qos: str = "LS") -> Obj:
    resources = {"requests": {"cpu": request}, "limits": {"cpu": limit or request, "memory": "64Mi"}}
    pod = real_kubelet.pod(name, resources=resources)
    pod["metadata"]["labels"] = {"koordinator.sh/qosClass": qos}
    return pod


def cgroup_file(rig: Rig, name: str, file: str) -> tuple[str, str]:
    """What a file holds in the pod's group and in its container's."""
    uid = rig.pod(name)["metadata"]["uid"]
    group = next((rig.kubelet.machine / "sys/fs/cgroup/cpu").glob(f"kubepods/**/pod{uid}"))
    container = rig.pod(name)["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    return (group / file).read_text().strip(), (group / container / file).read_text().strip()


def unplaced(rig: Rig, name: str) -> bool:
    conditions = (rig.pod(name).get("status") or {}).get("conditions") or ()
    return any(one["type"] == "PodScheduled" and "Insufficient cpu" in one.get("message", "") for one in conditions)


@pytest.mark.feature("SCH-RSZ-01")
@pytest.mark.feature("SCH-RSZ-03")
def test_room_of_resized_pods_is_counted(rig: Rig) -> None:
    cores = int(rig.get(f"{CORE}/nodes/{NODE}")["status"]["allocatable"]["cpu"])
    rest = 1000 * cores - 200
    made(rig.admin, PODS, running("grows", "200m"))
    rig.runs("grows")
    resize(rig, "grows", f"{rest}m", f"{rest}m")
    until(lambda: in_force(rig, "grows") in (f"{rest}m", str(rest / 1000)), f"it has grown: {rig.pod('grows').get('status')}", 60)
    made(rig.admin, PODS, running("small", "150m"))
    made(rig.admin, PODS, running("more", "100m"))
    rig.runs("small")
    until(lambda: unplaced(rig, "more"), "there is no room beside the grown pod", 60)
    resize(rig, "grows", "200m", "200m")
    rig.runs("more")
    made(rig.admin, PODS, running("beside", "500m"))
    rig.runs("beside")
    resize(rig, "grows", f"{rest}m", f"{rest}m")
    until(lambda: pending(rig, "grows") == "Deferred", "the kubelet defers what has no room now", 60)
    made(rig.admin, PODS, running("held-off", "100m"))
    until(lambda: unplaced(rig, "held-off"), "nobody is given the room that a resize waits for", 60)
    rig.delete(f"{PODS}/beside", f"{PODS}/small", f"{PODS}/more")
    until(lambda: in_force(rig, "grows") in (f"{rest}m", str(rest / 1000)), "the resize that waited is done", 120)
    rig.runs("held-off")
    rig.delete(f"{PODS}/grows", f"{PODS}/held-off")


@pytest.mark.feature("SCH-RSZ-05")
def test_koordlet_stands_in_the_way_of_no_resize(rig: Rig) -> None:
    burst = {"clusterStrategy": {"policy": "auto", "cpuBurstPercent": 100, "cfsQuotaBurstPercent": 300, "cfsQuotaBurstPeriodSeconds": -1}}
    settings = {"metadata": {"name": "slo-controller-config"}, "data": {"cpu-burst-config": json.dumps(burst)}}
    made(rig.admin, f"{CORE}/namespaces/koordinator-system/configmaps", settings)
    made(rig.admin, PODS, running("service", "200m", "400m"))
    rig.runs("service")
    until(lambda: cgroup_file(rig, "service", BURST) == ("40000", "40000"), "koordlet lends what the limit did not use", 60)
    for wanted, limit, quota in (("100m", "200m", "20000"), ("100m", "800m", "80000"), ("100m", "300m", "30000")):
        resize(rig, "service", wanted, limit)
        until(lambda limit=limit: in_force(rig, "service") == limit, f"{limit} is in force: {rig.pod('service').get('status')}", 90)
        until(lambda quota=quota: cgroup_file(rig, "service", QUOTA) == (quota, quota), f"the quota is {quota}", 30)
        until(lambda quota=quota: cgroup_file(rig, "service", BURST) == (quota, quota), f"the burst is {quota}", 30)
        assert cgroup_file(rig, "service", QUOTA) == (quota, quota)
    rig.delete(f"{PODS}/service")


@pytest.mark.feature("SCH-RSZ-02")
@pytest.mark.feature("SCH-RSZ-05")
def test_a_pod_is_resized_as_a_whole(rig: Rig) -> None:
    cores = int(rig.get(f"{CORE}/nodes/{NODE}")["status"]["allocatable"]["cpu"])
    pod = real_kubelet.pod("whole", resources={})
    pod["metadata"]["labels"] = {"koordinator.sh/qosClass": "LS"}
    pod["spec"]["resources"] = {"requests": {"cpu": "200m", "memory": "64Mi"}, "limits": {"cpu": "400m", "memory": "128Mi"}}
    made(rig.admin, PODS, pod)
    rig.runs("whole")
    for wanted, limit, quota in ((f"{1000 * cores - 100}m", str(cores), f"{cores}00000"), ("100m", "200m", "20000")):
        change = {"spec": {"resources": {"requests": {"cpu": wanted}, "limits": {"cpu": limit}}}}
        answer = rig.admin(Row("PATCH", f"{PODS}/whole/resize", change))
        assert answer.status_code == 200, answer.text
        until(lambda quota=quota: cgroup_file(rig, "whole", QUOTA)[0] == quota, f"the pod has {limit}", 60)
        if wanted != "100m":
            made(rig.admin, PODS, running("beside", "200m"))
            until(lambda: unplaced(rig, "beside"), "the pod counts as a whole", 60)
    rig.runs("beside")
    assert cgroup_file(rig, "whole", QUOTA)[0] == "20000"
    rig.delete(f"{PODS}/whole", f"{PODS}/beside")


@pytest.mark.feature("SCH-RSZ-05")
def test_a_pod_on_its_own_cpus_is_resized(rig: Rig) -> None:
    """koordlet takes the quota off it; the kubelet's resize is through all the same, and koordlet's part is as it was."""
    pod = running("pinned", "1", qos="LSR")
    pod["metadata"]["annotations"] = {"scheduling.koordinator.sh/resource-status": '{"cpuset": "0"}'}
    pod["spec"]["nodeName"] = NODE
    made(rig.admin, PODS, pod)
    rig.runs("pinned")
    until(lambda: cgroup_file(rig, "pinned", QUOTA) == ("-1", "-1"), "koordlet takes the quota off", 60)
    resize(rig, "pinned", "2", "2")
    until(lambda: in_force(rig, "pinned") == "2", f"two are in force: {rig.pod('pinned').get('status')}", 90)
    until(lambda: cgroup_file(rig, "pinned", QUOTA) == ("-1", "-1"), "it still has CPUs of its own", 60)
    rig.delete(f"{PODS}/pinned")
