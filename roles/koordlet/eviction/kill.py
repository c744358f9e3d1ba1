"""Stopping a pod's containers through the CRI, without grace (KA-EVX-01). gRPC is imported when the first pod is stopped."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from koord.process.unixsocket import path_of, target
from roles.koordlet.host.cgroup import split_container_id
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.root import HostRoot
from roles.koordlet.options import Options
from roles.koordlet.states.model import PodState

if TYPE_CHECKING:
    from grpc import aio

TIMEOUT = 5.0
_METHOD = "/runtime.v1.RuntimeService/StopContainer"

#: Sockets below /var/run by runtime, in the order in which they are tried.
SOCKETS: dict[str, tuple[str, ...]] = {
    "containerd": ("containerd/containerd.sock", "containerd.sock"),
    "cri-o": ("crio/crio.sock", "crio.sock"),
    "docker": ("cri-dockerd.sock", "dockershim.sock"),
    "pouch": ("pouchcri.sock",),
}


class ContainerKiller:
    """Stops containers. One that has ended, or cannot be stopped, does not keep the others running, nor does a runtime that does not answer
    hold up the next eviction for each of them."""

    def __init__(self, root: HostRoot, options: Options) -> None:
        self._root, self._options = root, options

    async def __call__(self, pod: PodState) -> str | None:
        """Stop all containers that run; what went wrong, or None. Sidecars and those of ``kubectl debug`` hold memory, too."""
        declared = [container for container in (*pod.containers, *pod.init_containers) if container.spec is not None]
        running = [container for container in (*declared, *pod.ephemeral_containers) if container.id and container.running]
        if not running:
            return "no container is running"
        channels: dict[str, aio.Channel] = {}
        try:
            said = await asyncio.gather(*(self._stop(each.id, channels) for each in running))
        finally:
            for channel in channels.values():
                await channel.close()
        failures = [f"container {each.name}: {why}" for each, why in zip(running, said, strict=True) if why is not None]
        return "; ".join(failures) or None

    async def _stop(self, container_id: str, channels: dict[str, aio.Channel]) -> str | None:
        """``channels``: those that are open, by socket."""
        from grpc import aio

        try:
            runtime, bare = split_container_id(container_id)
        except HostError as error:
            return str(error)
        socket = self._socket(runtime)
        if socket is None:
            return f"no CRI socket of {runtime} was found"
        if socket not in channels:
            channels[socket] = aio.insecure_channel(target(socket))
        return await _stop(channels[socket], bare)

    def _socket(self, runtime: str) -> str | None:
        """Where the CRI of a runtime is: as given by flag, else the first well-known socket that exists."""
        if given := getattr(self._options, f"{runtime}_endpoint", ""):
            return path_of(given)
        paths = (self._root.var_run_path(name) for name in SOCKETS.get(runtime, ()))
        return next(filter(os.path.exists, paths), None)


async def _stop(channel: aio.Channel, container_id: str) -> str | None:
    import grpc

    from koord.protocols import cri_pb2

    # the message has no timeout field here: absent means 0, stop at once
    request = cri_pb2.StopContainerRequest(container_id=container_id).SerializeToString()
    call = channel.unary_unary(_METHOD, request_serializer=lambda x: x, response_deserializer=lambda x: x)
    try:
        await call(request, timeout=TIMEOUT)
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    return None
