"""`koord doctor`: what is made of facts, and how a machine is looked at (BEY-DOC-01). A whole cluster: tests/e2e/test_doctor.py."""

from __future__ import annotations

import asyncio
import base64
import copy
import os
import shutil
from concurrent import futures
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
from click.testing import CliRunner

from koord.api.kinds import DEVICECLASSES, NODES, PODS
from koord.api.times import format_time
from koord.apiserver.testing import running_server
from koord.process.certificates import ensure
from koord.protocols import cri_pb2
from roles.koordlet.host.root import HostRoot
from roles.tools import manifests
from roles.tools.doctor import cluster, hookservers, host, judge_cluster, judge_host
from roles.tools.doctor.cli import command
from roles.tools.doctor.crds import drift
from roles.tools.doctor.facts import ClusterFacts, HookSocket, HostFacts, NodeFacts, RightsFacts, Socket, WebhookFacts
from roles.tools.doctor.finding import Finding, Level, failed, lines
from roles.tools.doctor.powers import NODES_PROXY
from roles.tools.doctor.rights import Question, questions
from roles.tools.doctor.webhooks import handshake, read_ca
from tests.fixtures.hosts.hosttree import HostTree

pytestmark = pytest.mark.feature("BEY-DOC-01")
NOW = 1_800_000_000.0

GOOD_HOST = HostFacts(
    kernel="6.8.0-41-generic",
    cgroup_version=2,
    cgroup_writable=True,
    controllers=frozenset({"cpu", "cpuset", "memory", "io"}),
    driver_of_tree="systemd",
    driver_of_kubelet="systemd",
    files={"cfs_burst": True, "cpu_idle": True},
    core_scheduling=True,
    pressure={"cpu": "", "memory": "", "io": ""},
    cgroup_pressure=True,
    pressure_trigger=True,
    cpu_flags=frozenset({"cat_l3", "mba"}),
    resctrl_known=True,
    resctrl_mounted=True,
    resctrl_features=frozenset({"L3", "MB"}),
    sockets=(Socket("containerd", "/var/run/containerd/containerd.sock", "containerd 1.7.24"),),
    kubelet_listens=True,
    kubelet_pods="",
)


def bad(findings: list[Finding]) -> list[Finding]:
    """What is not ok; each of these must say what to do."""
    found = [one for one in findings if one.level is not Level.OK]
    assert all(one.remedy for one in found), found
    return found


def test_a_good_machine_has_nothing_to_do() -> None:
    findings = list(judge_host.judge(GOOD_HOST))
    assert bad(findings) == []
    assert {"kernel", "cgroups", "cgroup driver", "pressure", "resctrl", "container runtime", "kubelet"} <= {one.area for one in findings}


@pytest.mark.parametrize(
    ("change", "level", "area", "message"),
    [
        ({"superuser": False}, Level.WARN, "host", "not run as root"),
        ({"kernel": "4.9.0"}, Level.FAIL, "kernel", "older than 4.18"),
        ({"kernel": ""}, Level.WARN, "kernel", "cannot be read"),
        ({"files": {}}, Level.WARN, "kernel features", "no cgroup"),
        ({"files": {"cfs_burst": False}}, Level.WARN, "kernel features", "CPU burst: not there"),
        ({"core_scheduling": False}, Level.WARN, "kernel features", "core scheduling: not there"),
        ({"cgroup_version": None, "cgroup_error": "cgroup root /x does not exist"}, Level.FAIL, "cgroups", "/x does not exist"),
        ({"controllers": frozenset({"cpu"})}, Level.FAIL, "cgroups", "controllers missing: cpuset, memory"),
        ({"cgroup_writable": False}, Level.FAIL, "cgroups", "read-only"),
        ({"driver_of_kubelet": "cgroupfs"}, Level.FAIL, "cgroup driver", "made by systemd, the kubelet is configured for cgroupfs"),
        ({"driver_of_tree": None, "driver_of_kubelet": None}, Level.WARN, "cgroup driver", "no kubelet to ask"),
        ({"pressure": {"cpu": "No such file or directory"}}, Level.WARN, "pressure", "cpu: No such file"),
        ({"cgroup_pressure": False}, Level.WARN, "pressure", "groups have no pressure files"),
        ({"pressure_trigger": False}, Level.WARN, "pressure", "takes no trigger"),
        ({"resctrl_mounted": False}, Level.WARN, "resctrl", "not mounted; the CPU has cat_l3, mba"),
        ({"sockets": ()}, Level.FAIL, "container runtime", "no CRI socket"),
        ({"sockets": (Socket("containerd", "/c.sock", error="UNIMPLEMENTED: x"),)}, Level.FAIL, "container runtime", "UNIMPLEMENTED"),
        ({"kubelet_pods": "HTTP 401: Unauthorized"}, Level.FAIL, "kubelet", "HTTP 401"),
        ({"kubelet_pods": None, "kubelet_listens": False}, Level.WARN, "kubelet", "no process listens"),
    ],
)
def test_what_is_wrong_with_a_machine(change: dict[str, Any], level: Level, area: str, message: str) -> None:
    found = bad(list(judge_host.judge(replace(GOOD_HOST, **change))))
    assert [(one.level, one.area) for one in found] == [(level, area)]
    assert message in found[0].message


