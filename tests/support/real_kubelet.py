"""A real kubelet on a containerd of the test's own: own directories, cgroups and ports; nothing of the machine is changed.

Pods run on the machine's network with the image :data:`IMAGE`, and mount no volumes. KOORD_REAL_KUBELET names the binary.
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

from tests.roles.runtime_proxy.support_containerd import CGROUPS, IMAGE, Containerd, remove_groups, running_containerd, unmount_below
from tests.support import patience, real_apiserver
from tests.support.processes import free_port

Obj = dict[str, Any]
CONTAINERD17 = Path(os.environ.get("KOORD_TEST_CONTAINERD", str(Path.home() / ".cache/koord/containerd"))) / "usr/bin"
NODE = "n1"
#: Settings of the kernel that a kubelet makes: it finds them made, in a mount namespace of its own.
KERNEL = {
    "vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}  # fmt: skip
_RUNTIME = """\
  enable_cdi = true
  cdi_spec_dirs = ["{0}/machine/etc/cdi", "{0}/machine/var/run/cdi"]
"""


@dataclass
class RealKubelet:
    """``machine`` is a tree with what the kubelet and the runtime have of this machine, for koordlet's --host-root."""

    directory: Path
    containerd: Containerd
    port: int
    process: subprocess.Popen[bytes]
    group: str
    start: Callable[[], subprocess.Popen[bytes]]

    def restart(self) -> None:
        """As its service manager would; containers go on."""
        _end(self.process)
        self.process = self.start()

    @property
    def machine(self) -> Path:
        return self.directory / "machine"

    @property
    def root(self) -> Path:
        return self.machine / "var/lib/kubelet"

    def log(self) -> str:
        return (self.directory / "kubelet.log").read_text(errors="replace")


def binary() -> str:
    """The kubelet; the test is skipped, with the reason, where something is missing."""
    program = os.environ.get("KOORD_REAL_KUBELET") or shutil.which("kubelet")
    if not program:
        pytest.skip("needs a kubelet (KOORD_REAL_KUBELET or PATH)")
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if not (CGROUPS / "cpu").is_dir():
        pytest.skip("needs cgroup v1 controllers in /sys/fs/cgroup")
    if not (CONTAINERD17 / "containerd").exists():
        pytest.skip("needs containerd 1.7, for CDI: run tests/support/containerd17.sh")
    for name in ("unshare", "runc"):
        if shutil.which(name) is None:
            pytest.skip(f"needs {name} on PATH")
    return program


@contextlib.contextmanager
def real_kubelet(server: real_apiserver.RealApiServer, *, name: str = NODE, **settings: Any) -> Iterator[RealKubelet]:
    """A node named ``name`` of ``server``; ``settings`` go into the KubeletConfiguration. Everything is removed at exit."""
    program = binary()
    extra = _SANDBOX.format("{0}", shutil.which("runc"))
    with running_containerd(CONTAINERD17, extra, cri=_RUNTIME) as containerd:
        directory = containerd.directory
        machine = directory / "machine"
        group = f"/koord-kubelet-{os.getpid()}-{os.urandom(3).hex()}"
        for path in ("etc/cdi", "var/run/cdi", "var/run/koordlet", "var/lib/kubelet"):
            (machine / path).mkdir(parents=True)
        _make_groups(group, machine)
        kubelet: RealKubelet | None = None
        try:
            port = free_port()
            (directory / "kubelet.yaml").write_text(json.dumps(_configuration(directory, containerd, port, group) | settings))
            start = partial(_start, program, directory, server, name)
            kubelet = RealKubelet(directory, containerd, port, start(), group, start)
            yield kubelet
        finally:
            if kubelet is not None:
                _end(kubelet.process)
            _stop_pods(containerd)
            unmount_below(directory)
            remove_groups(group)


_SANDBOX = """\
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{1}"
"""


