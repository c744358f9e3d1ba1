"""Containers are stopped through the CRI of their runtime, by a real gRPC call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc import aio

from koord.protocols import cri_pb2
from roles.koordlet.eviction.kill import ContainerKiller
from roles.koordlet.host.root import HostRoot
from roles.koordlet.options import Options

METHOD = "/runtime.v1.RuntimeService/StopContainer"


class Runtime(grpc.GenericRpcHandler):
    """A CRI that stops what it is asked to, but for the containers that it does not know."""

    def __init__(self, unknown: set[str], together: int = 1) -> None:
        self.unknown, self.stopped = unknown, list[str]()
        self.together, self.all_asked = together, asyncio.Event()
        """It answers when so many have been asked for."""

    def service(self, details: Any) -> Any:
        assert details.method == METHOD
        return grpc.unary_unary_rpc_method_handler(self._stop)

    async def _stop(self, body: bytes, context: Any) -> bytes:
        request = cri_pb2.StopContainerRequest.FromString(body)
        if request.container_id in self.unknown:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such container")
        self.stopped.append(request.container_id)
        if len(self.stopped) >= self.together:
            self.all_asked.set()
        await self.all_asked.wait()
        return b""


def container(name: str, *, running: bool = True, declared: bool = True) -> SimpleNamespace:
    return SimpleNamespace(name=name, id=f"containerd://{name}", running=running, spec=SimpleNamespace() if declared else None)


def stop(
    socket: Path,
    *containers: SimpleNamespace,
    init: tuple[SimpleNamespace, ...] = (),
    debug: tuple[SimpleNamespace, ...] = (),
    unknown: tuple[str, ...] = (),
    prefix: str = "unix://",
    together: int = 1,
) -> tuple[str | None, list[str]]:
    """What went wrong, and what was stopped, in no order of its own."""

    async def main() -> tuple[str | None, list[str]]:
        runtime, server = Runtime(set(unknown), together), aio.server()
        server.add_generic_rpc_handlers((runtime,))
        server.add_insecure_port(f"unix:{socket.parent}/made")
        await server.start()
        (socket.parent / "made").rename(socket)
        try:
            killer = ContainerKiller(HostRoot(), Options(containerd_endpoint=f"{prefix}{socket}"))
            pod = SimpleNamespace(containers=containers, init_containers=init, ephemeral_containers=debug)
            return await killer(pod), sorted(runtime.stopped)  # type: ignore[arg-type]
        finally:
            await server.stop(None)

    return asyncio.run(main())


@pytest.mark.feature("KA-EVX-01")
def test_a_container_that_has_ended_does_not_keep_the_others_running(tmp_path: Path) -> None:
    ended, first, second = container("ended", running=False), container("a"), container("b")
    assert stop(tmp_path / "s", ended, first, container("sandbox", declared=False), second) == (None, ["a", "b"])


@pytest.mark.feature("KA-EVX-01")
def test_a_container_that_cannot_be_stopped_is_told_and_the_others_are_stopped(tmp_path: Path) -> None:
    failure, stopped = stop(tmp_path / "s", container("a"), container("b"), unknown=("a",))
    assert (failure, stopped) == ("container a: NOT_FOUND: no such container", ["b"])
    assert stop(tmp_path / "s", container("a", running=False)) == ("no container is running", [])


@pytest.mark.feature("KA-EVX-01")
def test_a_slow_runtime_is_waited_for_once_a_pod(tmp_path: Path) -> None:
    failure, stopped = stop(tmp_path / "s", *map(container, "abcd"), together=4)
    assert (failure, stopped) == (None, ["a", "b", "c", "d"])


@pytest.mark.feature("KA-EVX-01")
def test_sidecars_and_debug_containers_are_stopped_too(tmp_path: Path) -> None:
    init = (container("prepare", running=False), container("sidecar"))
    debug = (container("shell", declared=False), container("left", running=False, declared=False))
    assert stop(tmp_path / "s", container("a"), init=init, debug=debug) == (None, ["a", "shell", "sidecar"])
    assert stop(tmp_path / "t", container("a", running=False), init=(container("prepare"),)) == (None, ["prepare"])


@pytest.mark.feature("KA-EVX-01")
@pytest.mark.parametrize("prefix", ["", "unix:", "unix://"])
@pytest.mark.parametrize("name", ["a b%20c.sock", "what?.sock", "n#1.sock"])
def test_the_runtime_is_found_at_a_socket_whatever_its_name(tmp_path: Path, name: str, prefix: str) -> None:
    assert stop(tmp_path / name, container("a"), prefix=prefix) == (None, ["a"])
