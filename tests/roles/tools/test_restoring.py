"""`koord uninstall` puts nodes back before it takes koordlet off them, or stops and names those that are late."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koord.api.deviceslices import DRIVER
from koord.api.kinds import CLUSTERROLES, DAEMONSETS, LEASES, NAMESPACES, NODES, PODS, RESOURCESLICES, Kind
from koord.apiserver.testing import running_server
from koord.kube.client import Client
from roles.koordlet.actuation.journal import Journal
from roles.koordlet.actuation.journal_lines import Entry
from roles.koordlet.actuation.places import identity
from roles.koordlet.actuation.restore import journal_path
from roles.koordlet.host.root import HostRoot
from roles.koordlet.restoring import REPORT
from roles.tools import manifests, restoring
from roles.tools.install import uninstall
from tests.support import patience
from tests.support.processes import KOORD

NAMESPACE = manifests.NAMESPACE
REVISIONS = Kind("apps", "v1", "ControllerRevision", "controllerrevisions", True)
Obj = dict[str, Any]


def agent(*overlays: str) -> Obj:
    return next(d for d in manifests.rendered(crds=False, overlays=overlays) if d["kind"] == "DaemonSet")


class Machine:
    """A node's files in a folder, with one that koordlet changed."""

    def __init__(self, folder: Path) -> None:
        self.host = folder
        self.file = folder / "sys/fs/cgroup/cpu/kubepods/besteffort/cpu.cfs_quota_us"
        self.file.parent.mkdir(parents=True)
        self.file.write_text("-1\n")
        root = HostRoot.at(str(folder))
        Path(journal_path(root)).parent.mkdir(parents=True)
        journal = Journal(journal_path(root))
        journal.open()
        journal.remember([Entry(str(self.file), "-1", resource="cpu.cfs_quota_us", inode=identity(str(self.file)))])
        journal.close()
        self.file.write_text("200000\n")
        for path in (
            "etc/runtime/hookserver.d/koordlet.json",
            "var/lib/koordlet/series/series.msgpack",
            f"var/lib/kubelet/plugins_registry/{DRIVER}-reg.sock",
        ):
            (folder / path).parent.mkdir(parents=True)
            (folder / path).write_text("{}")

    def run(self, container: Obj) -> int:
        """As the kubelet would run it, the mount of the host being the folder."""
        arguments = [a.replace("/host", str(self.host)).replace("$(NODE_NAME)", "n1") for a in container["args"]]
        given = {e["name"]: e["value"] for e in container.get("env", ()) if "value" in e and e["name"] != REPORT}
        done = subprocess.run(
            [KOORD, *arguments],
            capture_output=True,
            text=True,
            timeout=patience.seconds(60),
            check=False,
            env={**os.environ, "NODE_NAME": "n1", **given},
        )
        return done.returncode


async def rolled_out(client: Client, node: Machine | None) -> None:
    """What the DaemonSet controller and a kubelet do: the new pod is ready once its init containers have ended well."""
    seen = 1
    while True:
        found = await client.get(DAEMONSETS, "koordlet", NAMESPACE)
        generation = found["metadata"].get("generation", 1)
        if generation > seen:
            seen = generation
            spec = found["spec"]["template"]["spec"]
            statuses = [await asyncio.to_thread(node.run, c) for c in spec.get("initContainers", ())] if node else [1]
            ready = int(not any(statuses))
            status = {"desiredNumberScheduled": 1, "observedGeneration": seen, "updatedNumberScheduled": 1, "numberReady": ready}
            await client.patch(DAEMONSETS, "koordlet", {"status": status}, NAMESPACE, subresource="status")
        await asyncio.sleep(0.05)


