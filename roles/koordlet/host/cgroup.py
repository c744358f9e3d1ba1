"""cgroup version, driver and directory names (KLO-SYS-01, KA-FS-01 "path formatting").

Directories are relative to the cgroup root (v2) or to a subsystem's root (v1), without a leading slash, for example
``kubepods.slice/kubepods-besteffort.slice``. What stands inside a directory is in :mod:`roles.koordlet.host.cgroup_files`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Set
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from roles.koordlet.host.cgroup_files import TABLE, Check, FileSpec
from roles.koordlet.host.errors import HostError, HostFileError, ResourceUnsupportedError
from roles.koordlet.host.files import subdirectories
from roles.koordlet.host.root import HostRoot, confine


class CgroupVersion(IntEnum):
    V1 = 1
    V2 = 2


class CgroupDriver(StrEnum):
    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


GUARANTEED, BURSTABLE, BESTEFFORT = "Guaranteed", "Burstable", "BestEffort"
KUBE_QOS = (GUARANTEED, BURSTABLE, BESTEFFORT)

#: Paths that are kept: more than a full node needs. Containers come and go, and nobody says of each that it went.
_MAX_KEPT = 16_384

#: Hierarchies of cgroup v1, one of which a group that exists is in.
_HIERARCHIES = ("cpu", "cpuset", "memory", "blkio")
_RUNTIME_PREFIX = {"docker": "docker", "containerd": "cri-containerd", "pouch": "pouch", "cri-o": "crio"}
RUNTIMES = tuple(_RUNTIME_PREFIX)
_CRIO_NO_SANDBOX = re.compile(r"crio-(conmon-|.*\.scope$)")


def detect_version(root: HostRoot) -> CgroupVersion:
    """v2 exactly if ``cgroup.controllers`` exists under the cgroup root.

    That file exists in the root of every cgroup2 mount and never in a v1 or hybrid tree, so a plain directory can be either.
    A missing cgroup root is a :class:`HostError`.
    """
    if not os.path.isdir(root.cgroup):
        raise HostError(f"cgroup root {root.cgroup} does not exist: mount cgroups there or set --cgroup-root-dir")
    if os.path.exists(os.path.join(root.cgroup, "cgroup.controllers")):
        return CgroupVersion.V2
    return CgroupVersion.V1


def cpu_hierarchy(root: HostRoot, version: CgroupVersion) -> str:
    return os.path.join(root.cgroup, "cpu") if version is CgroupVersion.V1 else root.cgroup


@dataclass(frozen=True, slots=True)
class Layout:
    """How the kubelet names its groups: its driver, and ``cgroupRoot`` of its configuration without slashes around it (kind, k3d)."""

    driver: CgroupDriver
    cgroup_root: str = ""


def detect_layout(root: HostRoot, version: CgroupVersion) -> Layout | None:
    """By the directories that the kubelet made, at the top or else one group below it; None when there are none yet."""
    cpu = cpu_hierarchy(root, version)
    for driver in CgroupDriver:
        if os.path.isdir(os.path.join(cpu, Cgroups(root, version, driver).kubepods)):
            return Layout(driver)
    try:
        tops = subdirectories(cpu)
    except OSError:
        return None
    for top in tops:
        driver, name = (CgroupDriver.SYSTEMD, top[: -len(".slice")]) if top.endswith(".slice") else (CgroupDriver.CGROUPFS, top)
        if name and os.path.isdir(os.path.join(cpu, Cgroups(root, version, driver, name).kubepods)):
            return Layout(driver, name)
    return None


def detect_driver(root: HostRoot, version: CgroupVersion) -> CgroupDriver | None:
    """The driver by the directories that the kubelet made; None when there are none yet."""
    layout = detect_layout(root, version)
    return layout.driver if layout is not None else None


def split_container_id(container_id: str) -> tuple[str, str]:
    """``containerd://abc`` -> ``("containerd", "abc")``. An unknown or missing scheme is a :class:`HostError`."""
    scheme, separator, bare = container_id.partition("://")
    if not separator or not bare or scheme not in _RUNTIME_PREFIX or not {"/", "\0"}.isdisjoint(bare) or bare in {".", ".."}:
        raise HostError(f"container id {container_id!r} is not <runtime>://<id> with a runtime of {', '.join(RUNTIMES)}")
    return scheme, bare