@pytest.mark.parametrize(("version", "driver"), [(1, "systemd"), (1, "cgroupfs"), (2, "systemd")])
def test_a_machine_is_read_from_its_tree(tmp_path: Path, version: int, driver: str) -> None:
    tree = HostTree(tmp_path, version=version, driver=driver)
    tree.write("proc/sys/kernel/osrelease", "5.15.0-test\n")
    tree.write("proc/filesystems", "nodev\tcgroup2\nnodev\tresctrl\n")
    burst = "cpu.max.burst" if version == 2 else "cpu.cfs_burst_us"
    tree.write(tree.file("cpu", tree.qos_dir("Guaranteed"), burst), "0\n")
    for name in ("cpu", "memory"):
        tree.write(f"proc/pressure/{name}", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    tree.write("sys/fs/resctrl/schemata", "L3:0=fff\n")
    tree.write("sys/fs/resctrl/info/L3/cbm_mask", "fff\n")
    (tmp_path / "var/run/containerd").mkdir(parents=True)
    (tmp_path / "var/run/containerd/containerd.sock").touch()
    facts = asyncio.run(host.gather(HostRoot.at(str(tmp_path))))
    assert (facts.live, facts.kernel, facts.cgroup_version, facts.driver_of_tree) == (False, "5.15.0-test", version, driver)
    assert facts.files["cfs_burst"] is True
    assert facts.files["memcg_wmark"] is False
    assert facts.pressure["cpu"] == ""
    assert "No such file" in facts.pressure["io"]
    assert (facts.resctrl_known, facts.resctrl_mounted, facts.resctrl_features) == (True, True, frozenset({"L3"}))
    assert [(one.runtime, one.answer, one.error) for one in facts.sockets] == [("containerd", "", "")]
    done = CliRunner().invoke(command, ["--node", f"--host-root={tmp_path}", "--output=json"])
    answer = orjson.loads(done.output)
    assert done.exit_code == int(answer["failed"])
    assert {"area": "cgroups", "level": "ok", "message": f"version {version}", "remedy": ""} in answer["findings"]


def test_links_that_lead_out_of_the_root_are_not_followed(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host", version=1)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/containerd.sock").touch()
    (tmp_path / "host/var/run/containerd").symlink_to("../../../outside")
    (tmp_path / "host/proc/pressure").symlink_to("../../outside")
    (tmp_path / "host/sys/fs/resctrl").symlink_to("../../../outside")
    facts = asyncio.run(host.gather(HostRoot.at(str(tree.root))))
    assert facts.sockets == ()
    assert facts.pressure["cpu"]
    assert facts.resctrl_mounted is False


def test_in_a_pod_with_single_directories_of_the_machine_its_own_proc_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """koordlet's pod has no /host/proc: it shares the machine's processes."""
    tree = HostTree(tmp_path, version=2)
    shutil.rmtree(tmp_path / "proc")
    assert host.machine_at(str(tmp_path)).proc == f"{tmp_path}/proc", "a tree of files is another machine's"
    monkeypatch.setattr(os.path, "ismount", lambda path: path == f"{tmp_path}/sys")
    done = CliRunner().invoke(command, ["--node", f"--host-root={tmp_path}"])
    assert f"ok    kernel: {os.uname().release}\n" in done.output
    assert "ok    cgroups: version 2\n" in done.output
    tree.write("proc/sys/kernel/osrelease", "5.15.0-test\n")
    assert "ok    kernel: 5.15.0-test\n" in CliRunner().invoke(command, ["--node", f"--host-root={tmp_path}"]).output


def test_an_empty_tree_fails_with_what_to_do(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--node", f"--host-root={tmp_path}"])
    assert done.exit_code == 1
    shown = done.output.splitlines()
    at = next(index for index, line in enumerate(shown) if line.startswith("fail  cgroups:"))
    assert shown[at + 1].startswith("      do: mount cgroups")
    assert shown[-1].endswith("fail")


def test_this_machine_can_be_looked_at() -> None:
    done = CliRunner().invoke(command, ["--node", "--output=json"])
    assert done.exit_code in (0, 1)
    answer = orjson.loads(done.output)
    assert done.exit_code == int(answer["failed"])
    levels = {one["area"]: one["level"] for one in answer["findings"]}
    assert levels["kernel"] == "ok"
    assert "container runtime" in levels


@pytest.mark.parametrize("name", ["cri.sock", "cri%20.sock", "cri#.sock"])
def test_the_container_runtime_is_asked_for_its_version(tmp_path: Path, name: str) -> None:
    def version(request: Any, context: grpc.ServicerContext) -> Any:
        return cri_pb2.VersionResponse(version="0.1.0", runtime_name="containerd", runtime_version="v9", runtime_api_version="v1")

    handler = grpc.unary_unary_rpc_method_handler(version, cri_pb2.VersionRequest.FromString, cri_pb2.VersionResponse.SerializeToString)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", {"Version": handler}),))
    server.add_insecure_port(f"unix:{tmp_path}/made.sock")
    server.start()
    (tmp_path / "made.sock").rename(tmp_path / name)
    try:
        answered = asyncio.run(host._ask("containerd", f"{tmp_path}/{name}", live=True))
        assert (answered.answer, answered.error) == ("containerd v9", "")
    finally:
        server.stop(0).wait()
    silent = asyncio.run(host._ask("containerd", f"{tmp_path}/none.sock", live=True))
    assert silent.error.startswith("UNAVAILABLE")


DEFINITIONS = list(manifests.documents("crds"))


def good_cluster() -> ClusterFacts:
    definitions = DEFINITIONS
    lease = {"spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": format_time(NOW - 3)}}
    metric = {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}}, "status": {"updateTime": format_time(NOW - 30)}}
    return ClusterFacts(
        server="https://k",
        version="v1.34.0",
        user="admin",
        now=NOW,
        skew=0.1,
        skew_error=0.6,
        expected_crds=definitions,
        crds={d["metadata"]["name"]: copy.deepcopy(d) for d in definitions},
        expected_classes={"koord-prod": 9000},
        classes={"koord-prod": 9500},
        webhook_configurations={"m": True},
        webhooks=[WebhookFacts("m", "mpod", "Ignore", "Service a/b", "", NOW + 1e7, 2, "", "")],
        workloads={"koord-manager": (2, 2)},
        leases={"koordinator-manager": lease},
        node_names=["n1"],
        node_metrics={"n1": metric},
        slo_data={"colocation-config": '{"enable": true}'},
        rights=[RightsFacts("manager", 60, (), "system:serviceaccount:koordinator-system:koord-manager")],
        nodes=[NodeFacts("n1", "systemd", "none")],
        own_node_policy=True,
    )


