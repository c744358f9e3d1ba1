"""A real containerd with runc, of the test's own: configuration, state, socket, image and cgroups, all removed background.

What this needs to run as root without CAP_SYS_RESOURCE, AppArmor and a registry: `restrict_oom_score_adj`, `disable_apparmor`,
images imported from tar files under full names, and pods on the host's network.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.support import patience

IMAGE = "docker.io/koord-test/busybox:1"
CGROUPS = Path("/sys/fs/cgroup")
_CONFIG = """\
version = 2
root = "{0}/root"
state = "{0}/state"
oom_score = 0
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.btrfs"]
[grpc]
  address = "{0}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  sandbox_image = "{1}"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
{3}  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{2}"
"""


def _messages(directory: Path) -> Any:
    """Message classes of runtime.proto by name."""
    from grpc_tools import protoc

    here, target = Path(__file__).parent, directory / "runtime.desc"
    if protoc.main(["protoc", f"-I{here}", f"--descriptor_set_out={target}", str(here / "runtime.proto")]) != 0:
        raise RuntimeError("runtime.proto does not compile")
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file:
        pool.Add(file)

    class Messages:
        def __getattr__(self, name: str) -> Any:
            return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"runtime.v1.{name}"))

    return Messages()


def image_tar(target: Path, name: str) -> None:
    """A docker-archive with one layer: a static busybox as /bin/busybox, /bin/sh and /bin/sleep."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("needs busybox (package busybox-static) for an image without a registry")
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for directory in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        archive.add(busybox, "bin/busybox", filter=lambda e: e.replace(mode=0o755, uid=0, gid=0))
        for link in ("sh", "sleep", "cat", "env", "echo"):
            entry = tarfile.TarInfo(f"bin/{link}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
    config = json.dumps(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
            "os": "linux",
            "config": {"Cmd": ["/bin/sleep", "3600"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + sha256(layer.getvalue()).hexdigest()]},
        }
    ).encode()
    digest = sha256(config).hexdigest()
    manifest = json.dumps([{"Config": f"{digest}.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(target, "w") as archive:
        for entry_name, content in ((f"{digest}.json", config), ("layer.tar", layer.getvalue()), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(entry_name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


class Containerd:
    """One daemon. `stop` and `start` may be called in the middle of a test: containers outlive it, as on a node."""

    def __init__(self, directory: Path, binaries: Path | None = None, extra: str = "", snapshotter: str = "native", cri: str = "") -> None:
        """``binaries``: a directory with another containerd than the one on PATH; ``extra``: configuration to append; ``cri``: lines of
        the CRI plugin."""
        self.directory = directory
        self.binaries = binaries
        self.socket = directory / "c.sock"
        self.m = _messages(directory)
        self.parents: list[str] = []
        self._log = open(directory / "containerd.log", "ab")  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None
        (directory / "config.toml").write_text(_CONFIG.format(directory, IMAGE, snapshotter, cri) + extra)

    def parent(self, name: str) -> str:
        """A cgroup parent of the test's own, `/koord-test-…`; removed with the daemon."""
        self.parents.append(f"/koord-test-{name}-{os.getpid()}")
        return self.parents[-1]

    def start(self) -> None:
        self._process = subprocess.Popen(
            [self.program("containerd"), "--config", str(self.directory / "config.toml")],
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, "PATH": f"{self.binaries}:{os.environ['PATH']}"} if self.binaries else None,
        )
        end = time.monotonic() + patience.seconds(30)
        while True:
            with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(f"unix:{self.socket}") as channel:
                channel.unary_unary("/runtime.v1.RuntimeService/Version")(b"", timeout=2)
                return
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.skip(f"containerd does not start here: {self.tail()}")
            time.sleep(0.05)

    def program(self, name: str) -> str:
        return str(self.binaries / name) if self.binaries else name

    def kill(self) -> None:
        """End the daemon as a crash would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(20)
        self._log.close()

    def tail(self) -> str:
        return (self.directory / "containerd.log").read_text(errors="replace")[-600:]

    def ctr(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.program("ctr"), "-a", str(self.socket), "-n", "k8s.io", *arguments],
            capture_output=True,
            text=True,
            timeout=patience.seconds(60),
            check=False,
        )
        if done.returncode:
            pytest.skip(f"ctr {' '.join(arguments)} fails here: {done.stderr.strip()[-300:]}")
        return done.stdout


class Client:
    """A CRI client on one socket: the proxy's, or the runtime's own for comparison."""

    def __init__(self, socket: Path, messages: Any) -> None:
        self.channel = grpc.aio.insecure_channel(
            f"unix:{socket}",
            options=(
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_reconnect_backoff_ms", 200),
                ("grpc.initial_reconnect_backoff_ms", 50),
            ),
        )
        self.m = messages

    async def raw(self, method: str, request: Any, timeout: float = 30, service: str = "RuntimeService") -> bytes:
        answer: bytes = await self.channel.unary_unary(f"/runtime.v1.{service}/{method}")(request.SerializeToString(), timeout=timeout)
        return answer

    async def call(self, method: str, request: Any, answer: str, timeout: float = 30) -> Any:
        return getattr(self.m, answer).FromString(await self.raw(method, request, timeout))

    async def run_pod(self, name: str, parent: str, **labels: str) -> tuple[str, Any]:
        m = self.m
        config = m.PodSandboxConfig(
            metadata=m.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="shop"),
            labels={"io.kubernetes.pod.name": name, **labels},
            annotations={"a": "1"},
            log_directory="/tmp",
            linux=m.LinuxPodSandboxConfig(
                cgroup_parent=parent, security_context=m.SecurityContext(namespace_options=m.NamespaceOption(network=2))
            ),
        )
        response = await self.call("RunPodSandbox", m.RunPodSandboxRequest(config=config), "RunPodSandboxResponse")
        return response.pod_sandbox_id, config

    async def create(self, sandbox: str, pod: Any, name: str, command: tuple[str, ...] = ("/bin/sleep", "3600"), **resources: Any) -> str:
        m = self.m
        config = m.ContainerConfig(
            metadata=m.ContainerMetadata(name=name),
            image=m.ImageSpec(image=IMAGE),
            command=command,
            envs=[m.KeyValue(key="A", value=b"1"), m.KeyValue(key="B", value=b"two words")],
            annotations={"c": "1"},
            linux=m.LinuxContainerConfig(
                resources=m.LinuxContainerResources(**resources),
                security_context=m.ContainerSecurityContext(namespace_options=m.NamespaceOption(network=2)),
            ),
        )
        request = m.CreateContainerRequest(pod_sandbox_id=sandbox, config=config, sandbox_config=pod)
        return str((await self.call("CreateContainer", request, "CreateContainerResponse")).container_id)

    async def start(self, container: str) -> None:
        await self.raw("StartContainer", self.m.ContainerRequest(container_id=container))

    async def stop(self, container: str) -> None:
        await self.raw("StopContainer", self.m.StopContainerRequest(container_id=container))

    async def exec(self, container: str, *command: str) -> Any:
        return await self.call("ExecSync", self.m.ExecSyncRequest(container_id=container, cmd=command, timeout=10), "ExecSyncResponse")

    async def update(self, container: str, **resources: Any) -> None:
        linux = self.m.LinuxContainerResources(**resources)
        await self.raw("UpdateContainerResources", self.m.UpdateContainerResourcesRequest(container_id=container, linux=linux))

    async def close(self) -> None:
        await self.channel.close()


def cgroup_file(controller: str, parent: str, container: str, name: str) -> str:
    """A file of a container's own group in a cgroup v1 hierarchy."""
    return (CGROUPS / controller / parent.lstrip("/") / container / name).read_text().strip()


def unmount_below(directory: Path) -> None:
    """Take away what a daemon left mounted below its directory."""
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        if line.split()[1].startswith(f"{directory}/"):
            subprocess.run(["umount", "-l", line.split()[1]], capture_output=True, check=False)


def remove_groups(parent: str) -> None:
    """Remove a parent and all below from every hierarchy; waits a little for what is just ending."""
    tops = [controller / parent.lstrip("/") for controller in CGROUPS.iterdir()]
    for _ in patience.tries(40):
        for top in tops:
            for path, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
        if not any(top.is_dir() for top in tops):
            return
        time.sleep(0.05)


def _clean(daemon: Containerd) -> None:
    """Remove every container and pod through the runtime itself, whatever the test left."""
    with contextlib.suppress(Exception):
        for task in daemon.ctr("tasks", "ls", "-q").split():
            subprocess.run(
                [daemon.program("ctr"), "-a", str(daemon.socket), "-n", "k8s.io", "tasks", "rm", "-f", task],
                capture_output=True,
                timeout=patience.seconds(20),
                check=False,
            )
        for container in daemon.ctr("containers", "ls", "-q").split():
            subprocess.run(
                [daemon.program("ctr"), "-a", str(daemon.socket), "-n", "k8s.io", "containers", "rm", container],
                capture_output=True,
                timeout=patience.seconds(20),
                check=False,
            )


def _shims(directory: Path) -> list[int]:
    """Shims of this daemon that are still alive, by the socket in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"containerd-shim-runc-v2") and str(directory).encode() in b" ".join(words):
                found.append(int(entry.name))
    return found


@contextlib.contextmanager
def running_containerd(binaries: Path | None = None, extra: str = "", snapshotter: str = "native", cri: str = "") -> Iterator[Containerd]:
    """A started daemon with the test image; skips, with the reason, where containerd or runc cannot run."""
    for program in ("containerd", "ctr", "runc"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} on PATH")
    if not (CGROUPS / "cpu").is_dir():
        pytest.skip("needs cgroup v1 controllers in /sys/fs/cgroup")
    directory = Path(tempfile.mkdtemp(prefix="koord-cri-"))
    daemon = Containerd(directory, binaries, extra.format(directory), snapshotter, cri.format(directory))
    try:
        daemon.start()
        image_tar(directory / "image.tar", IMAGE)
        daemon.ctr("images", "import", str(directory / "image.tar"))
        yield daemon
    finally:
        _clean(daemon)
        daemon.stop()
        for pid in _shims(directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        unmount_below(directory)
        for parent in daemon.parents:
            remove_groups(parent)
        shutil.rmtree(directory, ignore_errors=True)
