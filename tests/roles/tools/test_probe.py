"""`koord probe`: what a container's health check says about a process, by the ports that it listens on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from click.testing import CliRunner

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


def test_a_process_without_ports_is_not_well() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        result = CliRunner().invoke(command, [f"--pid={child.pid}"])
        child.communicate(b"\n")
    assert result.exit_code == 1
    assert "listens on no TCP port" in result.output
