"""`koord probe`: what a container's health check says about a process, by the ports that it listens on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from click.testing import CliRunner

from koord.cli import main
from roles.tools.probe import command


class Role(BaseHTTPRequestHandler):
    answers: ClassVar[dict[int, int]] = {}

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        self.send_response(self.answers[port] if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Two ports of this process."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Role) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [server.server_address[1] for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()
    Role.answers.clear()


@pytest.mark.parametrize(
    ("statuses", "well", "said"),
    [
        ((200, 404), True, "ok"),
        ((200, 200), True, "ok"),
        ((200, 503), False, "answers 503"),
        ((404, 401), False, "nothing answers 200"),
    ],
)
def test_every_port_of_the_process_is_asked(ports, statuses, well, said) -> None:
    Role.answers.update(zip(ports, statuses, strict=True))
    result = CliRunner().invoke(command, [f"--pid={os.getpid()}"])
    assert result.exit_code == (0 if well else 1)
    assert said in result.output


def test_a_url_is_asked_alone(ports) -> None:
    Role.answers.update({ports[0]: 200, ports[1]: 503})
    assert CliRunner().invoke(command, [f"http://127.0.0.1:{ports[0]}/healthz"]).exit_code == 0
    assert CliRunner().invoke(command, [f"http://127.0.0.1:{ports[1]}/healthz"]).exit_code == 1


@pytest.mark.parametrize("address", ["127.0.0.9", "::1", "::", ""])
def test_a_port_is_asked_at_the_address_where_it_listens(address: str) -> None:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

        def server_bind(self) -> None:
            if ":" in address:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            super().server_bind()

    try:
        server = Server((address, 0), Role)
    except OSError:
        pytest.skip("no such address here")
    Role.answers[server.server_address[1]] = 200
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        result = CliRunner().invoke(command, [f"--pid={os.getpid()}"])
        assert (result.exit_code, result.output) == (0, "ok\n")
    finally:
        server.shutdown()
        server.server_close()
        Role.answers.clear()


@pytest.mark.parametrize("url", ["here", "http://127.0.0.1:abc", "http://[::1", "http://127.0.0.1:99999"])
def test_what_is_no_url_is_said(url: str) -> None:
    result = CliRunner().invoke(main, ["probe", url], prog_name="koord")
    assert result.exit_code == 2
    assert result.stderr == f"koord probe: error: {url!r} must be http://host[:port][/path] or https://host[:port][/path]\n"


def test_a_process_without_ports_is_not_well() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        result = CliRunner().invoke(command, [f"--pid={child.pid}"])
        child.communicate(b"\n")
    assert result.exit_code == 1
    assert "listens on no TCP port" in result.output
