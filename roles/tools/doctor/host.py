"""Looking at a machine: its files below a host root, and, on the machine itself, the kernel and the container runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from koord.process.unixsocket import target
from roles.koordlet.eviction.kill import SOCKETS
from roles.koordlet.hooks.cookies import Prctl
from roles.koordlet.host.cgroup import CgroupVersion, cpu_hierarchy, detect_driver, detect_version
from roles.koordlet.host.cgroup_files import TABLE
from roles.koordlet.host.errors import HostError, ParseError
from roles.koordlet.host.namespaces import runs
from roles.koordlet.host.proc import cpuinfo
from roles.koordlet.host.psi import parse_psi
from roles.koordlet.host.psitrigger import PressureTrigger
from roles.koordlet.host.root import HostRoot, PathEscapeError
from roles.koordlet.selftest import blocked, general
from roles.koordlet.states.driver import kubelet_driver, kubelet_pid
from roles.tools.doctor import hookservers
from roles.tools.doctor.facts import HostFacts, Socket

KUBELET_PORT = 10250
CRI_TIMEOUT = 5.0
FEATURES = {
    "cfs_burst": "cpu.cfs_burst_us",
    "cpu_idle": "cpu.idle",
    "bvt": "cpu.bvt_warp_ns",
    "memcg_wmark": "memory.wmark_ratio",
}
"""Feature -> the agent's name for the cgroup file that shows it."""


def machine_at(path: str) -> HostRoot:
    """The machine below a path. Where single directories of it are mounted there, as in koordlet's pod, its /proc is this process's own."""
    root = HostRoot.at(path)
    return root if os.path.isdir(f"{root.proc}/sys") or not os.path.ismount(root.sys) else root.with_dirs(proc="/proc")


