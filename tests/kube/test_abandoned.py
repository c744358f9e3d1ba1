"""A watch that is given up: its connection goes at once, whatever the other side does."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from pathlib import Path

from koord.kube.config import ClientConfig
from koord.kube.transport import Transport
from koord.process import certificates


class Deaf:
    """A TLS server that begins an answer, and then neither reads nor says goodbye."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self.given_up = threading.Event()
        self.ended = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._listener:
            accepted, _ = self._listener.accept()
        secured = self._context.wrap_socket(accepted, server_side=True)
        secured.recv(65536)
        secured.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n")
        self.given_up.wait(10)
        with socket.socket(fileno=secured.detach()) as bare:
            bare.settimeout(5)
            try:
                while bare.recv(65536):
                    pass
                self.ended = True
            except ConnectionResetError:
                self.ended = True
            except TimeoutError:
                pass

    def join(self) -> None:
        self._thread.join(15)


def test_the_connection_is_cut_without_waiting_for_a_farewell(tmp_path: Path) -> None:
    made = certificates.ensure(tmp_path, "127.0.0.1")
    server = Deaf(made.context())

    async def main() -> None:
        transport = Transport(ClientConfig(server=server.url, insecure=True))
        async with transport.stream("/api/v1/pods", {"watch": "1"}) as content:
            assert await anext(content.iter_any()) == b"{}\n"
        server.given_up.set()
        # neither the client nor its loop is closed yet
        await asyncio.to_thread(server.join)
        await transport.close()

    try:
        asyncio.run(main())
    finally:
        server.given_up.set()
        server.join()
    assert server.ended