def test_a_good_cluster_has_nothing_to_do() -> None:
    findings = list(judge_cluster.judge(good_cluster()))
    assert bad(findings) == []
    assert "co-location is on" in next(one.message for one in findings if one.area == "slo-controller-config")


@pytest.mark.parametrize(
    ("accounts", "asked_as", "level", "said"),
    [
        (frozenset({"default", "koordlet"}), "koord-descheduler", Level.WARN, "descheduler: not installed, there is no ServiceAccount"),
        (frozenset({"koordlet", "koord-descheduler"}), "koord-descheduler", Level.FAIL, "may not list pods"),
        (frozenset({"default"}), "koord-descheduler", Level.FAIL, "may not list pods"),  # nothing is installed
        (None, "koord-descheduler", Level.FAIL, "may not list pods"),
        (frozenset({"koordlet"}), "somebody", Level.FAIL, "may not list pods"),
    ],
)
def test_a_role_that_was_left_out_lacks_no_rights(accounts: frozenset[str] | None, asked_as: str, level: Level, said: str) -> None:
    denied = RightsFacts("descheduler", 80, ("list pods",), f"system:serviceaccount:koordinator-system:{asked_as}")
    found = bad(list(judge_cluster.judge(replace(good_cluster(), accounts=accounts, rights=[denied]))))
    assert [(one.level, one.area) for one in found] == [(level, "rights")]
    assert said in found[0].message


