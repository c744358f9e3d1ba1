"""The gRPC server that the runtime proxy asks, and its registration (KA-RH-01).

The socket is there from the start, gRPC only from the first connection on: it costs a third of the agent's memory, and most nodes
have no runtime proxy. Connections are passed on to the gRPC server's own socket beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from koord import seams
from koord.process.unixsocket import target
from roles.koordlet.actuation.target import REGISTRATION_FILE
from roles.koordlet.actuation.writes import Batch, Kind, Write, sequence
from roles.koordlet.hooks.context import Stage
from roles.koordlet.hooks.hook import Hook

if TYPE_CHECKING:
    import grpc.aio

    from roles.koordlet.hooks.service import HookService

log = logging.getLogger(__name__)

MAX_MESSAGE = 16 << 20
MAX_SOCKET_PATH = 107
_CHUNK = 1 << 16
_GRACE = 1.0
#: How often the socket is looked for (seconds).
LOOK = 3.0
REGISTRATION = "koordlet.json"
_GONE = (-1, -1, -1)


class ServerError(Exception):
    """The server cannot listen or register; the text says where and why."""


def stages_with_hooks(hooks: tuple[Hook[Any], ...], disabled: frozenset[Stage]) -> list[str]:
    """Stages that the runtime proxy has to ask at."""
    used = {stage for hook in hooks for stage in (*hook.pod_stages, *hook.container_stages)}
    return [str(s) for s in Stage if s in used and s not in disabled and s is not Stage.PRE_REMOVE_POD_SANDBOX]


def registration(directory: str, endpoint: str, policy: str, stages: list[str]) -> tuple[Batch, str]:
    """What makes the runtime proxy ask this server, and the file's path."""
    path = os.path.join(directory, REGISTRATION)
    document = {"remote-endpoint": endpoint, "failure-policy": policy, "runtime-hooks": stages}
    made = Write(REGISTRATION_FILE, path, orjson.dumps(document).decode(), kind=Kind.CREATE, cached=False, reason="RegisterHooks")
    directories = (Write(REGISTRATION_FILE, directory, "", kind=Kind.DIRECTORY, cached=False, reason="RegisterHooks"),)
    return sequence(*(() if os.path.isdir(directory) else directories), made, stop_on_error=True), path