async def revised(client: Client, *templates: Obj) -> None:
    """What the DaemonSet controller keeps of the templates that the DaemonSet has had, oldest first."""
    owner = (await client.get(DAEMONSETS, "koordlet", NAMESPACE))["metadata"]
    reference = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "koordlet", "uid": owner["uid"], "controller": True}
    for number, template in enumerate(templates, 9):
        head = {"name": f"koordlet-{number}", "ownerReferences": [reference]}
        data = {"spec": {"template": {**template, "$patch": "replace"}}}
        await client.create(REVISIONS, {"metadata": head, "revision": number, "data": data}, NAMESPACE)


async def uninstalled(node: Machine | None, *flags: str, overlay: str = "", earlier: tuple[Obj, ...] = ()) -> tuple[int, str, bool]:
    """(exit status, what was said, whether the DaemonSet is left)"""
    async with running_server() as server, server.client() as client:
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        await client.create(DAEMONSETS, agent(*filter(None, [overlay])), NAMESPACE)
        await revised(client, *earlier)
        role = next(d for d in manifests.documents("install") if d["kind"] == "ClusterRole" and d["metadata"]["name"] == "koordlet")
        await client.create(CLUSTERROLES, role)
        pod = {
            "metadata": {"name": "koordlet-x", "labels": {"koord-app": "koordlet"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
        }
        await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **pod}, NAMESPACE)
        await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        amounts = {"cpu": "8", "kubernetes.io/batch-cpu": "4k", "kubernetes.io/mid-memory": "1Gi"}
        amounts |= {"koordinator.sh/gpu": "200", "koordinator.sh/gpu.shared": "200", "koordinator.sh/rdma": "100"}
        await client.patch(NODES, "n1", {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")
        marks = {"node.koordinator.sh/cpu-normalization-ratio": "1.2", "node.koordinator.sh/originExtendedAllocatable": "{}", "mine": "1"}
        marks["descheduler.koordinator.sh/cordoned"] = "true"
        labels = {"node.koordinator.sh/gpu-model": "A100", "mine": "1"}
        await client.patch(NODES, "n1", {"metadata": {"annotations": marks, "labels": labels}, "spec": {"unschedulable": True}})
        await client.create(LEASES, {"metadata": {"name": "koord-scheduler"}, "spec": {"holderIdentity": "x"}}, NAMESPACE)
        for name, manager in (("n1-0", "koord-manager"), ("theirs", "somebody")):
            head = {"name": name, "labels": {"app.kubernetes.io/managed-by": manager}}
            spec = {"driver": "d.example.com", "nodeName": "n1", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}}
            await client.create(RESOURCESLICES, {"metadata": head, "spec": {**spec, "devices": [{"name": "a"}]}})
        controller = asyncio.create_task(rolled_out(client, node))
        try:
            arguments = [f"--kubeconfig={server.kubeconfig_path}", "--yes", *flags]
            done = await asyncio.to_thread(CliRunner().invoke, uninstall, arguments)
        finally:
            controller.cancel()
        left = await client.list(DAEMONSETS, NAMESPACE)
        found = await client.get(NODES, "n1")
        offered = set(found["status"]["capacity"]) | set(found["status"]["allocatable"])
        marked = set(found["metadata"]["annotations"]), set(found["metadata"]["labels"]), "unschedulable" in found["spec"]
        slices = [entry["metadata"]["name"] for entry in (await client.list(RESOURCESLICES)).items]
        leases = len((await client.list(LEASES, NAMESPACE)).items)
        clean = (offered, marked, slices, leases) == ({"cpu"}, ({"mine"}, {"mine"}, False), ["theirs"], 0)
        assert clean is (done.exit_code == 0), "nodes offer nothing of ours once koord is gone"
        return done.exit_code, done.output, bool(left.items)


def test_the_node_is_as_it_was_when_koordlet_is_gone(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "host")
    status, said, left = asyncio.run(uninstalled(machine))
    assert (status, left) == (0, False), said
    assert machine.file.read_text().strip() == "-1"
    files = [str(p.relative_to(machine.host)) for p in machine.host.rglob("*") if p.is_file() and "cgroup" not in p.parts]
    assert files == [], "journal, lock, series and registration are gone, too"
    assert said.index("nodes put back: 1 of 1") < said.index("deleted DaemonSet")


def template(*overlays: str) -> Obj:
    found: Obj = agent(*overlays)["spec"]["template"]
    return found


def test_a_koordlet_that_only_observes_by_now_puts_back_what_it_wrote_before(tmp_path: Path) -> None:
    """It has no rights over the node, and its pods would be deleted with the values of those before them still in force."""
    machine = Machine(tmp_path / "host")
    earlier = (template("koordlet-observe"), template(), template("koordlet-observe"))
    status, said, left = asyncio.run(uninstalled(machine, overlay="koordlet-observe", earlier=earlier))
    assert (status, left) == (0, False), said
    assert machine.file.read_text().strip() == "-1"
    assert said.index("only observes by now") < said.index("nodes put back: 1 of 1") < said.index("deleted DaemonSet")


def test_a_koordlet_that_has_only_observed_gets_no_rights_for_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "host")
    status, said, left = asyncio.run(uninstalled(machine, overlay="koordlet-observe", earlier=(template("koordlet-observe"),)))
    assert (status, left, "put back" in said) == (0, False, False), said
    assert machine.file.read_text().strip() == "200000"


