"""The kubelet's PodResources API with the devices that the scheduler allocated (KLO-SI-07).

Monitoring agents ask the kubelet which container has which device. Devices that the scheduler gives out by annotation are unknown
to the kubelet's device manager; here they are added to the kubelet's answer. Messages are imported when somebody asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from koord.api.annotations import AnnotationError
from koord.api.names import DEVICE_TYPE_GPU
from koord.process.errors import ConfigurationError
from koord.process.unixsocket import target
from roles.koordlet.listening import stay
from roles.koordlet.states.allocation import Devices, claimant, granted_devices
from roles.koordlet.states.model import PodState

if TYPE_CHECKING:
    import grpc.aio

    from koord.protocols import podresources_pb2 as pb

log = logging.getLogger(__name__)

SERVICE = "v1.PodResourcesLister"
SOCKET = "kubelet.sock"
#: The kubelet's own socket, below its directory.
KUBELET_SOCKET = "pod-resources/kubelet.sock"
TIMEOUT = 10.0
LIMITS = tuple((f"grpc.max_{way}_message_length", 16 << 20) for way in ("receive", "send"))
#: Device type of an allocation -> resource name that device plugins and monitors know.
RESOURCE_NAMES = {DEVICE_TYPE_GPU: "nvidia.com/gpu", "rdma": "koordinator.sh/rdma"}


def allocated_devices(allocated: Devices) -> dict[str, list[str]]:
    """Device ids by resource name, sorted by it: the virtual functions where there are some, else the device."""
    found: dict[str, list[str]] = {}
    for kind, devices in allocated.items():
        resource = RESOURCE_NAMES.get(kind)
        if resource is None:
            continue
        ids: list[str] = []
        for device in devices:
            functions = [vf.bus_id for vf in device.extension.vfs if vf.bus_id] if device.extension is not None else []
            ids += functions or ([device.id] if device.id else [])
        if ids:
            found[resource] = ids
    return dict(sorted(found.items()))


def add_devices(answer: pb.ListPodResourcesResponse, pods: Iterable[PodState]) -> None:
    """Add what the annotations of listed pods say to the first container of each."""
    listed = {(p.namespace, p.name): p for p in pods}
    for entry in answer.pod_resources:
        pod = listed.get((entry.namespace, entry.name))
        if pod is None or not entry.containers:
            continue
        try:
            devices = allocated_devices(granted_devices(pod.annotations, claimant(pod)).devices)
        except AnnotationError as error:
            log.warning("pod %s: %s; its devices are not listed", pod.key, error)
            continue
        for resource, ids in devices.items():
            entry.containers[0].devices.add(resource_name=resource, device_ids=ids)


class PodResourcesProxy:
    """Listens on ``<directory>/kubelet.sock`` and passes on to the kubelet's socket."""

    def __init__(self, directory: str, kubelet_socket: str, pods: Callable[[], Iterable[PodState]]) -> None:
        self._directory = directory
        self._kubelet_socket = kubelet_socket
        self._pods = pods

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until stopping. Raises ConfigurationError when the socket cannot be made at the start."""
        path = os.path.join(self._directory, SOCKET)
        try:
            server = await self._listen(path)
        except (OSError, RuntimeError) as error:
            raise ConfigurationError(f"--pod-resources-proxy-path: {path} cannot be listened on: {error}") from None
        await stay(path, self._listen, stopping, about="PodResources proxy", server=server)

    async def _listen(self, path: str) -> grpc.aio.Server:
        import grpc.aio

        os.makedirs(self._directory, mode=0o755, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        server = grpc.aio.server(options=[*LIMITS, ("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((_Handler(self),))
        server.add_insecure_port(target(path))
        await server.start()
        log.info("PodResources proxy listens on %s", path)
        return server

    async def answer(self, method: str, request: bytes, context: Any) -> bytes:
        """The kubelet's answer, with devices where it is a list.

        On a connection of its own: one that is kept would answer for the kubelet for up to two minutes after it is back.
        """
        import grpc.aio

        options = (*LIMITS, ("grpc.use_local_subchannel_pool", 1))
        try:
            async with grpc.aio.insecure_channel(target(self._kubelet_socket), options=options) as channel:
                body: bytes = await channel.unary_unary(method)(request, timeout=TIMEOUT)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), f"kubelet at {self._kubelet_socket}: {error.details()}")
            raise
        return self.listed(body) if method == f"/{SERVICE}/List" else body

    def listed(self, body: bytes) -> bytes:
        """A list of the kubelet with the devices added; one that cannot be read is passed on as it is."""
        from google.protobuf.message import DecodeError

        from koord.protocols import podresources_pb2 as pb

        answer = pb.ListPodResourcesResponse()
        try:
            answer.ParseFromString(body)
        except DecodeError as error:
            log.warning("the kubelet's list of pod resources cannot be read: %s", error)
            return body
        add_devices(answer, self._pods())
        return answer.SerializeToString()


class _Handler:
    """Every method of the service, whatever the kubelet's version knows."""

    def __init__(self, proxy: PodResourcesProxy) -> None:
        self._proxy = proxy

    def service(self, details: Any) -> Any:
        import grpc

        method = details.method
        if not method.startswith(f"/{SERVICE}/"):
            return None

        async def handle(request: bytes, context: Any) -> bytes:
            return await self._proxy.answer(method, request, context)

        return grpc.unary_unary_rpc_method_handler(handle)