def _webhook(**changes: Any) -> dict[str, Any]:
    return {"webhooks": [replace(good_cluster().webhooks[0], **changes)]}


def _crd(change: Any) -> dict[str, Any]:
    crds = good_cluster().crds
    change(crds["nodemetrics.slo.koordinator.sh"])
    return {"crds": crds}


def _drop_field(crd: dict[str, Any]) -> None:
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].pop("metricCollectPolicy")


def _other_type(crd: dict[str, Any]) -> None:
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["kind"]["type"] = "integer"


def _other_version(crd: dict[str, Any]) -> None:
    crd["spec"]["versions"][0]["name"] = "v1beta1"


def _not_established(crd: dict[str, Any]) -> None:
    crd["status"] = {
        "conditions": [
            {"type": "NamesAccepted", "status": "False", "message": "the plural is taken"},
            {"type": "Established", "status": "False", "message": "not yet"},
        ]
    }


def _also_served(crd: dict[str, Any]) -> None:
    crd["spec"]["versions"][0]["storage"] = False
    crd["spec"]["versions"].append({"name": "v1", "served": True, "storage": True})


LATE = {"spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": format_time(NOW - 120)}}


@pytest.mark.parametrize(
    ("change", "level", "area", "message"),
    [
        ({"problems": {"server": "connection refused"}}, Level.FAIL, "API server", "connection refused"),
        ({"skew": None}, Level.WARN, "clock", "told no time"),
        ({"skew": 5.0}, Level.WARN, "clock", "5.0 s ahead of the server's"),
        ({"skew": -60.0}, Level.FAIL, "clock", "60.0 s behind"),
        ({"crds": {n: d for n, d in good_cluster().crds.items() if "nodeslos" not in n}}, Level.FAIL, "definitions", "is not installed"),
        (_crd(_drop_field), Level.WARN, "definitions", "lacks fields, which the server drops: spec.metricCollectPolicy"),
        (_crd(_other_type), Level.WARN, "definitions", "differs in kind"),
        (_crd(_other_version), Level.FAIL, "definitions", "does not serve v1alpha1 (served: v1beta1)"),
        (_crd(_not_established), Level.FAIL, "definitions", "the plural is taken"),
        (_crd(_also_served), Level.WARN, "definitions", "stores v1, not v1alpha1"),
        ({"problems": {"crds": "forbidden"}}, Level.WARN, "definitions", "cannot be read: forbidden"),
        ({"classes": {}}, Level.FAIL, "priority classes", "koord-prod does not exist"),
        ({"classes": {"koord-prod": 5000}}, Level.FAIL, "priority classes", "outside its band"),
        ({"workloads": {"koord-manager": (2, 1)}}, Level.WARN, "workloads", "1 of 2 ready"),
        ({"workloads": {"koord-manager": (2, 0)}}, Level.FAIL, "workloads", "0 of 2 ready"),
        ({"leases": {"koordinator-manager": None}}, Level.FAIL, "leaders", "it has never had a leader"),
        ({"leases": {"koord-scheduler": None}}, Level.WARN, "leaders", "it has never had a leader"),
        ({"leases": {"koordinator-manager": LATE}}, Level.FAIL, "leaders", "a renewed it 120 s ago"),
        ({"webhook_configurations": {"m": False}}, Level.FAIL, "webhooks", "m does not exist"),
        (_webhook(ca="is empty"), Level.FAIL, "webhooks", "caBundle is empty; such writes pass unchecked"),
        (_webhook(ca_expires=NOW - 7200, failure_policy="Fail"), Level.FAIL, "webhooks", "ended 2 h ago; every such write is refused"),
        (_webhook(ca_expires=NOW + 86400), Level.WARN, "webhooks", "ends in 1 days"),
        (_webhook(ready=0), Level.FAIL, "webhooks", "has no ready endpoint"),
        (_webhook(tls="its certificate is not good: expired"), Level.FAIL, "webhooks", "does not answer as it should"),
        (_webhook(tls=None, unreachable="timed out"), Level.WARN, "webhooks", "could not be tried from here (timed out)"),
        (_webhook(failure_policy="fail"), Level.FAIL, "webhooks", "failurePolicy 'fail'"),
        ({"own_node_policy": False}, Level.WARN, "rights", "koordlet-own-node is not there"),
        ({"rights": [RightsFacts("koordlet", 9, ("patch nodes",), "x")]}, Level.FAIL, "rights", "koordlet: x may not patch nodes"),
        ({"rights": [RightsFacts("koordlet", error="forbidden")]}, Level.WARN, "rights", "could not be asked"),
        ({"slo_data": None}, Level.WARN, "slo-controller-config", "does not exist"),
        ({"slo_data": {"cpu-burst-config": "{"}}, Level.FAIL, "slo-controller-config", "not valid JSON"),
        ({"node_names": ["n1", "n2"]}, Level.WARN, "node metrics", "fresh of 1 of 2 nodes; never told by n2"),
        ({"node_metrics": {}}, Level.FAIL, "node metrics", "fresh of 0 of 1 nodes"),
        ({"now": NOW + 600, "leases": {}}, Level.FAIL, "node metrics", "stale of n1 (10 min)"),
        ({"requested": {"a.com/x": ["d/p", "d/q"]}}, Level.WARN, "pending pods", "no node offers a.com/x, which d/p, d/q request"),
        ({"problems": {"pending": "forbidden"}}, Level.WARN, "pending pods", "cannot be read: forbidden"),
        ({"nodes": [NodeFacts("n1", error="HTTP 403", forbidden=True)]}, Level.WARN, "kubelets", "may not be asked"),
        ({"nodes": [NodeFacts("n1", "systemd"), NodeFacts("n2", "cgroupfs")]}, Level.WARN, "kubelets", "cgroup drivers differ"),
        ({"nodes": [NodeFacts("n1", "systemd", "static")]}, Level.WARN, "kubelets", "CPU manager policy static on n1"),
    ],
)
def test_what_is_wrong_with_a_cluster(change: dict[str, Any], level: Level, area: str, message: str) -> None:
    facts = good_cluster()
    for name, value in change.items():
        setattr(facts, name, value)
    found = bad(list(judge_cluster.judge(facts)))
    assert [(one.level, one.area) for one in found] == [(level, area)]
    assert message in found[0].message
    assert failed(found) is (level is Level.FAIL)
    assert lines(found)[1] == f"      do: {found[0].remedy}"