def test_pods_of_the_last_template_that_could_write_restore_with_the_image_of_now() -> None:
    async def main() -> tuple[Obj, Obj]:
        async with running_server() as server, server.client() as client:
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
            now = agent("koordlet-observe")
            now["spec"]["template"]["spec"] |= {"imagePullSecrets": [{"name": "pull"}], "nodeSelector": {"pool": "some"}}
            now["spec"]["template"]["metadata"]["annotations"] = {"now": "1"}
            now["spec"]["template"]["spec"]["containers"][0]["image"] = "example.com/koord:new"
            await client.create(DAEMONSETS, now, NAMESPACE)
            older, last = template(), template("koordlet-claims")
            last["spec"]["containers"].append({"name": "beside", "image": "example.com/beside"})
            last["metadata"]["creationTimestamp"] = None
            await revised(client, older, last, template("koordlet-observe"))
            assert not await restoring.restore_nodes(client, NAMESPACE, 0.0, lambda _: None)
            found = await client.get(DAEMONSETS, "koordlet", NAMESPACE)
            assert restoring.under_way(found)
            assert not await restoring.restore_nodes(client, NAMESPACE, 0.0, lambda _: None)
            assert await client.get(DAEMONSETS, "koordlet", NAMESPACE) == found, "the second try waits for the same pods"
            return found["spec"]["template"], last

    found, last = asyncio.run(main())
    assert "annotations" not in found["metadata"]
    spec = found["spec"]
    assert not {"nodeSelector", "fsGroup"} & {*spec, *(spec.get("securityContext") or ())}
    assert (spec["hostPID"], spec["hostNetwork"], spec["imagePullSecrets"]) == (True, True, [{"name": "pull"}])
    assert {volume["name"] for volume in spec["volumes"]} == {volume["name"] for volume in last["spec"]["volumes"]}
    [once], [watching, beside] = spec["initContainers"], spec["containers"]
    assert {once["image"], watching["image"], beside["image"]} == {"example.com/koord:new", "example.com/beside"}
    assert once["volumeMounts"] == last["spec"]["containers"][0]["volumeMounts"]
    assert "--restore" in once["args"]
    assert "--observe-only" not in once["args"]
    assert watching["args"][-len(restoring._WATCHING) :] == list(restoring._WATCHING)


def test_a_node_that_cannot_be_put_back_stops_it_and_is_named() -> None:
    status, said, left = asyncio.run(uninstalled(None, "--restore-timeout=1s"))
    assert (status, left) == (1, True), "koordlet and its rights stay, so that one can try again"
    assert "not yet: node n1; kubectl -n koordinator-system logs koordlet-x -c restore" in said
    assert "--restore=false" in said


