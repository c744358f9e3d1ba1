"""The kubelet's plugin of driver koordinator.sh: published devices reach the containers whose claims got them (KA-DRA-01).

One socket in the kubelet's directory plugins_registry serves both its registration and its requests. Nothing is kept: the answer
follows from the claim, the Device object and CDI files, so that it is the same after a restart of koordlet or of the kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.api.deviceslices import DRIVER
from koord.api.kinds import DEVICES, RESOURCECLAIMS
from koord.api.names import DEVICE_TYPE_RDMA
from koord.kube.errors import ApiError, Forbidden, NotFound
from koord.process.unixsocket import target
from roles.koordlet.actuation.writes import Kind, Write, sequence
from roles.koordlet.claims import cdi
from roles.koordlet.claims.preparing import ClaimError, Obj, Prepared, devices_of_type, prepared
from roles.koordlet.host.root import HostRoot, PathEscapeError
from roles.koordlet.listening import identity, stay
from roles.koordlet.sensing.rdma import device_files

if TYPE_CHECKING:
    import grpc.aio

    from koord.kube.informers import InformerFactory
    from koord.protocols import dra_pb2 as pb
    from roles.koordlet.actuation.executor import Executor
    from roles.koordlet.observing import Parts

log = logging.getLogger(__name__)

GATE = "DRAPlugin"
ROLE = "koordlet-resource-claims"
#: In the kubelet's words, the newest first. Messages of both are the same.
SERVICES = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
REGISTRATION = "pluginregistration.Registration"

GetClaim = Callable[[str, str], Awaitable[Obj]]
"""(namespace, name) -> the claim."""


class ClaimPlugin:
    """Serves until it is stopped. ``device`` gives the node's Device object, ``write`` has a file written and says what went wrong."""

    def __init__(
        self, node: str, root: HostRoot, get: GetClaim, device: Callable[[], Obj | None], write: Callable[[str, str], str]
    ) -> None:
        self._node, self._root = node, root
        self._get, self._device, self._write = get, device, write
        self._complaints: set[str] = set()
        self.registered = False
        """Whether the kubelet has said that it took the plugin."""

    # -- what the kubelet asks -----------------------------------------------------------------------------------------------

    async def prepare(self, request: pb.NodePrepareResourcesRequest, _: Any = None) -> pb.NodePrepareResourcesResponse:
        """An answer for each claim; one that cannot be prepared spoils no other."""
        from koord.protocols import dra_pb2 as pb

        answer = pb.NodePrepareResourcesResponse()
        claims = await asyncio.gather(*(self._claim(one.namespace, one.name) for one in request.claims))
        # files of others may be large, and YAML takes long: not on the loop that suppresses and evicts
        described = await seams.to_thread(cdi.read, cdi.directories(self._root), self._complain)
        for asked, found in zip(request.claims, claims, strict=True):
            entry = answer.claims[asked.uid]
            try:
                if isinstance(found, ClaimError):
                    raise found
                for one in self._prepared(found, asked.uid, described):
                    entry.devices.add(
                        request_names=[one.request], pool_name=one.pool, device_name=one.device, cdi_device_ids=[one.cdi],
                        share_id=one.share or None,
                    )  # fmt: skip
                log.info("claim %s/%s: prepared %s", asked.namespace, asked.name, ", ".join(one.cdi_device_ids[0] for one in entry.devices))
            except ClaimError as error:
                del entry.devices[:]
                entry.error = str(error)
                log.warning("claim %s/%s cannot be prepared: %s", asked.namespace, asked.name, error)
        return answer

    async def unprepare(self, request: pb.NodeUnprepareResourcesRequest, _: Any = None) -> pb.NodeUnprepareResourcesResponse:
        """Nothing was made for a claim, nothing is taken back."""
        from koord.protocols import dra_pb2 as pb

        return pb.NodeUnprepareResourcesResponse(claims={one.uid: pb.NodeUnprepareResourceResponse() for one in request.claims})

    async def _claim(self, namespace: str, name: str) -> Obj | ClaimError:
        try:
            return await self._get(namespace, name)
        except NotFound:
            return ClaimError("the API server has no such claim")
        except Forbidden:
            return ClaimError(f"koordlet may not read claims: bind ClusterRole {ROLE} to its account")
        except (ApiError, OSError) as error:
            return ClaimError(f"it cannot be read: {error}")

    def _prepared(self, claim: Obj, uid: str, described: dict[str, str]) -> list[Prepared]:
        device = self._device()
        files, lacks = self._card_files(device)
        own = {name: f"{cdi.KIND}={name}" for name in {*files, *lacks}}
        found = prepared(claim, uid, self._node, device, described, own)
        for one in found:
            if one.device in lacks:
                raise ClaimError(lacks[one.device])
        if any(one.device in files for one in found) and (why := self._write(cdi.own_file(self._root), cdi.document(files))):
            raise ClaimError(f"{cdi.own_file(self._root)} cannot be written: {why}")
        return found

    def _card_files(self, device: Obj | None) -> tuple[dict[str, list[str]], dict[str, str]]:
        """Device files of the node's RDMA cards, and why those of a card cannot be told."""
        files, lacks = {}, {}
        for name, address in devices_of_type(device, DEVICE_TYPE_RDMA).items():
            try:
                files[name] = device_files(self._root, [address])
            except ValueError as error:
                lacks[name] = str(error)
        return files, lacks

    def _complain(self, text: str) -> None:
        if text not in self._complaints:
            self._complaints.add(text)
            log.warning("%s", text)

    # -- the socket ----------------------------------------------------------------------------------------------------------

    async def run(self, stopping: asyncio.Event) -> None:
        """Listen until stopping, and again where the socket was taken away. What the kubelet has not made yet is waited for."""
        await stay(self._root.kubelet_path(cdi.SOCKET), self._listen, stopping, about="claims")

    async def _listen(self, path: str) -> grpc.aio.Server:
        import grpc.aio

        if not any(identity(directory := os.path.dirname(path))):
            raise OSError(f"the kubelet has no directory {directory}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers(self._handlers())
        server.add_insecure_port(target(path))
        await server.start()
        log.info("claims of driver %s are prepared at %s", DRIVER, path)
        return server

    def _handlers(self) -> tuple[Any, ...]:
        import grpc

        from koord.protocols import dra_pb2 as pb
        from koord.protocols import pluginregistration_pb2 as registration

        async def info(_: Any, __: Any) -> Any:
            return registration.PluginInfo(type="DRAPlugin", name=DRIVER, supported_versions=list(SERVICES))

        async def told(request: Any, _: Any) -> Any:
            self.registered = request.plugin_registered
            if request.plugin_registered:
                log.info("the kubelet has registered driver %s", DRIVER)
            else:
                log.error("the kubelet does not take driver %s: %s", DRIVER, request.error)
            return registration.RegistrationStatusResponse()

        def method(answer: Callable[[Any, Any], Awaitable[Any]], request: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                answer, request_deserializer=request.FromString, response_serializer=lambda found: found.SerializeToString()
            )

        claims = {
            "NodePrepareResources": method(self.prepare, pb.NodePrepareResourcesRequest),
            "NodeUnprepareResources": method(self.unprepare, pb.NodeUnprepareResourcesRequest),
        }
        own = {"GetInfo": method(info, registration.InfoRequest), "NotifyRegistrationStatus": method(told, registration.RegistrationStatus)}
        return (
            grpc.method_handlers_generic_handler(REGISTRATION, own),
            *(grpc.method_handlers_generic_handler(service, claims) for service in SERVICES.values()),
        )


def withdraw(root: HostRoot) -> None:
    """Take away the socket of a run that was killed. The kubelet would ask it again and again, over its own restarts and the machine's."""
    try:
        path = root.kubelet_path(cdi.SOCKET)
        os.unlink(path)
    except (FileNotFoundError, PathEscapeError):  # nor would the plugin have listened outside the kubelet's directory
        return
    except OSError as error:
        log.error("the socket %s of a koordlet with %s is not removed: %s", path, GATE, error.strerror)
    else:
        log.info("the socket %s of a koordlet with %s is removed", path, GATE)


def make_plugin(parts: Parts, root: HostRoot, executor: Executor) -> ClaimPlugin:
    """The plugin of a running koordlet: files are written by the executor, so that they are journalled and taken back."""
    node = parts.options.node_name
    devices = _informer(parts.informers, node)

    async def get(namespace: str, name: str) -> Obj:
        found: Obj = await parts.client.get(RESOURCECLAIMS, name, namespace)
        return found

    def write(path: str, text: str) -> str:
        directory = os.path.dirname(path)
        made = Write("CDI", path, text, kind=Kind.CREATE, cached=False, reason="PrepareClaim")
        around = Write("CDI", directory, "", kind=Kind.DIRECTORY, cached=False, reason="PrepareClaim")
        batch = sequence(*(() if os.path.isdir(directory) else (around,)), made, stop_on_error=True)
        return "; ".join(str(failed) for failed in executor.apply([batch], rule=GATE, now=seams.now()).failed)

    return ClaimPlugin(node, root, get, lambda: devices.get(node), write)


def _informer(informers: InformerFactory, node: str) -> Any:
    return informers.informer(DEVICES, dict, field_selector=f"metadata.name={node}", optional=True)