async def gather(root: HostRoot) -> HostFacts:
    """Everything about the machine below `root`. Nothing is changed: a pressure trigger is armed and taken away again."""
    live = root.root == "/"
    version, error = _version(root)
    sample = _sample(root, version) if version is not None else None
    proxy = _path(root.var_run_path, hookservers.PROXY)
    refused = _trigger(root) if live else ""
    return HostFacts(
        live=live,
        superuser=not live or os.geteuid() == 0,
        kernel=_read(_path(root.proc_path, "sys/kernel/osrelease")).strip() or (os.uname().release if live else ""),
        cgroup_version=int(version) if version is not None else None,
        cgroup_error=error,
        cgroup_writable=os.access(cpu_hierarchy(root, version), os.W_OK) if version is not None else None,
        controllers=_controllers(root, version),
        driver_of_tree=_driver(root, version),
        driver_of_kubelet=kubelet_driver(root, KUBELET_PORT),
        files=_features(root, version, sample),
        core_scheduling=_core_scheduling() if live else None,
        blocked=blocked(general, root) if live or runs(root) else {},
        pressure={name: _pressure(root, name) for name in ("cpu", "memory", "io")},
        cgroup_pressure=_cgroup_pressure(root, version, sample),
        pressure_trigger=not refused if live else None,
        trigger_error=refused,
        cpu_flags=_cpu_flags(root),
        resctrl_known="resctrl" in _read(_path(root.proc_path, "filesystems")).split(),
        resctrl_mounted=_exists(_path(root.resctrl_path, "schemata")),
        resctrl_features=frozenset(_names(_path(root.resctrl_path, "info"))),
        sockets=tuple([await _ask(runtime, path, live=live) for runtime, path in _sockets(root)]),
        runtime_proxy=await _ask("koord", proxy, live=live) if _exists(proxy) else None,
        hook_sockets=await hookservers.gather(root, live=live),
        kubelet_listens=kubelet_pid(root, KUBELET_PORT) is not None,
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _path(find: Callable[..., str], *parts: str) -> str:
    """A path of the machine; "", which nothing is at, where a link would lead out of its root."""
    try:
        return find(*parts)
    except PathEscapeError:
        return ""


def _exists(path: str) -> bool:
    return os.path.exists(path)


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _version(root: HostRoot) -> tuple[CgroupVersion | None, str]:
    try:
        return detect_version(root), ""
    except HostError as error:
        return None, str(error)


def _driver(root: HostRoot, version: CgroupVersion | None) -> str | None:
    driver = detect_driver(root, version) if version is not None else None
    return str(driver) if driver is not None else None


def _controllers(root: HostRoot, version: CgroupVersion | None) -> frozenset[str]:
    if version is CgroupVersion.V2:
        return frozenset(_read(_path(root.cgroup_path, "cgroup.controllers")).split())
    return frozenset(name for entry in _names(root.cgroup) for name in entry.split(",")) if version is not None else frozenset()


def _sample(root: HostRoot, version: CgroupVersion) -> str | None:
    """A cgroup below the root: kubepods if it is there. The root itself, which lacks most files on v2, only on v1 and without any."""
    base = cpu_hierarchy(root, version)
    for name in ("kubepods.slice", "kubepods", "system.slice", *_names(base)):
        if os.path.isdir(os.path.join(base, name)):
            return name
    return "" if version is CgroupVersion.V1 else None


def _file(root: HostRoot, version: CgroupVersion, directory: str, resource: str) -> bool:
    row = TABLE[resource]
    spec = row.v1 if version is CgroupVersion.V1 else row.v2
    if spec is None:
        return False
    base = _path(root.cgroup_path, spec.subsystem) if version is CgroupVersion.V1 or spec.v1_layout else root.cgroup
    places = (directory, "") if version is CgroupVersion.V1 else (directory,)
    return any(os.path.exists(os.path.join(base, place, spec.file)) for place in places)


def _features(root: HostRoot, version: CgroupVersion | None, sample: str | None) -> dict[str, bool]:
    if version is None or sample is None:
        return {}
    found = {feature: _file(root, version, sample, resource) for feature, resource in FEATURES.items()}
    # Some kernels have group identity behind a switch, and no file before it is on.
    found["bvt"] = found["bvt"] or os.path.exists(_path(root.proc_path, "sys/kernel/sched_group_identity_enabled"))
    return found


def _core_scheduling() -> bool:
    try:
        Prctl().get(0)
    except (OSError, AttributeError):
        return False
    return True


def _pressure(root: HostRoot, name: str) -> str:
    path = _path(root.proc_path, "pressure", name)
    try:
        parse_psi(path, Path(path).read_bytes())
    except ParseError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _cgroup_pressure(root: HostRoot, version: CgroupVersion | None, sample: str | None) -> bool | None:
    if version is None or sample is None:
        return None
    base = root.cgroup if version is CgroupVersion.V2 else _path(root.cgroup_path, "cpuacct")
    return any(os.path.exists(os.path.join(base, sample, f"{name}.pressure")) for name in ("cpu", "memory", "io"))


def _trigger(root: HostRoot) -> str:
    """Why the kernel takes no trigger from us; "" when it does."""
    trigger = PressureTrigger(_path(root.proc_path, "pressure/cpu"))
    try:
        trigger.install()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    else:
        return ""
    finally:
        trigger.close()


def _cpu_flags(root: HostRoot) -> frozenset[str]:
    try:
        return frozenset(cpuinfo(Path(_path(root.proc_path, "cpuinfo")).read_bytes()).flags)
    except (OSError, HostError):
        return frozenset()


def _sockets(root: HostRoot) -> Iterator[tuple[str, str]]:
    for runtime, names in SOCKETS.items():
        path = next((path for name in names if os.path.exists(path := _path(root.var_run_path, name))), None)
        if path is not None:
            yield runtime, path


async def _ask(runtime: str, path: str, *, live: bool) -> Socket:
    """Version of the CRI; a socket in a tree of files is only seen."""
    if not live:
        return Socket(runtime, path)
    import grpc
    from grpc import aio

    from koord.protocols import cri_pb2

    async with aio.insecure_channel(target(path)) as channel:
        call = channel.unary_unary(
            "/runtime.v1.RuntimeService/Version",
            request_serializer=cri_pb2.VersionRequest.SerializeToString,
            response_deserializer=cri_pb2.VersionResponse.FromString,
        )
        try:
            answer = await call(cri_pb2.VersionRequest(version="v1"), timeout=CRI_TIMEOUT)
        except grpc.RpcError as error:
            return Socket(runtime, path, error=f"{error.code().name}: {error.details()}")
    return Socket(runtime, path, answer=f"{answer.runtime_name} {answer.runtime_version}".strip())