def test_trying_again_waits_for_the_nodes_that_the_first_try_did_not_see_put_back() -> None:
    async def main() -> list[bool]:
        async with running_server() as server, server.client() as client:
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
            await client.create(DAEMONSETS, agent(), NAMESPACE)
            done = [await restoring.restore_nodes(client, NAMESPACE, 0.0, lambda _: None) for _ in range(2)]
            found = await client.get(DAEMONSETS, "koordlet", NAMESPACE)
            assert len(found["spec"]["template"]["spec"]["initContainers"]) == 1
            status = {"observedGeneration": found["metadata"]["generation"], "desiredNumberScheduled": 2}
            status |= {"updatedNumberScheduled": 2, "numberReady": 2}
            await client.patch(DAEMONSETS, "koordlet", {"status": status}, NAMESPACE, subresource="status")
            return [*done, await restoring.restore_nodes(client, NAMESPACE, 0.0, lambda _: None)]

    assert asyncio.run(main()) == [False, False, True], "without its DaemonSet a node that is late would never be put back"


def test_every_pod_restores_once_and_then_only_watches() -> None:
    daemonset = agent()
    before = daemonset["spec"]["template"]["spec"]["containers"][0]
    patch = restoring.restoring(daemonset)
    assert patch is not None
    pod = patch["spec"]["template"]["spec"]
    [once], [watching] = pod["initContainers"], pod["containers"]
    assert once["args"] == [*before["args"], "--restore"]
    assert once["volumeMounts"] == before["volumeMounts"], "the journal names files as koordlet saw them"
    assert not {"livenessProbe", "ports"} & set(once)
    assert watching["args"][-2:] == ["--mode=observe", "--strategy-modes="]
    assert watching["livenessProbe"] == before["livenessProbe"]
    assert restoring.restoring(agent("koordlet-observe")) is None, "who could not write has nothing to put back"
    assert not restoring.under_way({"spec": {"template": {"spec": {**pod, "containers": [before]}}}}), "applied again, it writes again"


@pytest.mark.parametrize(
    ("status", "generation", "expected"),
    [
        ({}, 2, (0, 1)),
        ({"observedGeneration": 1, "desiredNumberScheduled": 5, "updatedNumberScheduled": 5, "numberReady": 5}, 2, (0, 5)),
        ({"observedGeneration": 2, "desiredNumberScheduled": 5, "updatedNumberScheduled": 5, "numberReady": 3}, 2, (3, 5)),
        ({"observedGeneration": 2, "desiredNumberScheduled": 5, "updatedNumberScheduled": 2, "numberReady": 5}, 2, (2, 5)),
        ({"observedGeneration": 2, "desiredNumberScheduled": 0}, 2, (0, 0)),
    ],
)
def test_progress_counts_pods_of_the_new_template_that_are_ready(status: Obj, generation: int, expected: tuple[int, int]) -> None:
    assert restoring.progress({"metadata": {"generation": generation}, "status": status}) == expected


def test_files_that_were_not_put_back_are_named_with_node_and_reason_while_it_waits() -> None:
    said = "1 files put back, 0 as they were, 0 gone, 1 failed\nnot put back: /host/sys/fs/x: 'a' is refused: Invalid argument"
    ended = {"terminated": {"exitCode": 0, "message": said}}
    failing = {"terminated": {"exitCode": 1, "message": "there is no machine"}}
    statuses = [{"name": "restore", "state": ended, "lastState": failing}, {"name": "other", "state": failing}]
    pod = {"spec": {"nodeName": "n1"}, "status": {"initContainerStatuses": statuses}}
    assert restoring.reports(pod) == [
        "node n1: not put back: /host/sys/fs/x: 'a' is refused: Invalid argument",
        "node n1: there is no machine",
    ]
    assert restoring.reports({"spec": {}, "status": {}}) == []
    once = restoring.restoring(agent())["spec"]["template"]["spec"]["initContainers"][0]
    assert {"name": "KOORD_RESTORE_REPORT", "value": "/dev/termination-log"} in once["env"]