class HookServer:
    """``network`` is unix (``address`` a path) or tcp (host:port). ``service`` makes the service; it imports protobuf."""

    def __init__(
        self, network: str, address: str, service: Callable[[], HookService], *, lost: Callable[[], None] = lambda: None, look: float = LOOK
    ) -> None:
        """``lost`` is called when the socket was gone and is there again; it is looked for every ``look`` seconds."""
        self._lost = lost
        self._look = look
        self._watch: asyncio.Task[None] | None = None
        self._socket = _GONE
        self._network = network
        self._address = address
        self._make = service
        self._grpc: grpc.aio.Server | None = None
        self._front: asyncio.Server | None = None
        self._starting = asyncio.Lock()
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def _inner(self) -> str:
        return os.path.join(os.path.dirname(self._address), f".koordlet.{os.getpid()}")

    async def start(self) -> None:
        """Listen. Raises ServerError."""
        if self._network == "tcp":
            await self._start_grpc(self._address)
            return
        if self._network != "unix":
            raise ServerError(f"--runtime-hooks-network: {self._network!r} is not one of unix, tcp")
        if max(len(os.fsencode(self._address)), len(os.fsencode(self._inner))) > MAX_SOCKET_PATH:
            raise ServerError(f"--runtime-hooks-addr: {self._address} is longer than {MAX_SOCKET_PATH} bytes, which no unix socket can be")
        await self._listen()
        log.info("hook server listens on %s", self._address)
        self._watch = asyncio.create_task(self._stay_there(), name="socket of the hook server")

    async def _listen(self) -> None:
        try:
            os.makedirs(os.path.dirname(self._address), mode=0o755, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._address)
            self._front = await asyncio.start_unix_server(self._connected, self._address)
            os.chmod(self._address, 0o600)
            self._socket = _identity(self._address)
        except OSError as error:
            raise ServerError(f"hook server cannot listen on {self._address}: {error.strerror}") from None

    async def _stay_there(self) -> None:
        """A socket whose file was taken away listens to nobody, and nothing tells: look, and make it anew."""
        complaint = ""
        while True:
            await seams.sleep(self._look)
            try:
                if self._grpc is not None and _identity(self._inner) == _GONE:
                    gone, self._grpc = self._grpc, None  # the next connection starts another one
                    await gone.stop(_GRACE)
                if _identity(self._address) == self._socket:
                    continue
                if not complaint:
                    log.error("the socket %s was taken away, replaced or given to others; it is made again", self._address)
                if self._front is not None:
                    self._front.close()
                await self._listen()
                complaint = ""
                self._lost()
            except ServerError as error:
                if str(error) != complaint:
                    log.error("%s; it is tried again", error)
                complaint = str(error)

    async def stop(self) -> None:
        """Take the sockets away, and let running requests end."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        if self._front is not None:
            self._front.close()
        if self._network == "unix":
            # before anything is waited for: whoever stops this process may not wait as long
            for path in (self._address, self._inner):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        if self._grpc is not None:
            await self._grpc.stop(_GRACE)
        self._front = self._grpc = None
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    # -- connections ---------------------------------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._starting:
                if self._grpc is None:
                    await self._start_grpc(target(self._inner))
            inner_reader, inner_writer = await asyncio.open_unix_connection(self._inner)
        except (OSError, ServerError) as error:
            log.error("a connection to the hook server is refused: %s", error)
            writer.close()
            return
        both = [asyncio.create_task(_pump(reader, inner_writer)), asyncio.create_task(_pump(inner_reader, writer))]
        self._pumps.update(both)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
                self._pumps.discard(task)
            writer.close()
            inner_writer.close()

    async def _start_grpc(self, address: str) -> None:
        import grpc.aio

        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._inner)
        limits = [("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.max_send_message_length", MAX_MESSAGE), ("grpc.so_reuseport", 0)]
        server = grpc.aio.server(options=limits)
        server.add_generic_rpc_handlers((_handlers(self._make()),))
        try:
            server.add_insecure_port(address)
            await server.start()
        except RuntimeError as error:
            raise ServerError(f"hook server cannot listen on {address}: {error}") from None
        self._grpc = server


def _identity(path: str) -> tuple[int, int, int]:
    """Which file stands at a path, and when it was last given another owner or mode. File systems hand the number of a file that is gone
    to the next one, which has another time."""
    try:
        found = os.stat(path)
    except OSError:
        return _GONE
    return found.st_dev, found.st_ino, found.st_ctime_ns


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until one side ends."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()


def _handlers(service: HookService) -> Any:
    """gRPC's table of methods."""
    import grpc

    from koord.protocols import runtimehook_pb2 as pb
    from roles.koordlet.hooks.asking import HookError
    from roles.koordlet.hooks.service import CONTAINER_STAGES, POD_STAGES, SERVICE
    from roles.koordlet.host.errors import HostError

    def method(stage: Stage, answer: Callable[[Stage, Any], Any], request_type: Any) -> Any:
        async def handle(request: Any, context: Any) -> Any:
            try:
                await service.look_up(request)
                return answer(stage, request)
            except HookError as error:
                await context.abort(grpc.StatusCode.INTERNAL, str(error))
            except (ValueError, HostError) as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

        return grpc.unary_unary_rpc_method_handler(
            handle, request_deserializer=request_type.FromString, response_serializer=lambda r: r.SerializeToString()
        )

    table = {f"{stage}Hook": method(stage, service.pod, pb.PodSandboxHookRequest) for stage in POD_STAGES}
    table |= {f"{stage}Hook": method(stage, service.container, pb.ContainerResourceHookRequest) for stage in CONTAINER_STAGES}
    return grpc.method_handlers_generic_handler(SERVICE, table)