def test_a_report_is_not_stale_before_koordlet_reports_again() -> None:
    """It does so every 30 s at most, whatever is asked for."""
    facts = good_cluster()
    told = format_time(NOW - 80)
    policy = {"metricCollectPolicy": {"reportIntervalSeconds": 5}}
    facts.node_metrics = {
        name: {"spec": policy, "status": {**one["status"], "updateTime": told}} for name, one in facts.node_metrics.items()
    }
    assert bad(list(judge_cluster.judge(facts))) == []


def test_drift_is_none_for_our_own_definitions() -> None:
    for definition in manifests.documents("crds"):
        assert drift(definition, copy.deepcopy(definition)) == ([], [])


def test_questions_are_what_the_manifests_grant() -> None:
    own = manifests.rendered(namespace="elsewhere", crds=False)
    scheduler = questions(own, "koord-scheduler")
    assert Question("create", "", "pods", "binding") in scheduler
    assert Question("update", "coordination.k8s.io", "leases", "", "elsewhere", "koord-scheduler") in scheduler
    assert len(set(scheduler)) == len(scheduler) > 50
    assert Question("get", "apps", "deployments", "scale") in questions(own, "koord-descheduler")
    manager = {str(question) for question in questions(own, "koord-manager")}
    assert "update secrets koordinator-webhook-certs in elsewhere" in manager
    assert not any("recommendations" in question for question in manager), "only bound when its gate is on"


