"""What koordlet uses of a machine, by feature: the one table behind the DaemonSet, the systemd unit and docs/host.md. Tests compare them.

A row without `privileged` works as installed. Capabilities are those of the unit and of the DaemonSet.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the machine in the container, below --host-root=/host. `made`: created where it is missing."""

    name: str
    path: str
    writable: bool = False
    made: bool = False
    follows: bool = False
    """Mounts that the machine makes there later are seen, too; they are writable although the directory itself is not."""


@dataclass(frozen=True, slots=True)
class Right:
    """One row: who needs what, and what is without it. `capabilities` without CAP_."""

    feature: str
    needs: str
    without: str
    capabilities: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    privileged: bool = False


_SYS = Mount("sys", "/sys", follows=True)
_CGROUP = Mount("cgroup", "/sys/fs/cgroup", writable=True, follows=True)
_KUBELET = Mount("kubelet", "/var/lib/kubelet")
_RUN = Mount("run-koordlet", "/var/run/koordlet", writable=True, made=True)
_LOG = Mount("log", "/var/log/koordlet", writable=True, made=True)
_STATE = Mount("state", "/var/lib/koordlet", writable=True, made=True)
_CONTAINERD = Mount("run-containerd", "/var/run/containerd", made=True)
_CRIO = Mount("run-crio", "/var/run/crio", made=True)
_NRI = Mount("run-nri", "/var/run/nri", made=True)
_HOOKS = Mount("hooks", "/etc/runtime/hookserver.d", writable=True, made=True)

RIGHTS: tuple[Right, ...] = (
    Right(
        "measuring, NodeMetric, topology",
        "to read `/proc`, `/sys`, the cgroup tree, `/var/lib/kubelet/cpu_manager_state`",
        "what cannot be read is named in the log once, and not reported",
        mounts=(_SYS, _KUBELET, _STATE),
    ),
    Right(
        "knowing the kubelet", "to read `/var/lib/kubelet/pki`, or `--kubelet-ca-file`", "its pods are not asked for", mounts=(_KUBELET,)
    ),
    Right("the lock, the journal, audit", "`/var/run/koordlet` and `/var/log/koordlet` writable", "it does not start", mounts=(_RUN, _LOG)),
    Right(
        "`BECPUSuppress`, `CPUBurst`, `CgroupReconcile`, `BlkIOReconcile`, `BatchResource`, `CPUSetAllocator`, `GroupIdentity`",
        "root, the cgroup tree writable",
        "",
        mounts=(_CGROUP,),
    ),
    Right("`RdtResctrl`", "root, `/sys/fs/resctrl` mounted by the machine and writable", "unsupported on this node", mounts=(_SYS,)),
    Right("`CPICollector`", "`CAP_PERFMON` (Linux 5.8 and later)", "no cycles per instruction", ("PERFMON",)),
    Right(
        "pressure triggers",
        "`CAP_SYS_RESOURCE` for windows below two seconds",
        "the counters are read instead, ten times a second",
        ("SYS_RESOURCE",),
    ),
    Right("`CoreSched`", "`CAP_SYS_PTRACE`, and no AppArmor profile against it", "pods share no cookie", ("SYS_PTRACE",)),
    Right(
        "finding the kubelet's cgroup driver while no pod runs",
        "`CAP_SYS_PTRACE`, the machine's process namespace",
        "`systemd` is taken after a minute",
        ("SYS_PTRACE",),
    ),
    Right("`OOMScoreAdj` below what a process had", "`CAP_SYS_RESOURCE`", "the process keeps its score", ("SYS_RESOURCE",)),
    Right("`TCNetworkQoS`", "`CAP_NET_ADMIN`, the machine's network, `tc`, `ipset`, `iptables`", "no network QoS", ("NET_ADMIN",)),
    Right(
        "evictions",
        "the Eviction API; the runtime's socket, unless `--only-evict-by-api`",
        "",
        mounts=(_CONTAINERD, _CRIO),
    ),
    Right(
        "runtime hooks",
        "the directory `/etc/runtime/hookserver.d` and koordlet's socket, or the NRI socket",
        "values come a moment later",
        mounts=(_HOOKS, _RUN, _NRI),
    ),
    Right(
        "`RdtResctrl` where resctrl is not mounted; `CPICollector` before Linux 5.8",
        "`CAP_SYS_ADMIN`",
        "as without the feature",
        privileged=True,
    ),
    Right(
        "`SystemConfig`, the kernel's switch for `GroupIdentity`",
        "root, `/proc/sys/vm`, `/proc/sys/kernel` writable",
        "the knob is left alone",
        privileged=True,
    ),
    Right("volume groups in `blkioQOS`", "`vgs`, `lvs`, read access to block devices", "the block is skipped", privileged=True),
    Right(
        "`Accelerators`",
        "`/dev/nvidia*` for NVML, or files in `--xpu-device-infos-dir`; `koord device-daemon`, which writes those, `CAP_SYS_CHROOT`",
        "no Device object",
        privileged=True,
    ),
    Right("`TerwayQoS`", "`/var/lib/terway/qos` writable", "no files for Terway", privileged=True),
    Right(
        "`PodResourcesProxy`",
        "its directory writable, the kubelet's PodResources socket",
        "agents see the kubelet's devices",
        privileged=True,
    ),
)


def capabilities() -> tuple[str, ...]:
    """Those of the DaemonSet as installed and of the systemd unit, without CAP_."""
    return tuple(dict.fromkeys(name for right in RIGHTS for name in right.capabilities))


def mounts() -> tuple[Mount, ...]:
    """The machine's directories that the DaemonSet has as installed."""
    return tuple(dict.fromkeys(mount for right in RIGHTS for mount in right.mounts))


def table() -> str:
    """The rows as docs/host.md has them."""
    lines = ["| Feature | Needs | Without it | DaemonSet |", "| --- | --- | --- | --- |"]
    for right in RIGHTS:
        where = "`koordlet-privileged`" if right.privileged else "as installed"
        lines.append(f"| {right.feature} | {right.needs} | {right.without} | {where} |")
    return "\n".join(lines) + "\n"
