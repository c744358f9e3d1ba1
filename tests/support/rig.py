"""A whole cluster of one node, on a machine of its own: etcd, control plane, containerd and kubelet, as a distribution sets them up.

KOORD_KUBERNETES names the directory of Kubernetes' programs (`packaging/kubernetes.sh` makes it). Pods have a network of their own (CNI's
bridge) and find the API server at the address of its Service, which is one of the node's, so that no kube-proxy is needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.roles.runtime_proxy.support_containerd import IMAGE, image_tar
from tests.support import patience
from tests.support.authority import Authority, signing_key
from tests.support.machine import Machine, machine
from tests.support.machine_init import ADDRESS
from tests.support.real_kubelet import CONTAINERD17, NODE

Obj = dict[str, Any]
SERVICE = "10.96.0.1"
URL = f"https://{SERVICE}:443"
PKI, CONFIG = "/etc/kubernetes/pki", "/etc/kubernetes"
ADMIN = f"{CONFIG}/admin.conf"
CNI_PROGRAMS = "/usr/lib/cni"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
_CONTAINERD = """\
version = 2
oom_score = 0
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  sandbox_image = "{image}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
[plugins."io.containerd.nri.v1.nri"]
  disable = false
"""
_NETWORK = {
    "cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "hairpinMode": True,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]]}},
    ],
}  # fmt: skip


def programs() -> Path:
    """Where Kubernetes' programs are; the test is skipped, with the reason, where something is missing."""
    given = os.environ.get("KOORD_KUBERNETES")
    if not given:
        pytest.skip("needs Kubernetes' programs: make rig")
    found = Path(given)
    for name in PROGRAMS:
        if not (found / name).exists():
            pytest.skip(f"needs {name} in KOORD_KUBERNETES={given}")
    if not (CONTAINERD17 / "containerd").exists():
        pytest.skip("needs containerd 1.7: run tests/support/containerd17.sh")
    if not Path(CNI_PROGRAMS, "bridge").exists():
        pytest.skip(f"needs CNI's programs in {CNI_PROGRAMS} (containernetworking-plugins)")
    for name in ("etcd", "kubectl", "runc", "busybox"):
        if shutil.which(name) is None:
            pytest.skip(f"needs {name} on PATH")
    return found


@dataclass
class Rig:
    """The cluster, for its administrator."""

    machine: Machine

    def kubectl(self, *arguments: str, check: bool = True, limit: float = 60, **more: Any) -> str:
        done = self.machine.run("kubectl", f"--kubeconfig={ADMIN}", *arguments, limit=limit, **more)
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def get(self, *arguments: str) -> Obj:
        """An object or a list; {} where there is none."""
        text = self.kubectl("get", *arguments, "-o", "json", check=False)
        found: Obj = json.loads(text) if text else {}
        return found

    def items(self, *arguments: str) -> list[Obj]:
        return list(self.get(*arguments).get("items") or ())

    def apply(self, *objects: Obj, server_side: bool = False) -> str:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        return self.kubectl("apply", *(["--server-side"] if server_side else []), "-f", "-", input=text, limit=120)

    def until(self, met: Callable[[], Any], what: str, seconds: float = 60, *, told: Callable[[], str] | None = None) -> Any:
        """Wait until it is met; what it gave. On failure `told` and what each daemon logged last."""
        end = time.monotonic() + patience.seconds(seconds)
        while not (found := met()):
            for name, child in self.machine.children.items():
                assert child.poll() is None, f"{name} has ended: {self.machine.log(name)[-2000:]}"
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {seconds:g} s, times {patience.slowness()}. {told() if told else ''}")
            time.sleep(0.3)
        return found

    def pods(self) -> str:
        """For messages: what there is, and what happened last."""
        return self.kubectl("get", "pods", "-A", "-o", "wide", check=False) + "\n".join(
            self.kubectl("get", "events", "-A", "--sort-by=.lastTimestamp", check=False).splitlines()[-30:]
        )

    def ctr(self, *arguments: str) -> list[str]:
        """The node's containerd, as a command of this machine."""
        return self.machine.command(str(CONTAINERD17 / "ctr"), "-n", "k8s.io", *arguments)


@contextlib.contextmanager
def rig() -> Iterator[Rig]:
    """The cluster with its node Ready; ended with everything in it."""
    binaries = programs()
    with machine([SERVICE]) as node:
        cluster = Rig(node)
        _credentials(node)
        _control_plane(cluster, binaries)
        _runtime(cluster)
        _kubelet(cluster, binaries)
        yield cluster


