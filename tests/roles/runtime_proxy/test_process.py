"""`koord runtime-proxy` as a process: its unit's command line, its readiness, its flags, and what it says when it cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import pytest

from koord.protocols import cri_pb2 as cri
from roles.runtime_proxy import registration
from roles.runtime_proxy.registration import RegistrationDirectory
from tests.roles.runtime_proxy.support import Engine, Handlers
from tests.support import patience
from tests.support.processes import KOORD, ROOT

UNIT = ROOT / "packaging" / "systemd" / "koord-runtime-proxy.service"
RUNTIME = "/runtime.v1.RuntimeService/"


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kp-") as name:  # short: a socket's path is limited to 107 bytes
        yield Path(name)


@contextlib.asynccontextmanager
async def engine_at(path: Path) -> AsyncIterator[Engine]:
    engine = Engine()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handlers(engine.handler),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield engine
    finally:
        await server.stop(0)


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen([KOORD, *arguments], stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})


def unit_settings() -> dict[str, str]:
    lines = (line.strip() for line in UNIT.read_text().splitlines())
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


@pytest.mark.feature("RP-OPS-01")
@pytest.mark.feature("RP-CLI-01")
def test_the_units_command_is_ready_once_kubelet_may_call(directory: Path) -> None:
    async def scenario() -> None:
        settings = unit_settings()
        assert (settings["Type"], settings["Restart"], settings["Before"]) == ("notify", "always", "kubelet.service")
        program, *arguments = shlex.split(settings["ExecStart"])
        assert program == "/usr/local/bin/koord"
        words = [
            word.replace("/run/koord-runtimeproxy/", f"unix://{directory}/sub/").replace(
                "/run/containerd/containerd.sock", f"{directory}/c.sock"
            )
            for word in arguments
        ]
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(str(directory / "notify"))
        manager.settimeout(20)
        child = start(*words, f"--runtime-hooks-config-path={directory}/hooks.d", NOTIFY_SOCKET=str(directory / "notify"))
        try:
            listening = directory / "sub" / "runtimeproxy.sock"
            await asyncio.sleep(1.5)
            assert child.poll() is None
            assert not listening.exists()  # no engine yet: kubelet must not find a socket that leads nowhere
            async with engine_at(directory / "c.sock"):
                assert await asyncio.to_thread(manager.recv, 100) == b"READY=1"
                async with grpc.aio.insecure_channel(f"unix:{listening}") as channel:
                    for method in ("Version", "Status"):  # what kubelet validates an endpoint with
                        await channel.unary_unary(RUNTIME + method)(b"", timeout=5)
                child.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(manager.recv, 100) == b"STOPPING=1"
                text = (await asyncio.to_thread(child.communicate, None, 10))[1]
                assert (child.returncode, "shutting down" in text) == (0, True)
            assert not listening.exists()
        finally:
            manager.close()
            if child.poll() is None:
                child.kill()
                child.communicate()

    asyncio.run(scenario())


@pytest.mark.feature("RP-OPS-01")
def test_systemd_understands_the_unit() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze on PATH")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(UNIT)], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line and "is not executable" not in line]
    assert not complaints


@pytest.mark.feature("RP-CLI-01")
def test_older_spellings_and_a_stale_socket(directory: Path) -> None:
    async def scenario() -> None:
        listening = directory / "p.sock"
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(listening))
        async with engine_at(directory / "c.sock") as engine:
            child = start(
                "runtime-proxy",
                f"-koord-runtimeproxy-endpoint={listening}",
                "--remote-runtime-service-endpoint",
                f"unix://{directory}/c.sock",
                f"--remote-image-service-endpoint=unix://{directory}/c.sock",
                "--backend-runtime-mode=Containerd",
                f"--runtime-hooks-config-path={directory}/hooks.d",
            )
            try:
                async with grpc.aio.insecure_channel(f"unix:{listening}") as channel:
                    raw = cri.RunPodSandboxRequest().SerializeToString()
                    await channel.unary_unary(RUNTIME + "RunPodSandbox")(raw, timeout=20, wait_for_ready=True)
                assert engine.of("RunPodSandbox") == [raw]
                assert (directory / "hooks.d").is_dir()
            finally:
                child.terminate()
                child.communicate(timeout=patience.seconds(10))
            assert child.returncode == 0

    asyncio.run(scenario())


@pytest.mark.feature("RP-CLI-01")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backend-runtime-mode=Podman"], "accepted: Containerd, Docker"),
        (["--runtime-hook-timeout=0"], "--runtime-hook-timeout"),
        (["--max-requests=0"], "--max-requests"),
        (["--drain-timeout=-1s"], "--drain-timeout: must not be negative"),
        (["--no-such-flag"], "no-such-flag"),
        (["--koord-runtimeproxy-endpoint=/" + "x" * 120], "107 bytes"),
        (["--koord-runtimeproxy-endpoint=/etc/hostname"], "is no socket"),
        (["--koord-runtimeproxy-endpoint="], "--koord-runtimeproxy-endpoint: '' is no unix socket"),
        (["--remote-runtime-service-endpoint=tcp://127.0.0.1:1"], "accepted: a path, with or without unix://"),
    ],
)
def test_what_cannot_work_is_one_line(arguments: list[str], said: str) -> None:
    child = start("runtime-proxy", *arguments)
    _, text = child.communicate(timeout=patience.seconds(20))
    # a path that is good as a flag may still lead to something else than a socket
    assert child.returncode == (1 if said in ("107 bytes", "is no socket") else 2)
    assert said in text
    assert "Traceback" not in text


@pytest.mark.feature("RP-REG-01")
@pytest.mark.feature("RP-REG-03")
@pytest.mark.parametrize(("policy", "status"), [("fail", 1), ("Ignored", 1), ("Fail", 0), ("Ignore", 0), ("", 0), (None, 0)])
def test_a_misspelt_policy_is_named_with_file_key_and_what_is_accepted(directory: Path, policy: str | None, status: int) -> None:
    document = {"remote-endpoint": "/run/k.sock", "failure-policy": policy, "runtime-hooks": ["PreRunPodSandbox"]}
    for name in ("k.json", "l.json"):
        (directory / name).write_text(json.dumps(document))
    arguments = ["runtime-proxy", f"--runtime-hooks-config-path={directory}", f"--koord-runtimeproxy-endpoint={directory}/p.sock"]
    done = subprocess.run(
        [KOORD, *arguments, "--validate-config=true"], capture_output=True, text=True, check=False, timeout=patience.seconds(30)
    )
    assert done.returncode == status
    if status:
        assert f"{directory}/k.json: failure-policy: {policy!r} is not known; accepted: Fail, Ignore" in done.stderr
    else:
        assert "l.json is never asked for PreRunPodSandbox" in done.stdout


def validated(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [KOORD, "runtime-proxy", f"--runtime-hooks-config-path={directory}", "--validate-config"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience.seconds(30))


@pytest.mark.feature("RP-REG-01")
def test_only_files_register(directory: Path) -> None:
    """What else has such a name is passed over, by the proxy and when its configuration is checked; nothing hides the others."""
    (directory / "k.json").write_text(json.dumps({"remote-endpoint": "unix:/run/k.sock", "runtime-hooks": ["PreRunPodSandbox"]}))
    (directory / "folder.json").mkdir()
    os.mkfifo(directory / "pipe.json")
    done = validated(directory)
    assert (done.returncode, done.stdout) == (0, "the flags and 1 hook registration(s): valid\n"), done.stderr
    (directory / "loop.json").symlink_to("loop.json")
    known = RegistrationDirectory(directory)
    assert known.refresh()
    assert [server.endpoint for server in known.servers] == ["/run/k.sock"]
    done = validated(directory)
    assert (done.returncode, done.stderr) == (1, f"koord runtime-proxy: error: {directory}/loop.json: is a link that leads nowhere\n")
    done = validated(directory / "k.json")
    assert done.returncode == 1
    assert done.stderr == f"koord runtime-proxy: error: --runtime-hooks-config-path: {directory}/k.json: Not a directory\n"


@pytest.mark.feature("RP-REG-01")
def test_a_file_that_cannot_be_read_is_said_once_and_tried_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Files are looked at twice a second; whoever may not read one (SELinux, a broken disk) would fill the log."""
    (directory / "k.json").write_text(json.dumps({"remote-endpoint": "/run/k.sock", "runtime-hooks": ["PreRunPodSandbox"]}))
    known = RegistrationDirectory(directory)

    def refused(file: object) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(registration, "content_of", refused)
            assert [known.refresh() for _ in range(3)] == [False] * 3
        said = [record.getMessage() for record in caplog.records]
        assert said == [f"cannot read hook registration {directory}/k.json: Permission denied; it is tried again"]
        caplog.clear()
        assert known.refresh()
        (directory / "k.json").write_text(json.dumps({"remote-endpoint": "/run/other.sock", "runtime-hooks": ["PreRunPodSandbox"]}))
        caplog.clear()


@pytest.mark.feature("RP-REG-01")
@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:9000", "http://localhost/hooks", "", "/run/\0k.sock", 5])
def test_an_endpoint_that_is_no_socket_is_refused(directory: Path, endpoint: object) -> None:
    (directory / "k.json").write_text(json.dumps({"remote-endpoint": endpoint, "runtime-hooks": ["PreRunPodSandbox"]}))
    done = validated(directory)
    assert done.returncode == 1
    assert f"k.json: remote-endpoint must be the path of a unix socket, found {endpoint!r}" in done.stderr
