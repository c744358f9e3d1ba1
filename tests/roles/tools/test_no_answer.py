"""Commands at the keyboard whose API server hangs, or does not accept who asks: one line that says why, soon."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koord.cli import main
from koord.kube import client
from roles.tools import gather, install
from tests.support import patience

pytestmark = pytest.mark.feature("BEY-TOP-01", "BEY-WHY-01", "BEY-DOC-01")


class Unauthorized(BaseHTTPRequestHandler):
    """Serves its version to everybody and nothing else to anybody, as a cluster does whose tokens were changed."""

    def do_GET(self) -> None:
        known = self.path == "/version"
        body = b"{}" if known else b'{"kind": "Status", "code": 401, "reason": "Unauthorized", "message": "Unauthorized"}'
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def log_message(self, *args: object) -> None:
        pass


class Forbidding(Unauthorized):
    """Knows who asks, and lets them see nothing."""

    def do_GET(self) -> None:
        what = self.path.partition("?")[0].rpartition("/")[2]
        body = {
            "kind": "Status",
            "code": 403,
            "reason": "Forbidden",
            "message": f'{what} is forbidden: User "me" cannot list resource "{what}"',
        }
        raw = json.dumps(body).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


COMMANDS = (["top"], ["why", "node", "n1"], ["doctor", "--cluster"], ["ui"], ["uninstall"])


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KOORD_ENDPOINTS", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


def kubeconfig(path: Path, server: str, user: dict[str, Any], **cluster: Any) -> str:
    document = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(document))
    return str(path)


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one[0])
def test_a_server_that_hangs_is_given_up_soon(command: list[str], silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (client, gather, install):
        monkeypatch.setattr(module, "PATIENCE", 0.3)
    file = kubeconfig(tmp_path / "kubeconfig", silent, {"token": "t"})
    began = time.monotonic()
    result = CliRunner().invoke(main, [*command, "--kubeconfig", file], prog_name="koord")
    assert result.exit_code == 1
    assert f"{silent}: no answer within 0.3 s" in result.output
    assert time.monotonic() - began < patience.seconds(10)


@pytest.mark.parametrize("command", [*COMMANDS, ["simulate", "--drain", "n1"]], ids=lambda one: one[0])
def test_ctrl_c_ends_a_command_that_waits_without_a_word(command: list[str], tmp_path: Path) -> None:
    # who runs the tests in the background of a shell ignores the signal, and so would the command
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from koord.cli import main; main()"
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        file = kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{listening.getsockname()[1]}", {"token": "t"})
        words = [sys.executable, "-c", heeds, *command, "--kubeconfig", file]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
            try:
                listening.settimeout(patience.seconds(30))
                with listening.accept()[0]:
                    running.send_signal(signal.SIGINT)
                    said, _ = running.communicate(timeout=patience.seconds(20))
            finally:
                running.kill()
    assert (running.returncode, said) == (130, b"")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one[0])
def test_credentials_that_have_expired_are_told_as_such(command: list[str], tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Unauthorized) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        file = kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{server.server_port}", {"token": "old"})
        result = CliRunner().invoke(main, [*command, "--kubeconfig", file], prog_name="koord")
        server.shutdown()
        thread.join()
    assert result.exit_code == 1
    assert "the credentials are not accepted, they may have expired (HTTP 401)" in result.output
    assert len(result.output.splitlines()) <= 3


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one[0])
@pytest.mark.parametrize(("script", "says"), [("exit 1", "exit status 1"), ("echo hello", "the answer is no JSON")])
def test_a_credential_plugin_that_fails_ends_the_command(command: list[str], script: str, says: str, tmp_path: Path) -> None:
    """Requests that are made together ask for the credentials together; none may wait for a plugin that has ended."""
    plugin = tmp_path / "login"
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    user = {"exec": {"command": str(plugin), "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}}
    file = kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1", user)
    for _ in range(3):
        result = CliRunner().invoke(main, [*command, "--kubeconfig", file], prog_name="koord")
        assert result.exit_code == 1
        assert f"credential plugin {plugin}: {says}" in result.output
        assert "Traceback" not in result.output


def test_a_user_without_rights_is_told_whom_and_what() -> None:
    """The dry run of uninstall lists nothing that it could not see; `why` names the role that allows to query koord's roles."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Forbidding) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        file = kubeconfig(Path(os.environ["HOME"]) / "kubeconfig", f"http://127.0.0.1:{server.server_port}", {"token": "t"})
        try:
            uninstall = CliRunner().invoke(main, ["uninstall", "--kubeconfig", file], prog_name="koord")
            why = CliRunner().invoke(main, ["why", "pod", "dev/p", "--kubeconfig", file], prog_name="koord")
            top = CliRunner().invoke(main, ["top", "--kubeconfig", file], prog_name="koord")
        finally:
            server.shutdown()
            thread.join()
    assert [one.exit_code for one in (uninstall, why, top)] == [1, 1, 1]
    assert "would delete" not in uninstall.output
    assert re.search(r"^koord uninstall: error: (\d+) of \1 objects cannot be looked at and may be there: .*User \"me\"", uninstall.output)
    assert "Role and ClusterRole koord-diagnostics-reader allow it" in why.output
    assert 'User "me" cannot list resource "nodes"' in top.output
    assert all(len(one.output.splitlines()) == 1 for one in (uninstall, why, top))
