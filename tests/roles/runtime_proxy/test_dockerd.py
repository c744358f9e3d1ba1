"""Docker mode between Docker's own client and a real dockerd: images, a pod's life, exec with standard input, real cgroup files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from koord.protocols import runtimehook_pb2 as hook
from tests.roles.runtime_proxy.support import Handlers, HookServer, until
from tests.roles.runtime_proxy.support_containerd import CGROUPS, cgroup_file, image_tar, remove_groups, unmount_below
from tests.support import patience
from tests.support.processes import KOORD

pytestmark = [pytest.mark.cri, pytest.mark.root]

MEBIBYTE = 1 << 20
IMAGE = "koord-test/busybox:1"


class Docker:
    """dockerd with its own containerd, roots and socket, and `koord runtime-proxy` before it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.engine, self.proxy, self.hooks = directory / "d.sock", directory / "p.sock", directory / "hooks.d"
        self.parent = f"/koord-test-docker-{os.getpid()}"
        self.hooks.mkdir()
        (directory / "daemon.json").write_text("{}")
        self.log = (directory / "log").open("ab")
        self.processes: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str) -> subprocess.Popen[bytes]:
        self.processes.append(subprocess.Popen(command, stdout=self.log, stderr=self.log, start_new_session=True))
        return self.processes[-1]

    def start(self, dockerd: str) -> None:
        daemon = self.run(
            *(dockerd, f"--data-root={self.directory}/data", f"--exec-root={self.directory}/exec", f"--pidfile={self.directory}/pid"),
            *(
                f"--host=unix://{self.engine}",
                "--iptables=false",
                "--bridge=none",
                "--storage-driver=vfs",
                f"--config-file={self.directory}/daemon.json",
            ),
        )
        end = time.monotonic() + patience.seconds(30)
        while "Server Version" not in self.docker("info", direct=True, check=False).stdout.decode():
            if daemon.poll() is not None or time.monotonic() > end:
                pytest.skip(f"dockerd does not start here: {(self.directory / 'log').read_text(errors='replace')[-500:]}")
            time.sleep(0.2)
        self.run(
            *(KOORD, "runtime-proxy", "--backend-runtime-mode=Docker", f"--koord-runtimeproxy-endpoint={self.proxy}"),
            *(f"--remote-runtime-service-endpoint={self.engine}", f"--runtime-hooks-config-path={self.hooks}"),
        )
        while not self.proxy.exists():
            assert time.monotonic() < end, (self.directory / "log").read_text(errors="replace")[-2000:]
            time.sleep(0.05)

    def docker(self, *arguments: str, stdin: bytes = b"", direct: bool = False, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        host = f"unix://{self.engine if direct else self.proxy}"
        environment = {**os.environ, "DOCKER_CONFIG": str(self.directory)}
        return subprocess.run(
            ["docker", "-H", host, *arguments], input=stdin, capture_output=True, timeout=patience.seconds(60), check=check, env=environment
        )

    def stop(self) -> None:
        for line in self.docker("ps", "-aq", direct=True, check=False).stdout.split():
            self.docker("rm", "-f", line.decode(), direct=True, check=False)
        for process in reversed(self.processes):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait(10)
        self.log.close()
        remove_groups(self.parent)


@pytest.fixture
def docker() -> Iterator[Docker]:
    for program in ("dockerd", "docker", "containerd", "runc"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} on PATH (package docker.io)")
    if not (CGROUPS / "cpu").is_dir():
        pytest.skip("needs cgroup v1 controllers in /sys/fs/cgroup")
    directory = Path(tempfile.mkdtemp(prefix="koord-dkr-"))
    running = Docker(directory)
    try:
        running.start(str(shutil.which("dockerd")))
        yield running
    finally:
        running.stop()
        unmount_below(directory)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.feature("RP-DKR-01")
@pytest.mark.feature("RP-DKR-02")
@pytest.mark.feature("RP-DKR-03")
def test_a_pods_life_on_a_real_docker(docker: Docker) -> None:
    created = hook.ContainerResourceHookResponse()
    created.container_resources.cpu_shares, created.container_resources.memory_limit_in_bytes = 512, 48 * MEBIBYTE
    updated = hook.ContainerResourceHookResponse()
    updated.container_resources.cpu_shares = 777
    server = HookServer(
        answers={
            "PreRunPodSandboxHook": hook.PodSandboxHookResponse(cgroup_parent=docker.parent),
            "PreCreateContainerHook": created,
            "PreUpdateContainerResourcesHook": updated,
            "PostStopContainerHook": hook.ContainerResourceHookResponse(),
        }
    )

    def drive() -> None:
        image_tar(docker.directory / "image.tar", IMAGE)
        docker.docker("load", stdin=(docker.directory / "image.tar").read_bytes())
        labels = ["--label", "io.kubernetes.docker.type=podsandbox", "--label", "annotation.a=1"]
        common = ["--network", "host", "--security-opt", "apparmor=unconfined"]
        made = docker.docker("create", "--name", "k8s_POD_web_shop_u1_0", *labels, *common, IMAGE)
        sandbox = made.stdout.decode().strip()
        docker.docker("start", sandbox)
        assert cgroup_file("cpu", docker.parent, sandbox, "cpu.shares") == "1024"
        labels = ["--label", "io.kubernetes.docker.type=container", "--label", f"io.kubernetes.sandbox.id={sandbox}"]
        name = ["--name", "k8s_main_web_shop_u1_0", "--cgroup-parent", docker.parent]
        container = docker.docker("create", *name, *labels, *common, "--cpu-shares", "300", IMAGE).stdout.decode().strip()
        docker.docker("start", container)
        assert cgroup_file("cpu", docker.parent, container, "cpu.shares") == "512"
        assert cgroup_file("memory", docker.parent, container, "memory.limit_in_bytes") == str(48 * MEBIBYTE)
        text = os.urandom(300_000).hex().encode()
        done = docker.docker("exec", "-i", container, "/bin/sh", "-c", "cat; echo oops >&2; exit 7", stdin=text, check=False)
        assert (done.stdout, done.stderr, done.returncode) == (text, b"oops\n", 7)
        docker.docker("update", "--cpu-shares", "400", container)
        assert cgroup_file("cpu", docker.parent, container, "cpu.shares") == "777"
        for arguments in (["inspect", container], ["images", "--no-trunc"], ["ps", "-a", "--no-trunc", "--format", "{{.ID}}{{.Names}}"]):
            assert docker.docker(*arguments).stdout == docker.docker(*arguments, direct=True).stdout
        docker.docker("stop", "-t", "0", container)
        docker.docker("rm", "-f", container)

    async def scenario() -> None:
        listener = grpc.aio.server()
        listener.add_generic_rpc_handlers((Handlers(server.handler),))
        listener.add_insecure_port(f"unix:{docker.directory}/h.sock")
        await listener.start()
        types = [name.removesuffix("Hook") for name in server.answers]
        (docker.hooks / "h.json").write_text(json.dumps({"remote-endpoint": f"{docker.directory}/h.sock", "runtime-hooks": types}))
        await asyncio.sleep(0.8)
        try:
            await asyncio.to_thread(drive)
            await until(lambda: len(server.asked) == len(types))  # post hooks run after the answer
        finally:
            await listener.stop(0)
        assert [name.removesuffix("Hook") for name, _ in server.asked] == types

    asyncio.run(scenario())
