"""One connection to a runtime's NRI socket: registers the plugin and answers what the runtime asks (KA-RH-02)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError

from koord.protocols import nri_pb2 as nri
from koord.protocols import ttrpc_pb2 as ttrpc
from roles.koordlet.nri.frames import PLUGIN_STREAM, RUNTIME_STREAM, Decoder, FrameError, Message, Type, encode

log = logging.getLogger(__name__)

PACKAGE = "nri.pkg.api.v1alpha1"
PLUGIN_SERVICE, RUNTIME_SERVICE = f"{PACKAGE}.Plugin", f"{PACKAGE}.Runtime"
#: gRPC's status codes, which ttrpc shares.
INVALID_ARGUMENT, UNIMPLEMENTED, INTERNAL = 3, 12, 13
_REGISTRATION = 1
_CHUNK = 1 << 16


class SessionError(Exception):
    """The runtime cannot be reached, does not take the plugin, or went away."""


class CallError(Exception):
    """A request is answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


#: (method, request) -> response, as bytes; raises CallError.
Serve = Callable[[str, bytes], bytes]
#: What has to be known before that.
Prepare = Callable[[str, bytes], Awaitable[None]]


async def nothing(method: str, request: bytes) -> None:
    """There is nothing to prepare."""


class Session:
    """Lives as long as its connection."""

    def __init__(self, path: str, name: str, index: str, serve: Serve, prepare: Prepare = nothing) -> None:
        self._path = path
        self._name = name
        self._index = index
        self._serve = serve
        self._prepare = prepare
        self._registered = False

    async def run(self, stopping: asyncio.Event) -> None:
        """Connect, register, answer until the connection ends (SessionError) or stopping is set."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
        except OSError as error:
            raise SessionError(f"{self._path}: {error.strerror or error}") from None
        end = asyncio.ensure_future(stopping.wait())
        try:
            register = nri.RegisterPluginRequest(plugin_name=self._name, plugin_idx=self._index)
            request = ttrpc.Request(service=RUNTIME_SERVICE, method="RegisterPlugin", payload=register.SerializeToString())
            writer.write(encode(RUNTIME_STREAM, Message(_REGISTRATION, Type.REQUEST, request.SerializeToString())))
            decoder = Decoder()
            while not stopping.is_set():
                read = asyncio.ensure_future(reader.read(_CHUNK))
                await asyncio.wait({read, end}, return_when=asyncio.FIRST_COMPLETED)
                if not read.done():
                    read.cancel()
                    return
                data = read.result()
                if not data:
                    raise SessionError(f"{self._path}: the runtime closed the connection")
                for stream, message in decoder.feed(data):
                    answer = await self._take(stream, message)
                    if answer is not None:
                        writer.write(answer)
                await writer.drain()
        except (OSError, FrameError) as error:
            raise SessionError(f"{self._path}: {error}") from None
        finally:
            end.cancel()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _take(self, stream: int, message: Message) -> bytes | None:
        """The bytes to send back. Raises SessionError when the runtime refuses the plugin."""
        if stream == RUNTIME_STREAM and message.type == Type.RESPONSE:
            self._take_registration(message)
            return None
        if stream != PLUGIN_STREAM or message.type != Type.REQUEST:
            return None
        response = ttrpc.Response()
        try:
            request = ttrpc.Request.FromString(message.body)
            if request.service != PLUGIN_SERVICE:
                raise CallError(UNIMPLEMENTED, f"service {request.service} is not offered")
            await self._prepare(request.method, request.payload)
            response.payload = self._serve(request.method, request.payload)
        except DecodeError as error:
            _fail(response, INVALID_ARGUMENT, f"the request cannot be read: {error}")
        except CallError as error:
            _fail(response, error.code, str(error))
        except Exception as error:
            # a mistake of ours must not hold up a container for the runtime's timeout
            log.exception("an NRI request failed")
            _fail(response, INTERNAL, f"{type(error).__name__}: {error}")
        return encode(PLUGIN_STREAM, Message(message.call, Type.RESPONSE, response.SerializeToString()))

    def _take_registration(self, message: Message) -> None:
        if message.call != _REGISTRATION or self._registered:
            return
        try:
            response = ttrpc.Response.FromString(message.body)
        except DecodeError as error:
            raise SessionError(f"{self._path}: the answer to the registration cannot be read: {error}") from None
        if response.status.code:
            raise SessionError(f"{self._path}: the runtime refuses the plugin: {response.status.message}")
        self._registered = True
        log.info("registered as NRI plugin %s-%s at %s", self._index, self._name, self._path)


def _fail(response: ttrpc.Response, code: int, text: str) -> None:
    response.status.code = code
    response.status.message = text
