"""The runtime's end of an NRI connection: listens, takes the plugin's registration, calls the plugin."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from koord.protocols import nri_pb2 as nri
from koord.protocols import ttrpc_pb2 as ttrpc
from roles.koordlet.nri.frames import PLUGIN_STREAM, RUNTIME_STREAM, Decoder, Message, Type, encode
from roles.koordlet.nri.session import PLUGIN_SERVICE
from tests.support import patience

TYPES = {
    "Configure": nri.ConfigureResponse,
    "Synchronize": nri.SynchronizeResponse,
    "CreateContainer": nri.CreateContainerResponse,
    "UpdateContainer": nri.UpdateContainerResponse,
}


class PluginRefused(Exception):
    """The plugin answered with an error status."""


class Runtime:
    """One at a time; ``registered`` holds what the plugin said of itself."""

    def __init__(self, path: Path, *, refuse: str = "") -> None:
        self.path = path
        self.refuse = refuse
        self.registered: list[nri.RegisterPluginRequest] = []
        self.connected = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._next = 1

    async def __aenter__(self) -> Runtime:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        self.path.unlink(missing_ok=True)

    def drop(self) -> None:
        """End the plugin's connection."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.connected.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        decoder = Decoder()
        while data := await reader.read(1000):
            for stream, message in decoder.feed(data):
                if stream == RUNTIME_STREAM:
                    self._take_registration(message, writer)
                elif message.call in self._calls:
                    self._calls.pop(message.call).set_result(message.body)
        writer.close()

    def _take_registration(self, message: Message, writer: asyncio.StreamWriter) -> None:
        request = ttrpc.Request.FromString(message.body)
        assert request.method == "RegisterPlugin"
        self.registered.append(nri.RegisterPluginRequest.FromString(request.payload))
        response = ttrpc.Response(payload=nri.Empty().SerializeToString())
        if self.refuse:
            response.status.code, response.status.message = 3, self.refuse
        writer.write(encode(RUNTIME_STREAM, Message(message.call, Type.RESPONSE, response.SerializeToString())))
        self.connected.set()

    async def call(self, method: str, request: Any, service: str = PLUGIN_SERVICE) -> Any:
        """The plugin's answer. Raises PluginRefused."""
        assert self._writer is not None
        number, self._next = self._next, self._next + 2
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        body = ttrpc.Request(service=service, method=method, payload=request.SerializeToString()).SerializeToString()
        self._writer.write(encode(PLUGIN_STREAM, Message(number, Type.REQUEST, body)))
        response = ttrpc.Response.FromString(await asyncio.wait_for(future, patience.seconds(10)))
        if response.status.code:
            raise PluginRefused(response.status.message)
        return TYPES.get(method, nri.Empty).FromString(response.payload)