def test_certificates_are_read_and_tried(tmp_path: Path) -> None:
    own, other = ensure(tmp_path / "own", "localhost"), ensure(tmp_path / "other", "localhost")
    assert read_ca(None)[1] == "is empty"
    assert "cannot be read" in read_ca("bm90IGEgY2VydA==")[1]
    assert read_ca(base64.b64encode("# Büro\n".encode("latin-1") + own.ca).decode())[:2] == (own.ca.decode(), "")
    ca, wrong, expires = read_ca(base64.b64encode(own.ca).decode())
    assert wrong == ""
    assert expires is not None
    assert datetime.fromtimestamp(expires, UTC) > datetime.now(UTC) + timedelta(days=1)

    async def main() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=own.context())
        port = server.sockets[0].getsockname()[1]
        async with server:
            assert await handshake("127.0.0.1", port, "localhost", ca) == ("", "")
            told, _ = await handshake("127.0.0.1", port, "localhost", other.ca.decode())
            assert told is not None
            assert told.startswith("its certificate is not good")
            told, _ = await handshake("127.0.0.1", port, "elsewhere.svc", ca)
            assert told is not None
            assert "elsewhere.svc" in told
        told, why = await handshake("127.0.0.1", port, "localhost", ca)
        assert told is None
        assert why

    asyncio.run(main())


def test_options_exclude_each_other(tmp_path: Path) -> None:
    assert "exclude each other" in CliRunner().invoke(command, ["--node", "--cluster"]).output
    assert "is no directory" in CliRunner().invoke(command, ["--node", f"--host-root={tmp_path}/x"]).output


def test_without_a_cluster_the_machine_is_looked_at_all_the_same(tmp_path: Path) -> None:
    from koord.apiserver import kubeconfig

    done = CliRunner().invoke(command, [f"--host-root={tmp_path}", f"--kubeconfig={tmp_path}/none"])
    assert done.exit_code == 1
    assert "fail  cgroups:" in done.output
    assert "fail  API server:" in done.output
    assert "look at this machine only: --node" in done.output
    file = tmp_path / "kubeconfig"
    kubeconfig.write(file, kubeconfig.build("http://127.0.0.1:9", ""))
    done = CliRunner().invoke(command, ["--cluster", f"--kubeconfig={file}"])
    assert done.exit_code == 1
    assert done.output.startswith("fail  API server: http://127.0.0.1:9")


@pytest.mark.feature("RP-OPS-01")
def test_a_hook_server_whose_socket_is_gone_is_seen(tmp_path: Path) -> None:
    """As on a node with a runtime proxy: two servers, one of them binding; then their sockets vanish."""
    hooks, run = tmp_path / "etc/runtime/hookserver.d", tmp_path / "var/run"
    hooks.mkdir(parents=True)
    (run / "koord-runtimeproxy").mkdir(parents=True)
    for name, policy in (("a", "Fail"), ("b", "Ignore")):
        body = {"remote-endpoint": str(run / f"{name}.sock"), "failure-policy": policy, "runtime-hooks": ["PreRunPodSandbox"]}
        (hooks / f"{name}.json").write_bytes(orjson.dumps(body))
    (hooks / "c.json").write_text("[")

    async def look(live: bool) -> dict[str, str]:
        root = HostRoot.at("/", {"runtime-hooks-config-path": str(hooks)})
        return {one.source: one.problem for one in await hookservers.gather(root, live=live)}

    async def story() -> None:
        servers = [await asyncio.start_unix_server(lambda reader, writer: writer.close(), run / f"{name}.sock") for name in "ab"]
        assert await look(True) == {
            "a.json": "",
            "b.json": "",
            "c.json": "c.json: not JSON: unexpected end of data: line 1 column 2 (char 1)",
        }
        for server in servers:
            server.close()
        assert "no process listens on its socket" in (await look(True))["a.json"]
        for name in "ab":
            (run / f"{name}.sock").unlink(missing_ok=True)
        assert (await look(True))["b.json"] == (await look(False))["b.json"] == "its socket is not there"

    asyncio.run(story())
    gone = [HookSocket("a.json", "/run/a.sock", True, "its socket is not there"), HookSocket("b.json", "/run/b.sock", False, "x")]
    there = Socket("koord", "/run/koord-runtimeproxy/runtimeproxy.sock", "containerd 1.7")
    told = list(judge_host.judge(replace(GOOD_HOST, runtime_proxy=there, hook_sockets=tuple(gone))))
    assert [(one.area, one.level) for one in bad(told)] == [("hook servers", Level.FAIL), ("hook servers", Level.WARN)]
    away = replace(there, answer="", error="UNAVAILABLE: x")
    told = bad(list(judge_host.judge(replace(GOOD_HOST, runtime_proxy=away, hook_sockets=()))))
    assert [(one.area, one.level) for one in told] == [("runtime proxy", Level.FAIL), ("hook servers", Level.WARN)]
    assert bad(list(judge_host.judge(replace(GOOD_HOST, hook_sockets=tuple(gone))))) == [], "nobody asks hooks where there is no proxy"


