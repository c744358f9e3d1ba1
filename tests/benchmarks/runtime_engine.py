"""The other side of bench_runtime_proxy: a fake engine and a hook server in a process of their own.

usage: runtime_engine.py ENGINE_SOCKET HOOK_SOCKET
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio
import uvloop

from koord.protocols import cri_pb2 as cri
from koord.protocols import runtimehook_pb2 as hook

CONTAINERS = 200


def answers() -> dict[str, bytes]:
    """What each method answers: ids, a version, and a list as large as a full node's."""
    listed = cri.ListContainersResponse()
    for n in range(CONTAINERS):
        item = listed.containers.add(id=f"{n:064d}", pod_sandbox_id=f"{n // 2:064d}")
        item.metadata.name = f"container-{n}"
        for key in ("pod.name", "pod.namespace", "pod.uid", "container.name"):
            item.labels[f"io.kubernetes.{key}"] = f"some-value-{n}-of-a-usual-length"
        for key in ("hash", "restartCount", "terminationMessagePath", "terminationMessagePolicy", "terminationGracePeriod"):
            item.annotations[f"io.kubernetes.container.{key}"] = "/dev/termination-log"
    sandbox = cri.PodSandboxStatusResponse()
    sandbox.status.metadata.uid, sandbox.status.metadata.name = "u", "web-0"
    return {
        "Version": cri.VersionResponse(version="0.1.0", runtime_name="fake", runtime_api_version="v1").SerializeToString(),
        "ListContainers": listed.SerializeToString(),
        "RunPodSandbox": cri.RunPodSandboxResponse(pod_sandbox_id="sandbox").SerializeToString(),
        "CreateContainer": cri.CreateContainerResponse(container_id="container").SerializeToString(),
        "PodSandboxStatus": sandbox.SerializeToString(),
        "ListImages": b"\x0a\x80\x80\x80\x06" + bytes(12 << 20),
    }


class Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, found: dict[str, bytes]) -> None:
        self._handlers = {name: grpc.unary_unary_rpc_method_handler(self._answer(raw)) for name, raw in found.items()}
        self._other = grpc.unary_unary_rpc_method_handler(self._answer(b""))

    @staticmethod
    def _answer(raw: bytes) -> Any:
        async def handle(request: bytes, context: Any) -> bytes:
            return raw

        return handle

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method.rpartition("/")[2], self._other)


async def main(engine: str, hooks: str) -> None:
    changed = hook.ContainerResourceHookResponse(container_annotations={"k": "v"})
    changed.container_resources.cpu_shares = 2
    servers = []  # a server that nobody holds ends
    for path, found in ((engine, answers()), (hooks, {"PreCreateContainerHook": changed.SerializeToString()})):
        server = grpc.aio.server(options=(("grpc.max_send_message_length", -1),))
        server.add_generic_rpc_handlers((Methods(found),))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        servers.append(server)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:3]))
