"""What koordlet uses of a machine, by feature: the one table that the DaemonSet, its components, its NetworkPolicy, the systemd unit and
docs/host.md are generated from (`make rights`).

A row without `component` works as installed. No row makes the container privileged: what cannot be had without it is for the unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


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
class Port:
    """A port of the container by its name in the manifest."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Right:
    """One row: who needs what, and what is without it. `capabilities` without CAP_."""

    feature: str
    needs: str
    without: str
    capabilities: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    ports: tuple[Port, ...] = ()
    component: str = ""
    """Folder of configs/components that gives it."""
    arguments: tuple[str, ...] = ()
    """Flags that the component adds."""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    runtime_class: str = ""
    unit_only: bool = False
    """A container that is not privileged cannot have it: koordlet as a unit of systemd can."""


_SYS = Mount("sys", "/sys", follows=True)
_CGROUP = Mount("cgroup", "/sys/fs/cgroup", writable=True, follows=True)
_KUBELET = Mount("kubelet", "/var/lib/kubelet")
_RUN = Mount("run-koordlet", "/var/run/koordlet", writable=True, made=True)
_LOG = Mount("log", "/var/log/koordlet", writable=True, made=True)
_STATE = Mount("state", "/var/lib/koordlet", writable=True, made=True)
_CONTAINERD = Mount("run-containerd", "/var/run/containerd", made=True)
_CRIO = Mount("run-crio", "/var/run/crio", made=True)
_NRI = Mount("run-nri", "/var/run/nri", made=True)
_PROC = Mount("proc", "/proc", writable=True)
_KERNEL = Mount("sys-kernel", "/sys/kernel", writable=True, follows=True)
_TERWAY = Mount("terway", "/var/lib/terway/qos", writable=True)
_PLUGINS = Mount("kubelet-plugins", "/var/lib/kubelet/plugins_registry", writable=True)
_CDI = Mount("cdi", "/var/run/cdi", writable=True, made=True)
_ETC_CDI = Mount("etc-cdi", "/etc/cdi", made=True)
_HOOKS = Mount("hooks", "/etc/runtime/hookserver.d", writable=True, made=True)

RIGHTS: tuple[Right, ...] = (
    Right(
        "measuring, NodeMetric, topology",
        "to read `/proc`, `/sys`, the cgroup tree, `/var/lib/kubelet/cpu_manager_state`",
        "what cannot be read is named in the log once, and not reported",
        mounts=(_SYS, _KUBELET, _STATE),
    ),
    Right(
        "knowing the kubelet",
        "to read `/var/lib/kubelet/pki`, or `--kubelet-ca-file`",
        "its pods are unknown",
        mounts=(_KUBELET,),
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
    Right("metrics, configuration, decisions, `koord why`", "a port of the node", "no client can query it", ports=(Port("http", 9316),)),
    Right(
        "`PodResourcesProxy`",
        "its directory writable (below `/var/run/koordlet`), the kubelet's PodResources socket",
        "agents see the kubelet's devices",
        mounts=(_RUN, _KUBELET),
    ),
    Right(
        "`Accelerators` from files",
        "files in `--xpu-device-infos-dir`, which `koord device-daemon` writes (that needs `CAP_SYS_CHROOT`)",
        "no Device object",
        mounts=(_RUN,),
    ),
    Right(
        "`Accelerators` from NVIDIA's driver",
        "the container runtime's class `nvidia`, which brings NVML and `/dev/nvidia*`",
        "no Device object",
        component="koordlet-gpu",
        environment={"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"},
        runtime_class="nvidia",
    ),
    Right(
        "`DRAPlugin`",
        "the kubelet's directory of plugins and `/var/run/cdi` writable, `/etc/cdi`; ClusterRole `koordlet-resource-claims`",
        "pods with claims for driver `koordinator.sh` do not start",
        mounts=(_PLUGINS, _CDI, _ETC_CDI),
        component="koordlet-claims",
    ),
    Right(
        "`SystemConfig`, `ColdPageCollector`, the kernel's switch for `GroupIdentity`",
        "root, `/proc/sys/vm`, `/proc/sys/kernel`, `/sys/kernel` writable",
        "the knob is left alone",
        mounts=(_PROC, _KERNEL),
        component="koordlet-kernel",
        arguments=("--proc-root-dir=/host/proc",),
    ),
    Right("`CPICollector` before Linux 5.8", "`CAP_SYS_ADMIN`", "no cycles per instruction", ("SYS_ADMIN",), component="koordlet-old-perf"),
    Right("`TerwayQoS`", "`/var/lib/terway/qos` writable", "no files for Terway", mounts=(_TERWAY,), component="koordlet-terway"),
    Right(
        "`RdtResctrl` where resctrl is not mounted",
        "`CAP_SYS_ADMIN` among the machine's mounts; a line in `/etc/fstab` spares it",
        "unsupported on this node",
        unit_only=True,
    ),
    Right("volume groups in `blkioQOS`", "`vgs`, `lvs`, read access to block devices", "the block is skipped", unit_only=True),
)

COMPONENTS: tuple[str, ...] = tuple(dict.fromkeys(right.component for right in RIGHTS if right.component))
"""Folders of configs/components that give more than what is installed."""


def _installed(component: str) -> Iterable[Right]:
    return (right for right in RIGHTS if right.component == component and not right.unit_only)


def capabilities(component: str = "") -> tuple[str, ...]:
    """Those of the DaemonSet as installed and of the systemd unit, without CAP_; or those that a component adds."""
    return tuple(dict.fromkeys(name for right in _installed(component) for name in right.capabilities))


def mounts(component: str = "") -> tuple[Mount, ...]:
    """The machine's directories that the DaemonSet has as installed, or that a component adds."""
    return tuple(dict.fromkeys(mount for right in _installed(component) for mount in right.mounts))


def ports() -> tuple[Port, ...]:
    """Ports that others reach."""
    return tuple(dict.fromkeys(port for right in RIGHTS for port in right.ports))


def table() -> str:
    """The rows as docs/host.md has them."""
    lines = ["| Feature | Needs | Without it | DaemonSet |", "| --- | --- | --- | --- |"]
    for right in RIGHTS:
        where = "no: a unit of systemd" if right.unit_only else f"`{right.component}`" if right.component else "as installed"
        lines.append(f"| {right.feature} | {right.needs} | {right.without} | {where} |")
    return "\n".join(lines) + "\n"