def kube_qos_of_dir(directory: str) -> str:
    """Kubernetes QoS class told by a cgroup path: contains besteffort, burstable, or neither."""
    if "besteffort" in directory:
        return BESTEFFORT
    return BURSTABLE if "burstable" in directory else GUARANTEED


@dataclass(slots=True)
class Cgroups:
    """Where things are in one machine's cgroup tree.

    ``driver`` may be set later (it is unknown until kubepods directories exist or the kubelet was asked); whoever keeps
    directories computed before that must compute them again.
    """

    root: HostRoot
    version: CgroupVersion
    driver: CgroupDriver = CgroupDriver.SYSTEMD
    cgroup_root: str = ""
    """``cgroupRoot`` of the kubelet without slashes around it; kubepods lies below it."""
    _paths: dict[tuple[str, str], str] = field(default_factory=dict, repr=False)
    _dirs: dict[tuple[str, str], str] = field(default_factory=dict, repr=False)
    _aged: tuple[dict[tuple[str, str], str], dict[tuple[str, str], str]] = field(default_factory=lambda: ({}, {}), repr=False)
    """Paths and directories that were in use before the last :meth:`age`."""
    _kubepods_has: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def detect(cls, root: HostRoot) -> Cgroups:
        """Version and, if it can be seen, layout (systemd otherwise)."""
        version = detect_version(root)
        layout = detect_layout(root, version) or Layout(CgroupDriver.SYSTEMD)
        return cls(root, version, layout.driver, layout.cgroup_root)

    @property
    def layout(self) -> Layout:
        return Layout(self.driver, self.cgroup_root)

    def use(self, layout: Layout) -> None:
        """Take another layout; paths and answers that were computed with the old one are forgotten."""
        self.driver, self.cgroup_root = layout.driver, layout.cgroup_root
        self._paths.clear()
        self._dirs.clear()
        self._aged = ({}, {})
        self._kubepods_has.clear()

    def age(self) -> None:
        """Forget the paths that nobody asked for since the last call: groups come and go, and nobody says of each that it went."""
        self._aged = (self._paths, self._dirs)
        self._paths, self._dirs = {}, {}

    def forget(self, directories: Set[str]) -> None:
        """Forget the paths of groups that are gone, a pod's with those of its containers."""
        for table in (self._paths, self._dirs, *self._aged):
            for key in [key for key in table if key[1] in directories]:
                del table[key]

    @property
    def v2(self) -> bool:
        return self.version is CgroupVersion.V2

    # -- names -----------------------------------------------------------------------------------------------------------

    @property
    def kubepods(self) -> str:
        if not self.cgroup_root:
            return "kubepods.slice" if self.driver is CgroupDriver.SYSTEMD else "kubepods"
        if self.driver is CgroupDriver.CGROUPFS:
            return f"{self.cgroup_root}/kubepods"
        # systemd repeats in a slice's name the names of those around it
        parts = [*(part.replace("-", "_") for part in self.cgroup_root.split("/")), "kubepods"]
        return "/".join(f"{'-'.join(parts[: at + 1])}.slice" for at in range(len(parts)))

    @property
    def _stem(self) -> str:
        """What the names of slices below kubepods begin with."""
        return self.kubepods.rpartition("/")[2].removesuffix(".slice")

    def qos_dir(self, kube_qos: str) -> str:
        """Directory of a Kubernetes QoS level; Guaranteed pods live directly under kubepods."""
        if kube_qos == GUARANTEED:
            return self.kubepods
        level = {BURSTABLE: "burstable", BESTEFFORT: "besteffort"}.get(kube_qos)
        if level is None:
            raise HostError(f"Kubernetes QoS class {kube_qos!r} is not one of {', '.join(KUBE_QOS)}")
        if self.driver is CgroupDriver.SYSTEMD:
            return f"{self.kubepods}/{self._stem}-{level}.slice"
        return f"{self.kubepods}/{level}"

    def pod_dir(self, kube_qos: str, uid: str) -> str:
        if not uid or not {"/", "\0"}.isdisjoint(uid) or uid in {".", ".."}:
            raise HostError(f"pod uid {uid!r} cannot name a directory")
        parent = self.qos_dir(kube_qos)
        if self.driver is CgroupDriver.CGROUPFS:
            return f"{parent}/pod{uid}"
        stem = self._stem if kube_qos == GUARANTEED else f"{self._stem}-{kube_qos.lower()}"
        return f"{parent}/{stem}-pod{uid.replace('-', '_')}.slice"

    def container_dir(self, pod_dir: str, container_id: str) -> str:
        """``container_id`` with its scheme (``containerd://…``). CRI-O has its prefix with either driver; a group without it, as upstream
        looks for, counts where it is there."""
        scheme, bare = split_container_id(container_id)
        prefixed, plain = f"{pod_dir}/{_RUNTIME_PREFIX[scheme]}-{bare}", f"{pod_dir}/{bare}"
        if self.driver is CgroupDriver.SYSTEMD:
            return f"{prefixed}.scope"
        return prefixed if scheme == "cri-o" and not self.exists(plain) else plain

    def pod_uid_of(self, basename: str) -> str | None:
        """Pod id from a directory name, as it stands there (systemd: with underscores); None if it is no pod directory."""
        if self.driver is CgroupDriver.CGROUPFS:
            return basename[3:] or None if basename.startswith("pod") else None
        if not basename.endswith(".slice"):
            return None
        for level in ("-besteffort-pod", "-burstable-pod", "-pod"):
            prefix = f"{self._stem}{level}"
            if basename.startswith(prefix):
                return basename[len(prefix) : -len(".slice")] or None
        return None

    def container_id_of(self, basename: str) -> str | None:
        """Bare container id from a directory name; None if it is no container directory."""
        if self.driver is CgroupDriver.CGROUPFS:
            return basename.removeprefix("crio-") or None
        for prefix in ("docker-", "cri-containerd-", "pouch-", "crio-"):
            if basename.startswith(prefix):
                rest = basename[len(prefix) :]
                if rest.endswith(".scope"):
                    return rest[: -len(".scope")] or None
                return (rest or None) if prefix == "crio-" else None
        return None

    def sandbox_dir(self, pod_dir: str, container_dirs: set[str]) -> str:
        """The pod's sandbox directory: the only one under its cpuset directory that no known container owns, nor a monitor of CRI-O's.

        ``container_dirs`` are the directories of all containers, init ones included. None or several candidates are a
        :class:`HostError` (retry later).
        """
        base = self.subsystem_dir("cpuset", pod_dir)
        try:
            names = subdirectories(base)
        except OSError as error:
            raise HostFileError(base, f"cannot be listed: {error.strerror}") from error
        known = {d.rsplit("/", 1)[-1] for d in container_dirs}
        left = [n for n in names if n not in known and not _CRIO_NO_SANDBOX.match(n)]
        if len(left) != 1:
            raise HostError(f"{base}: {len(left)} directories could be the sandbox, exactly one is needed")
        return f"{pod_dir}/{left[0]}"

    def host_app_dir(self, name: str, qos: str, base: str | None, parent_dir: str = "", relative_path: str = "") -> str:
        """Directory of a host application; ``base`` None means that the NodeSLO gives no ``cgroupPath``."""
        if base is None:
            if qos in {"LSE", "LSR", "LS"}:
                return f"host-latency-sensitive/{name}"
            return f"host-best-effort/{name}" if qos == "BE" else name
        bases = {"": "", "CgroupRoot": "", "Kubepods": self.kubepods}
        if base in bases:
            head = bases[base]
        elif base in {"KubepodsBurstable", "KubepodsBesteffort"}:
            head = self.qos_dir(BURSTABLE if base == "KubepodsBurstable" else BESTEFFORT)
        else:
            raise HostError(
                f"host application {name!r}: cgroupPath.base {base!r} is not one of "
                "CgroupRoot, Kubepods, KubepodsBurstable, KubepodsBesteffort"
            )
        return "/".join(p.strip("/") for p in (head, parent_dir, relative_path) if p.strip("/"))

    def exists(self, directory: str) -> bool:
        """Whether the group is there, in any hierarchy."""
        tops = [self.root.cgroup] if self.v2 else [os.path.join(self.root.cgroup, name) for name in _HIERARCHIES]
        return any(os.path.isdir(os.path.join(top, directory)) for top in tops)

    # -- paths -----------------------------------------------------------------------------------------------------------

    def subsystem_dir(self, subsystem: str, directory: str = "") -> str:
        """Absolute directory in a v1 subsystem's hierarchy, or in the unified one. Cached."""
        key = (subsystem, directory)
        path = self._dirs.get(key)
        if path is None:
            if len(self._dirs) >= _MAX_KEPT:
                self._dirs.clear()
            path = self._aged[1].get(key)
            if path is None:
                base = self.root.cgroup if self.v2 else os.path.join(self.root.cgroup, subsystem)
                path = confine(base, directory)
            self._dirs[key] = path
        return path

    def spec(self, resource: str) -> FileSpec:
        """The table row for this cgroup version; :class:`ResourceUnsupportedError` when the version has no such file."""
        row = TABLE.get(resource)
        if row is None:
            raise ResourceUnsupportedError(f"{resource} is not a known cgroup resource")
        spec = row.v2 if self.v2 else row.v1
        if spec is None:
            raise ResourceUnsupportedError(f"{resource} does not exist on cgroup v{int(self.version)}")
        return spec

    def file(self, resource: str, directory: str) -> str:
        """Absolute path of a resource (named by its v1 file, ``cpu.cfs_quota_us``) in a cgroup directory. Cached."""
        key = (resource, directory)
        path = self._paths.get(key)
        if path is None:
            if len(self._paths) >= _MAX_KEPT:
                self._paths.clear()
            path = self._aged[0].get(key)
            if path is None:
                spec = self.spec(resource)
                base = self.root.cgroup if self.v2 and not spec.v1_layout else os.path.join(self.root.cgroup, spec.subsystem)
                path = confine(base, directory, spec.file)
            self._paths[key] = path
        return path

    def pressure_file(self, resource: str, directory: str) -> str:
        """Absolute path of a pressure file (``cpu.pressure``). On v1 it is beside the CPU accounting where the kernel puts it there, else
        in the unified hierarchy of a hybrid machine."""
        path = self.file(resource, directory)
        if self.v2 or os.path.exists(path):
            return path
        hybrid = confine(os.path.join(self.root.cgroup, "unified"), directory, resource)
        return hybrid if os.path.exists(hybrid) else path

    def has_pressure(self, resource: str) -> bool:
        """Whether the kernel tells the pressure of single groups."""
        return self.supported(resource, "") or os.path.exists(self.pressure_file(resource, self.kubepods))

    def supported(self, resource: str, directory: str) -> bool:
        """Whether the kernel offers the resource, by the table's check.

        A positive answer about kubepods is remembered; a negative one is asked again, because kubepods may appear later.
        """
        try:
            spec = self.spec(resource)
        except ResourceUnsupportedError:
            return False
        match spec.check:
            case Check.ALWAYS:
                return True
            case Check.TARGET:
                return os.path.exists(self.file(resource, directory))
            case Check.ROOT:
                return os.path.exists(self.file(resource, ""))
            case _:
                if resource not in self._kubepods_has and os.path.exists(self.file(resource, self.kubepods)):
                    self._kubepods_has.add(resource)
                # a kernel that has the file in the very directory has it, whoever made kubepods without it
                return resource in self._kubepods_has or os.path.exists(self.file(resource, directory))