def _configuration(directory: Path, containerd: Containerd, port: int, group: str) -> Obj:
    never = dict.fromkeys(("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "pid.available"), "0%")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "containerRuntimeEndpoint": f"unix://{containerd.socket}",
        "failCgroupV1": False, "cgroupDriver": "cgroupfs", "cgroupRoot": group, "enforceNodeAllocatable": ["pods"], "failSwapOn": False,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}}, "authorization": {"mode": "Webhook"},
        "port": port, "healthzPort": 0, "readOnlyPort": 0, "resolvConf": "", "oomScoreAdj": 0,
        "evictionHard": never, "imageGCHighThresholdPercent": 100, "makeIPTablesUtilChains": False, "podLogsDir": str(directory / "logs"),
        "volumePluginDir": str(directory / "volumes"), "nodeStatusUpdateFrequency": "2s", "syncFrequency": "2s",
        "localStorageCapacityIsolation": False, "shutdownGracePeriod": "0s", "registerNode": True,
    }  # fmt: skip


def _make_groups(group: str, machine: Path) -> None:
    """The kubelet's own cgroup root in all hierarchies, and a tree of links that shows it as the top of a machine."""
    (machine / "sys/fs/cgroup").mkdir(parents=True)
    for controller in sorted(CGROUPS.iterdir()):
        if controller.is_symlink() or not controller.is_dir():
            continue
        own = controller / group.lstrip("/")
        own.mkdir()
        (machine / "sys/fs/cgroup" / controller.name).symlink_to(own)
    for name in ("cpuset.cpus", "cpuset.mems"):
        text = (CGROUPS / "cpuset" / name).read_text()
        (CGROUPS / "cpuset" / group.lstrip("/") / name).write_text(text)


def _start(program: str, directory: Path, server: real_apiserver.RealApiServer, name: str) -> subprocess.Popen[bytes]:
    kernel = directory / "kernel"
    hidden = []
    for path, value in KERNEL.items():
        (kernel / path).parent.mkdir(parents=True, exist_ok=True)
        (kernel / path).write_text(value + "\n")
        hidden.append(f"mount --bind {kernel / path} /proc/sys/{path}")
    command = [
        program, f"--config={directory}/kubelet.yaml", f"--kubeconfig={server.kubeconfig}",
        f"--root-dir={directory}/machine/var/lib/kubelet",
        f"--cert-dir={directory}/machine/var/lib/kubelet/pki", f"--hostname-override={name}", "--v=4",
    ]  # fmt: skip
    script = " && ".join([*hidden, f"exec {' '.join(command)}"])
    with (directory / "kubelet.log").open("ab") as log:
        return subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdout=log, stderr=log)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(patience.seconds(30))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _stop_pods(containerd: Containerd) -> None:
    """No container of the test outlives it, whatever it ended with."""
    for _ in patience.tries(20):
        tasks = subprocess.run(
            [containerd.program("ctr"), "-a", str(containerd.socket), "-n", "k8s.io", "tasks", "ls", "-q"], capture_output=True, text=True,
            timeout=patience.seconds(20), check=False,
        ).stdout.split()  # fmt: skip
        if not tasks:
            return
        for task in tasks:
            subprocess.run(
                [containerd.program("ctr"), "-a", str(containerd.socket), "-n", "k8s.io", "tasks", "rm", "-f", task], capture_output=True,
                timeout=patience.seconds(20), check=False,
            )  # fmt: skip
        time.sleep(0.2)


def pod(name: str, *, node: str = "", command: str = "sleep 3600", resources: Obj | None = None, claims: list[Obj] | None = None,
        scheduler: str = "koord-scheduler", **spec: Any) -> Obj:  # fmt: skip
    """A pod that this rig can run."""
    container: Obj = {
        "name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", f"trap 'exit 0' TERM; {command} & wait"],
        "resources": dict(resources or {}),
    }  # fmt: skip
    if claims is not None:
        container["resources"]["claims"] = [{"name": one["name"]} for one in claims]
        spec["resourceClaims"] = claims
    content = {
        "schedulerName": scheduler, "hostNetwork": True, "automountServiceAccountToken": False, "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1, "containers": [container], "restartPolicy": "Always", **spec,
    }  # fmt: skip
    if node:
        content["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": content}