def test_requests_of_pending_pods_are_held_against_what_nodes_offer() -> None:
    async def main() -> list[Finding]:
        async with running_server() as server, server.client() as client:
            await client.create(NODES, {"metadata": {"name": "n"}})
            amounts = {"cpu": "4", "example.com/card": "2", "example.com/broken": "0", "koordinator.sh/gpu": "100"}
            device_class = {"spec": {"extendedResourceName": "example.com/of-a-class"}, "metadata": {"name": "c"}}
            await client.create(DEVICECLASSES, device_class)
            await client.patch(NODES, "n", {"status": {"allocatable": amounts}}, subresource="status")
            for name, node in (("waits", ""), ("runs", "n")):
                # under its former name, and what a DeviceClass stands for: somebody offers them
                good = ("kubernetes.io/gpu", "example.com/of-a-class", "deviceclass.resource.kubernetes.io/c", "koordinator.sh/gpu.shared")
                for resource in (*good, "example.com/card", "example.com/broken", "example.com/none"):
                    requests = {resource: "1", "cpu": "1"}
                    container = {"name": "main", "image": "i", "resources": {"requests": requests, "limits": requests}}
                    spec = {"containers": [container], **({"nodeName": node} if node else {})}
                    await client.create(PODS, {"metadata": {"name": f"{name}-{resource.partition('/')[2]}"}, "spec": spec}, "default")
            facts = await cluster.gather(client, namespace="koordinator-system", roles=())
            return [one for one in judge_cluster.judge(facts) if one.area == "pending pods"]

    assert [one.message for one in asyncio.run(main())] == [
        "no node offers example.com/broken, which default/waits-broken request",
        "no node offers example.com/none, which default/waits-none request",
    ]


def test_a_sandbox_is_not_asked_for_what_it_does_without() -> None:
    facts = good_cluster()
    facts.sandbox, facts.leases, facts.own_node_policy = True, {"koordinator-manager": None}, False
    facts.powers, facts.nodes = {"koordlet": ((NODES_PROXY,), "")}, [NodeFacts("sim-000", error="HTTP 404")]
    told = list(judge_cluster.judge(facts))
    assert bad(told) == []
    assert [one.area for one in told].count("sandbox") == 1


@pytest.mark.parametrize(("installed", "level"), [(None, Level.WARN), ([], Level.FAIL)])
def test_a_server_that_refuses_nobody_is_told_once(installed: list[Any] | None, level: Level) -> None:
    facts = good_cluster()
    facts.unguarded, facts.installed = True, installed
    assert [(one.area, one.level) for one in bad(list(judge_cluster.judge(facts)))] == [("authorization", level)]


def test_nobody_is_asked_about_first() -> None:
    """The embedded API server lets everybody do everything."""

    async def run() -> ClusterFacts:
        async with running_server() as server, server.client() as client:
            return await cluster.gather(client, namespace="koordinator-system", roles=("koordlet",), security=True)

    facts = asyncio.run(run())
    assert facts.unguarded
    assert facts.powers == {}