def _credentials(node: Machine) -> None:
    authority = Authority()
    node.write(f"{PKI}/ca.crt", authority.certificate)
    node.write(f"{PKI}/sa.key", signing_key())
    server = authority.issue(
        "kube-apiserver", names=["kubernetes", "kubernetes.default", "kubernetes.default.svc", SERVICE, ADDRESS, "127.0.0.1"]
    )
    users = {
        "admin": ("kubernetes-admin", "system:masters"), "kubelet": (f"system:node:{NODE}", "system:nodes"),
        "controller-manager": ("system:kube-controller-manager", ""), "scheduler": ("system:kube-scheduler", ""),
        "kubelet-client": ("kube-apiserver-kubelet-client", "system:masters"),
    }  # fmt: skip
    for name, pair in {"apiserver": server, **{name: authority.issue(*user) for name, user in users.items()}}.items():
        node.write(f"{PKI}/{name}.crt", pair.certificate)
        node.write(f"{PKI}/{name}.key", pair.key)
    for name in users:
        content = {
            "apiVersion": "v1", "kind": "Config", "current-context": "rig",
            "clusters": [{"name": "rig", "cluster": {"server": URL, "certificate-authority": f"{PKI}/ca.crt"}}],
            "users": [{"name": name, "user": {"client-certificate": f"{PKI}/{name}.crt", "client-key": f"{PKI}/{name}.key"}}],
            "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": name}}],
        }  # fmt: skip
        node.write(f"{CONFIG}/{name}.conf", json.dumps(content))


def _control_plane(cluster: Rig, binaries: Path) -> None:
    node = cluster.machine
    node.start("etcd", "etcd", "--data-dir=/var/lib/etcd", "--unsafe-no-fsync")
    node.start(
        "kube-apiserver", str(binaries / "kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379", "--allow-privileged=true",
        f"--bind-address={SERVICE}", "--secure-port=443", f"--advertise-address={SERVICE}", "--service-cluster-ip-range=10.96.0.0/24",
        f"--tls-cert-file={PKI}/apiserver.crt", f"--tls-private-key-file={PKI}/apiserver.key", f"--client-ca-file={PKI}/ca.crt",
        f"--kubelet-client-certificate={PKI}/kubelet-client.crt", f"--kubelet-client-key={PKI}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-signing-key-file={PKI}/sa.key",
        f"--service-account-key-file={PKI}/sa.key", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
        # Services are resolved to pods, as kube-proxy would
        "--enable-aggregator-routing=true",
    )  # fmt: skip
    cluster.until(lambda: cluster.kubectl("get", "--raw=/readyz", check=False) == "ok", "the API server is ready", 60,
                  told=lambda: node.log("kube-apiserver")[-2000:])  # fmt: skip
    for name, more in (
        ("controller-manager", [f"--root-ca-file={PKI}/ca.crt", f"--service-account-private-key-file={PKI}/sa.key",
                                "--use-service-account-credentials=true"]),
        ("scheduler", []),
    ):  # fmt: skip
        files = [f"--{part}kubeconfig={CONFIG}/{name}.conf" for part in ("", "authentication-", "authorization-")]
        node.start(f"kube-{name}", str(binaries / f"kube-{name}"), *files, "--leader-elect=false", *more)


def _runtime(cluster: Rig) -> None:
    node = cluster.machine
    node.write("/etc/containerd/config.toml", _CONTAINERD.format(image=IMAGE, cni=CNI_PROGRAMS, runc=shutil.which("runc")))
    node.write("/etc/cni/net.d/10-pods.conflist", json.dumps(_NETWORK))
    node.start("containerd", "env", f"PATH={CONTAINERD17}:{os.environ['PATH']}", str(CONTAINERD17 / "containerd"))
    image_tar(node.path("/tmp/image.tar"), IMAGE)
    answers = partial(subprocess.run, cluster.ctr("version"), capture_output=True, check=False)
    cluster.until(lambda: answers().returncode == 0, "containerd answers", 30, told=lambda: node.log("containerd")[-2000:])
    subprocess.run(cluster.ctr("images", "import", "/tmp/image.tar"), capture_output=True, check=True)


def _kubelet(cluster: Rig, binaries: Path) -> None:
    node = cluster.machine
    never = dict.fromkeys(("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "pid.available"), "0%")
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": f"{PKI}/ca.crt"}},
        "authorization": {"mode": "Webhook"}, "cgroupDriver": "cgroupfs", "failCgroupV1": False, "failSwapOn": False,
        # what this machine does not let its root do, or what would be the outer machine's
        "oomScoreAdj": 0, "makeIPTablesUtilChains": False, "evictionHard": never, "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False, "resolvConf": "", "clusterDNS": ["10.96.0.10"],
    }  # fmt: skip
    node.write("/var/lib/kubelet/config.yaml", json.dumps(configuration))
    node.start("kubelet", str(binaries / "kubelet"), "--config=/var/lib/kubelet/config.yaml", f"--kubeconfig={CONFIG}/kubelet.conf",
               f"--hostname-override={NODE}", f"--node-ip={ADDRESS}", "--v=2")  # fmt: skip
    cluster.until(lambda: condition(cluster.get("node", NODE), "Ready") == "True", "the node is Ready", 90,
                  told=lambda: node.log("kubelet")[-3000:])  # fmt: skip


def condition(found: Obj, kind: str) -> str:
    """The status of a condition, "" where there is none."""
    return next((str(one["status"]) for one in (found.get("status") or {}).get("conditions") or () if one["type"] == kind), "")
