"""GPUEnvInject and RDMADeviceInject: what a container needs to reach its allocated devices (KA-HK-06, KA-HK-07)."""

from __future__ import annotations

import os
import stat
from typing import ClassVar

from koord.api.annotations_scheduling import PodDeviceAllocation
from koord.api.names import (
    DEVICE_TYPE_GPU,
    GPU_ISOLATION_PROVIDER_HAMI_CORE,
    LABEL_GPU_ISOLATION_PROVIDER,
    RESOURCE_GPU_CORE,
    RESOURCE_GPU_MEMORY,
    RESOURCE_GPU_MEMORY_RATIO,
)
from koord.api.quantity import parse_value
from roles.koordlet.hooks.context import Answer, ContainerContext, DeviceNode, Mount, Stage
from roles.koordlet.hooks.hook import Hook, PartialAnswerError
from roles.koordlet.host.root import HostRoot
from roles.koordlet.sensing.rdma import device_files
from roles.koordlet.states.model import Snapshot

VGPU_LOCK = "/tmp/vgpulock"
RDMA = "rdma"


class GPUEnvInject(Hook[None]):
    """Environment of containers with GPUs; with HAMi-core also what limits their share of one."""

    name: ClassVar[str] = "GPUEnvInject"
    container_stages: ClassVar[tuple[Stage, ...]] = (Stage.PRE_CREATE_CONTAINER,)
    request_only: ClassVar[bool] = True

    def container(self, container: ContainerContext, rule: None) -> Answer | None:
        gpus = container.pod.granted().devices.get(DEVICE_TYPE_GPU)
        if not gpus:
            return None
        visible = {"NVIDIA_VISIBLE_DEVICES": ",".join(str(gpu.minor) for gpu in gpus)}
        if container.pod.labels.get(LABEL_GPU_ISOLATION_PROVIDER) != GPU_ISOLATION_PROVIDER_HAMI_CORE:
            return Answer(env=visible)
        resources = gpus[0].resources
        if RESOURCE_GPU_MEMORY_RATIO not in resources:
            raise _lacking(gpus[0], RESOURCE_GPU_MEMORY_RATIO, visible)
        if parse_value(resources[RESOURCE_GPU_MEMORY_RATIO]) >= 100:
            return Answer(env=visible)
        return self._shared(container, gpus[0], visible)

    def _shared(self, container: ContainerContext, gpu: PodDeviceAllocation, env: dict[str, str]) -> Answer:
        if RESOURCE_GPU_MEMORY not in gpu.resources:
            raise _lacking(gpu, RESOURCE_GPU_MEMORY, env)
        library = self.options.hami_core_library_directory_path
        env["CUDA_DEVICE_MEMORY_LIMIT"] = str(parse_value(gpu.resources[RESOURCE_GPU_MEMORY]))
        if RESOURCE_GPU_CORE in gpu.resources:
            env["CUDA_DEVICE_SM_LIMIT"] = str(parse_value(gpu.resources[RESOURCE_GPU_CORE]))
        env["LD_PRELOAD"] = library
        mounts = [Mount(library, library), Mount(VGPU_LOCK, VGPU_LOCK)]
        if self.gate("HamiCoreVGPUMonitor"):
            directory = os.path.dirname(library)
            own = f"{container.pod.uid}_{container.name}"
            env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{directory}/{own}.cache"
            mounts.append(Mount(f"{directory}/containers/{own}", directory, recreated=True))
        return Answer(env=env, mounts=tuple(mounts))


def _lacking(gpu: PodDeviceAllocation, resource: str, visible: dict[str, str]) -> PartialAnswerError:
    """A GPU cannot be shared without knowing how much of it; the container sees no other ones than its own all the same."""
    return PartialAnswerError(f"device-allocated: GPU {gpu.minor} has no {resource}, which HAMi-core needs", Answer(env=visible))


class RDMADeviceInject(Hook[HostRoot]):
    """Device files of allocated RDMA devices. Only NRI can add devices to a container."""

    name: ClassVar[str] = "RDMADeviceInject"
    container_stages: ClassVar[tuple[Stage, ...]] = (Stage.PRE_CREATE_CONTAINER,)
    request_only: ClassVar[bool] = True

    def learn(self, snapshot: Snapshot, rule: HostRoot | None) -> HostRoot:
        return snapshot.host.root

    def container(self, container: ContainerContext, rule: HostRoot | None) -> Answer | None:
        devices = container.pod.granted().devices.get(RDMA)
        if not devices or rule is None:
            return None
        addresses: list[str] = []
        for device in devices:
            functions = [vf.bus_id for vf in device.extension.vfs] if device.extension is not None else []
            addresses += [f for f in functions if f] or [device.id]
        return Answer(devices=tuple(_node(rule, path) for path in device_files(rule, addresses)))


def _node(root: HostRoot, path: str) -> DeviceNode:
    """The numbers stand in sysfs, too, which koordlet sees in a container without the machine's /dev."""
    name = os.path.basename(path)
    kind = "misc" if name == "rdma_cm" else "infiniband_verbs"
    try:
        with open(root.sys_path("class", kind, name, "dev"), encoding="ascii", errors="replace") as file:
            major, _, minor = file.read(32).strip().partition(":")
        return DeviceNode(path, int(major), int(minor))
    except ValueError:
        raise ValueError(f"device {path}: /sys/class/{kind}/{name}/dev is not MAJOR:MINOR") from None
    except OSError:
        return _node_of_file(root, path)


def _node_of_file(root: HostRoot, path: str) -> DeviceNode:
    try:
        found = os.stat(root.path(path))
    except OSError as error:
        raise ValueError(f"device {path}: {error.strerror}") from None
    if not stat.S_ISCHR(found.st_mode):
        raise ValueError(f"device {path} is not a character device")
    return DeviceNode(path, os.major(found.st_rdev), os.minor(found.st_rdev))
