"""From facts about a machine to findings. Pure: broken machines are tried as facts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from roles.tools.doctor import hookservers
from roles.tools.doctor.facts import HostFacts
from roles.tools.doctor.finding import Finding, fail, ok, warn

_NEEDED = {1: ("cpu", "cpuacct", "cpuset", "memory"), 2: ("cpu", "cpuset", "memory")}
_FEATURES = {
    "cfs_burst": ("CPU burst", "CPUBurst falls back to raising quotas; a kernel of 5.14 or later has it"),
    "cpu_idle": ("cpu.idle", "best-effort pods keep a small share instead of none; a kernel of 5.15 or later has it"),
    "bvt": ("group identity (bvt)", "only Anolis kernels have it; elsewhere set cpuPolicy coreSched or rely on shares and suppression"),
    "memcg_wmark": ("memory watermarks of groups", "only Anolis kernels have it; memory QOS works without background reclaim of a group"),
}
_USES = {"cpu_idle": ": recommended for best-effort pods, with cpuSuppressThresholdPercent 100 (docs/koordlet.md, How to run a node hot)"}
_CAT, _MBA, _MONITOR = "cat_l3", "mba", "cqm_mbm_total"


def judge(facts: HostFacts) -> Iterator[Finding]:
    """Every finding about a machine."""
    yield from _kernel(facts)
    yield from _cgroups(facts)
    yield from _pressure(facts)
    yield from _resctrl(facts)
    yield from _runtime(facts)
    yield from hookservers.judge(facts)
    yield from _kubelet(facts)


def _kernel(facts: HostFacts) -> Iterator[Finding]:
    release = re.match(r"(\d+)\.(\d+)", facts.kernel)
    if not facts.superuser:
        yield warn("host", "not run as root: what only root sees is missing below", "run it as root, or in the pod of koordlet")
    if release is None:
        yield warn("kernel", "its version cannot be read", "give the host's root with --host-root")
    elif (int(release[1]), int(release[2])) < (4, 18):
        yield fail("kernel", f"{facts.kernel} is older than 4.18", "upgrade the kernel: cgroups and pressure files of koordlet need it")
    else:
        yield ok("kernel", facts.kernel)
    if facts.cgroup_version is not None and not facts.files:
        yield warn("kernel features", "no cgroup to look at below the root", "start the kubelet first: it makes kubepods")
    for name, present in facts.files.items():
        title, missing = _FEATURES[name]
        there = f"{title}: there{_USES.get(name, '')}"
        yield ok("kernel features", there) if present else warn("kernel features", f"{title}: not there", missing)
    for gate, why in facts.blocked.items():
        yield warn(
            "koordlet's gates",
            f"{gate} cannot work here: {why}",
            "only if the gate is on: give the machine what it lacks, or leave the gate off",
        )
    if facts.core_scheduling is not None:
        title = "core scheduling"
        missing = "needed by cpuPolicy coreSched only: a kernel of 5.14 or later with CONFIG_SCHED_CORE, and hyper-threading on"
        yield ok("kernel features", f"{title}: there") if facts.core_scheduling else warn("kernel features", f"{title}: not there", missing)


def _cgroups(facts: HostFacts) -> Iterator[Finding]:
    if facts.cgroup_version is None:
        yield fail("cgroups", facts.cgroup_error or "not found", "mount cgroups, or name their place with --host-root")
        return
    yield ok("cgroups", f"version {facts.cgroup_version}")
    lacking = [name for name in _NEEDED[facts.cgroup_version] if name not in facts.controllers]
    if lacking:
        how = "enable them on the kernel command line (cgroup_enable=), and in cgroup.subtree_control of the root"
        yield fail("cgroups", f"controllers missing: {', '.join(lacking)}", how)
    if facts.cgroup_writable is False:
        yield fail("cgroups", "are mounted read-only for us", "run as root; in a container mount the host's /sys/fs/cgroup read-write")
    tree, kubelet = facts.driver_of_tree, facts.driver_of_kubelet
    if tree and kubelet and tree != kubelet:
        yield fail(
            "cgroup driver",
            f"the tree was made by {tree}, the kubelet is configured for {kubelet}",
            f"give kubelet (cgroupDriver) and runtime (SystemdCgroup) the same, drain the node and reboot it: {tree} groups stay",
        )
    elif tree or kubelet:
        yield ok("cgroup driver", str(tree or kubelet))
    else:
        yield warn("cgroup driver", "no kubepods group and no kubelet to ask", "start the kubelet; koordlet waits for it")


def _pressure(facts: HostFacts) -> Iterator[Finding]:
    wrong = {name: why for name, why in facts.pressure.items() if why}
    if wrong:
        told = "; ".join(f"{name}: {why}" for name, why in wrong.items())
        yield warn(
            "pressure", f"no pressure files ({told})", "boot with psi=1 (CONFIG_PSI): without it suppression reacts in seconds, not tenths"
        )
        return
    yield ok("pressure", "files of the machine: there")
    if facts.cgroup_pressure is False:
        how = "no pressure of single pods in metrics and interference detection; cgroup v2, or psi_v1=1 on Anolis kernels, has it"
        yield warn("pressure", "groups have no pressure files", how)
    elif facts.cgroup_pressure:
        yield ok("pressure", "files of groups: there")
    if facts.pressure_trigger is False:
        how = "it needs CAP_SYS_RESOURCE, which containers withhold; the files are read at the strategies' intervals instead"
        yield warn("pressure", f"the kernel takes no trigger from us{f': {facts.trigger_error}' if facts.trigger_error else ''}", how)
    elif facts.pressure_trigger:
        yield ok("pressure", "triggers: usable")


def _resctrl(facts: HostFacts) -> Iterator[Finding]:
    able = [name for name in (_CAT, _MBA, _MONITOR) if name in facts.cpu_flags]
    if not facts.resctrl_known or not able:
        why = "the kernel has none" if not facts.resctrl_known else "this CPU has neither cache nor bandwidth allocation"
        yield ok("resctrl", f"not available ({why}): resctrlQOS does nothing here")
    elif not facts.resctrl_mounted:
        yield warn(
            "resctrl", f"not mounted; the CPU has {', '.join(able)}", "mount -t resctrl resctrl /sys/fs/resctrl, before koordlet starts"
        )
    else:
        yield ok("resctrl", f"mounted: {', '.join(sorted(facts.resctrl_features)) or 'no features'}")


def _runtime(facts: HostFacts) -> Iterator[Finding]:
    if not facts.sockets:
        yield fail("container runtime", "no CRI socket was found", "start the runtime, or set --containerd-endpoint of koordlet")
    for socket in facts.sockets:
        if socket.error:
            how = "see that the runtime runs and that its CRI plugin is not disabled (disabled_plugins in config.toml of containerd)"
            yield fail("container runtime", f"{socket.path} does not answer: {socket.error}", how)
        elif socket.answer:
            yield ok("container runtime", f"{socket.path}: {socket.answer}")
        else:
            yield ok("container runtime", f"{socket.path} exists")


def _kubelet(facts: HostFacts) -> Iterator[Finding]:
    if facts.kubelet_pods:
        how = "give koordlet's account `get` on nodes/pods and nodes/configz, and the kubelet webhook authentication and authorization"
        yield fail("kubelet", f"does not list its pods: {facts.kubelet_pods}", how)
    elif facts.kubelet_pods == "":
        yield ok("kubelet", "lists its pods to us")
    elif facts.kubelet_listens:
        yield ok("kubelet", "listens on its port")
    else:
        yield warn("kubelet", "no process listens on port 10250", "start the kubelet; koordlet learns its pods from it")
